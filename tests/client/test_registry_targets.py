import pytest
from tests.support.hostile_server import as_json, serving

from lifesign.client import RegistryClient, registry_targets
from lifesign.client.registry_errors import Gone, InvalidAnswer, NotFound, RateLimited
from lifesign.domain.targets.target import target_id

URLS = [f"https://agent-{number}.example/" for number in range(5)]


async def test_targets_are_found_and_shown(client: RegistryClient) -> None:
    await client.directories.put("dir", URLS)
    page = await client.targets.list(limit=2, never_probed=True, directory="dir")
    assert (len(page.targets), page.total) == (2, 5)
    found = [target.url async for target in client.targets.each(page=2)]
    assert sorted(found) == URLS
    assert [target async for target in client.targets.each(result=["ok", "gated"])] == []
    assert [target async for target in client.targets.each(layer_result=["gated"])] == []
    assert [target async for target in client.targets.each(failed_assertions=True)] == []
    shown = await client.targets.get(target_id(URLS[0]))
    assert (shown.url, shown.directories, shown.result, shown.changes) == (URLS[0], ["dir"], None, [])
    with pytest.raises(NotFound):
        await client.targets.get("tgt_0")


async def test_recheck_is_allowed_once_a_minute(client: RegistryClient) -> None:
    await client.directories.put("dir", URLS)
    asked = await client.targets.recheck(target_id(URLS[0]))
    assert (await client.targets.get(target_id(URLS[0]))).recheck_at == asked.recheck_at
    with pytest.raises(RateLimited) as again:
        await client.targets.recheck(target_id(URLS[0]))
    assert 0 < (again.value.retry_after_s or 0) <= 60
    await client.directories.put("dir", [])
    with pytest.raises(Gone):
        await client.targets.recheck(target_id(URLS[1]))
    assert len([target async for target in client.targets.each(include_gone=True)]) == 5


async def test_a_list_that_never_ends_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_targets, "MAX_PAGES", 2)
    page = as_json({"targets": [], "total": 1, "cursor": "again"})
    paths = {"/api/v1/targets?limit=1000": page, "/api/v1/targets?limit=1000&cursor=again": page}
    async with serving(paths) as server, RegistryClient(server.url, key="k") as client:
        with pytest.raises(InvalidAnswer, match="does not end"):
            [target async for target in client.targets.each()]
