from asyncio import StreamWriter
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.hostile_server import answer, as_json, serving

from lifesign.client import RegistryClient, registry_census
from lifesign.client.registry_errors import InvalidAnswer
from lifesign.domain.models.census import Deadlines, RunRequest

DEADLINES = Deadlines(connect_seconds=5.0, first_byte_seconds=10.0, total_seconds=20.0)


async def test_targets_and_runs_are_counted(client: RegistryClient) -> None:
    await client.directories.put("dir", [f"https://agent-{number}.example/" for number in range(3)])
    await client.census.begin_run("one", "weekly")
    await client.census.end_run("one", "weekly")
    now = datetime.now(UTC)
    counts = await client.census.counts(since=now - timedelta(hours=1), until=now, name="weekly")
    assert [(row.result, row.count) for row in counts.targets] == [(None, 3)]
    # None of the targets was probed: the run goes on.
    assert [(run.run_id, run.ended_at, run.counts) for run in counts.runs] == [("one", None, [])]
    hosts = [host async for host in client.census.hosts()]
    assert sorted(host.host for host in hosts) == [f"agent-{number}.example" for number in range(3)]


async def test_a_list_that_never_ends_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_census, "MAX_PAGES", 2)
    page = as_json({"hosts": [], "cursor": "again"})
    paths = {"/api/v1/census/hosts": page, "/api/v1/census/hosts?cursor=again": page}
    async with serving(paths) as server, RegistryClient(server.url, key="k") as client:
        with pytest.raises(InvalidAnswer, match="does not end"):
            [host async for host in client.census.hosts()]


async def test_deadlines_of_a_run_are_returned(client: RegistryClient) -> None:
    begun = await client.census.begin_run("one", "weekly", DEADLINES)
    assert begun.deadlines == DEADLINES
    assert (await client.census.begin_run("two", "weekly", DEADLINES)) == begun, "it joins the run"
    assert (await client.census.end_run("one", "weekly")).deadlines == DEADLINES
    shorter = DEADLINES.model_copy(update={"total_seconds": 5.0})
    await client.census.begin_run("three", "weekly", DEADLINES)
    assert (await client.census.begin_run("four", "weekly", shorter)).deadlines is None, (
        "the deadlines differ"
    )
    assert (await client.census.begin_run("three", "weekly", DEADLINES)).deadlines is None
    ended, mixed = reversed((await client.census.counts(name="weekly")).runs)
    assert (ended.deadlines, mixed.deadlines) == (DEADLINES, None)


async def test_unread_lists_of_all_workers_are_combined(client: RegistryClient) -> None:
    await client.census.begin_run("one", "weekly", DEADLINES)
    await client.census.note_not_read("one", "weekly", ["b", "a"], DEADLINES)
    await client.census.note_not_read("one", "weekly", ["c", "a"], DEADLINES)
    ended = await client.census.end_run("one", "weekly")
    assert (ended.not_read, ended.deadlines) == (("a", "b", "c"), DEADLINES)
    await client.census.note_not_read("one", "weekly", ["d"], DEADLINES)
    (kept,) = (await client.census.counts(name="weekly")).runs
    assert kept.not_read == ("a", "b", "c"), "the run has ended"


async def test_older_registry_may_refuse_names_of_unread_lists() -> None:
    refusal = answer(422, b'{"error": {"code": "invalid_body", "message": "no"}}')
    async with serving({"/api/v1/census/runs/one": refusal}) as server:
        async with RegistryClient(server.url, key="k") as client:
            await client.census.note_not_read("one", "weekly", ["a"])
        assert len(server.heads) == 1


async def test_unknown_deadlines_are_absent() -> None:
    run = {"run_id": "one", "name": "weekly", "began_at": "2026-01-01T00:00:00Z", "counts": []}

    refusal, taken = answer(422, b'{"error": {"code": "invalid_body", "message": "no"}}'), as_json(run)
    length = len(RunRequest(name="weekly").model_dump_json(exclude_defaults=True))

    async def older(writer: StreamWriter, head: str) -> None:
        is_known = f"content-length: {length}\r\n" in head.lower()
        await (taken if is_known else refusal)(writer, head)

    async with serving({"/api/v1/census/runs/one": older}) as server:
        async with RegistryClient(server.url, key="k") as client:
            assert (await client.census.begin_run("one", "weekly", DEADLINES)).run_id == "one"
        assert len(server.heads) == 2
