import pytest
from tests.support.directory_api import feed, put
from tests.support.registry_api import RegistryApi

from lifesign.domain.targets.target import shard_of

HOST = "agent.example"
SHARD = shard_of(HOST)
URLS = [f"https://{HOST}/{number}" for number in range(3)]


async def kinds(api: RegistryApi) -> list[str | None]:
    """Return the kinds that the prober gets, by URL."""
    targets = (await feed(api, SHARD))["targets"]
    return [target.get("kind") for target in sorted(targets, key=lambda target: str(target["url"]))]


@pytest.mark.both_databases
async def test_kind_leaves_with_the_list_that_stated_it(api: RegistryApi) -> None:
    await put(api, "own", "one", URLS[:2], kind="mcp")
    before = await feed(api, SHARD)
    await put(api, "public", "two", URLS[:1], kind="a2a")
    assert await kinds(api) == ["disputed", "mcp"]
    # Nothing reads the first list again.
    await put(api, "public", "three", URLS[2:3], kind="a2a")
    assert await kinds(api) == ["mcp", "mcp", "a2a"]
    changes = await feed(api, SHARD, before["version"])
    assert {target["url"] for target in changes["targets"]} == {URLS[0], URLS[2]}
    # A list may correct itself.
    await put(api, "public", "four", URLS[2:3], kind="mcp")
    assert await kinds(api) == ["mcp", "mcp", "mcp"]
