"""What can be asked of a registry about all targets together?"""

from datetime import UTC, datetime, timedelta

import pytest
from tests.support.hostile_server import as_json, serving

from agent_health.client import RegistryClient, registry_census
from agent_health.client.registry_errors import InvalidAnswer


async def test_targets_and_runs_are_counted(client: RegistryClient) -> None:
    await client.directories.put("dir", [f"https://agent-{number}.example/" for number in range(3)])
    await client.census.begin_run("one", "weekly")
    await client.census.end_run("one", "weekly")
    now = datetime.now(UTC)
    counts = await client.census.counts(since=now - timedelta(hours=1), until=now, name="weekly")
    assert [(row.result, row.count) for row in counts.targets] == [(None, 3)]
    assert [(run.run_id, run.ended_at is None, run.counts[0].count) for run in counts.runs] == [
        ("one", False, 3)
    ]
    hosts = [host async for host in client.census.hosts()]
    assert sorted(host.host for host in hosts) == [f"agent-{number}.example" for number in range(3)]


async def test_a_list_that_never_ends_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_census, "MAX_PAGES", 2)
    page = as_json({"hosts": [], "cursor": "again"})
    paths = {"/api/v1/census/hosts": page, "/api/v1/census/hosts?cursor=again": page}
    async with serving(paths) as server, RegistryClient(server.url, key="k") as client:
        with pytest.raises(InvalidAnswer, match="does not end"):
            [host async for host in client.census.hosts()]
