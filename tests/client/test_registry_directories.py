import pytest
from tests.support.hostile_server import as_json, serving
from tests.support.registry_server import KEYS, RegistryServer

from lifesign.client import RegistryClient, registry_directories
from lifesign.client.registry_errors import Conflict, InvalidAnswer, NotFound, NotPermitted, Unprocessable
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.directories import ImportState
from lifesign.errors import InvalidValue


def urls(*numbers: int) -> list[str]:
    return [f"https://agent-{number}.example/" for number in numbers]


async def test_a_directory_lists_what_was_put_there(
    client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_directories, "MAX_PAGE_URLS", 8)
    record = await client.directories.put("dir", urls(*range(20)), source="list.txt", etag='"1"')
    assert (record.state, record.added, record.pages) == (ImportState.APPLIED, 20, 3)
    shown = await client.directories.get("dir")
    assert (shown.size, shown.applied) == (20, record)
    assert await client.directories.all() == [shown]


async def test_a_directory_that_shrank_is_confirmed(client: RegistryClient) -> None:
    await client.directories.put("dir", urls(*range(20)))
    held = await client.directories.put("dir", [])
    assert (held.state, held.removed, held.is_under_way) == (ImportState.SUSPENDED, 20, False)
    assert (await client.directories.get("dir")).suspended == held
    assert (await client.directories.confirm("dir")).state is ImportState.APPLIED
    with pytest.raises(Conflict):
        await client.directories.confirm("dir")
    assert (await client.directories.put("dir", urls(1), allow_shrink=True)).added == 1


async def test_refusal_of_the_registry_is_raised(client: RegistryClient, registry: RegistryServer) -> None:
    with pytest.raises(NotFound):
        await client.directories.get("nowhere")
    with pytest.raises(Unprocessable):
        await client.directories.put("no name", urls(1))
    with pytest.raises(InvalidValue, match="etag"):
        await client.directories.put("dir", urls(1), etag="a\nb")
    async with RegistryClient(registry.url, key=KEYS[Role.READER]) as reader:
        with pytest.raises(NotPermitted):
            await reader.directories.put("dir", urls(1))


async def test_invalid_record_is_refused() -> None:
    pages = {"/api/v1/directories": as_json({"directories": [{"name": 1}]})}
    async with serving(pages) as server, RegistryClient(server.url, key="k") as client:
        with pytest.raises(InvalidAnswer):
            await client.directories.all()
