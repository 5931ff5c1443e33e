from math import inf
from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from tests.registry.events.test_verify_events import report as log_report
from tests.support.databases import WoundClock
from tests.support.directory_api import DIRECTORIES, put, upload
from tests.support.registry_api import RegistryApi
from tests.support.task_api import TASKS, create, steer, steps, worker

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import target_id
from lifesign.registry import history_pruning
from lifesign.registry.history_pruning import DAY_SECONDS, KEEP_TASKS_DAYS, HistoryPruner
from lifesign.registry.targets import replace_listing
from lifesign.storage.engine.transaction import Transaction

URLS = [f"https://agent-{number}.example/" for number in range(3)]


async def report(api: RegistryApi, clock: WoundClock, url: str, result: str) -> None:
    seen = {
        "target_url": url,
        "observed_at": moment(clock.at_s).isoformat(),
        "discovery": {"result": result},
    }
    answer = await api.report(seen)
    assert answer.status == 200, answer.body


async def tidy_up(api: RegistryApi, keep_tasks_days: float = KEEP_TASKS_DAYS) -> None:
    """Tidy up in a process that trusts the clock."""
    pruner = HistoryPruner(api.database, keep_tasks_days)
    await pruner.trust_clock(inf)
    await pruner.tidy_up()


async def rows(api: RegistryApi, query: str) -> list[tuple[Any, ...]]:
    def read(transaction: Transaction) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in transaction.connection.execute(text(query))]

    return await api.database.read(read)


async def test_old_sums_and_changes_are_deleted_and_the_last_result_is_kept(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_pruning, "HOURS_AT_ONCE", 1)
    monkeypatch.setattr(history_pruning, "CHUNK", 1)
    await put(api, "dir", "one", URLS)
    for result in ("refused", "timeout", "refused"):
        await report(api, clock, URLS[0], result)
        clock.advance(7_200)
    clock.advance(90 * DAY_SECONDS - 7_200)
    await tidy_up(api)
    # The hour that is just 90 days old is kept.
    assert await rows(api, "SELECT count(DISTINCT hour) FROM result_sums") == [(1,)]
    assert await rows(api, "SELECT count(*) FROM result_changes") == [(4,)]
    clock.advance(310 * DAY_SECONDS + 10_000)
    await tidy_up(api)
    assert await rows(api, "SELECT count(*) FROM result_sums") == [(0,)]
    assert await rows(api, "SELECT count(*) FROM result_changes") == [(0,)]
    assert await rows(api, "SELECT result FROM probe_results") == [("refused",)]


@pytest.mark.both_databases
async def test_latest_changes_of_a_target_are_kept(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_pruning, "KEEP_CHANGES", 3)
    monkeypatch.setattr(history_pruning, "TARGETS_AT_ONCE", 1)
    await put(api, "dir", "one", URLS)
    for number in range(4):
        await report(api, clock, URLS[0], "refused" if number % 2 else "timeout")
        if number < 2:
            await report(api, clock, URLS[1], "refused" if number % 2 else "timeout")
        clock.advance(300)

    async def changes_of(url: str) -> list[int]:
        found = await rows(
            api,
            "SELECT url, result.id FROM result_changes result JOIN targets ON targets.id = target ORDER BY 2",
        )
        return [number for of, number in found if of == url]

    first, second = await changes_of(URLS[0]), await changes_of(URLS[1])
    assert (len(first), len(second)) == (6, 2)
    await tidy_up(api)
    assert (await changes_of(URLS[0]), await changes_of(URLS[1])) == (first[-3:], second)


async def test_targets_that_left_long_ago_are_forgotten(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    await put(api, "dir", "two", URLS[:2])
    await api.register("one", monitoring="probe", card_url="https://one.example/")
    await api.ask("DELETE", "/api/v1/agents/one")
    clock.advance(90 * DAY_SECONDS)
    await tidy_up(api)
    assert len(await rows(api, "SELECT 1 FROM targets")) == 4
    clock.advance(1)
    await tidy_up(api)
    left = await rows(api, "SELECT subject_id FROM targets ORDER BY subject_id")
    assert [subject for (subject,) in left] == sorted([*map(target_id, URLS[:2]), "one"])
    await put(api, "dir", "three", URLS)
    assert len(await rows(api, "SELECT 1 FROM targets WHERE gone_at_s IS NULL")) == 3


async def test_a_list_that_was_never_finished_is_dropped_with_its_pages(
    api: RegistryApi, clock: WoundClock
) -> None:
    await upload(api, "dir", "one", URLS)
    clock.advance(DAY_SECONDS)
    await tidy_up(api)
    assert len(await rows(api, "SELECT 1 FROM import_pages")) == 1
    clock.advance(1)
    await tidy_up(api)
    assert await rows(api, "SELECT state FROM imports") == [("dropped",)]
    assert await rows(api, "SELECT 1 FROM import_pages") == []
    clock.advance(30 * DAY_SECONDS + 1)
    await tidy_up(api)
    assert await rows(api, "SELECT 1 FROM imports") == []


async def test_last_applied_list_is_kept(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    await put(api, "dir", "two", URLS, etag='"2"')
    clock.advance(31 * DAY_SECONDS)
    await tidy_up(api)
    assert await rows(api, "SELECT import_id FROM imports") == [("two",)]
    shown = (await api.ask("GET", f"{DIRECTORIES}/dir")).json()
    assert shown["applied"]["etag"] == '"2"'


@pytest.mark.both_databases
async def test_confirmed_pruning_continues_unattended(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replace_listing, "REMOVED_AT_ONCE", 2)
    await put(api, "dir", "one", [f"https://agent-{number}.example/" for number in range(20)])
    await put(api, "dir", "two", URLS)
    confirmed = await api.ask("POST", f"{DIRECTORIES}/dir/confirm")
    assert confirmed.json()["state"] == "removing"
    await tidy_up(api)
    assert (await api.ask("GET", f"{DIRECTORIES}/dir")).json()["size"] > 3
    clock.advance(31)
    await tidy_up(api)
    shown = (await api.ask("GET", f"{DIRECTORIES}/dir")).json()
    assert (shown["size"], shown["applied"]["import_id"]) == (3, "two")


@pytest.fixture
def pruned_at_s(clock: WoundClock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times of the clock at which something was pruned."""
    times_s: list[float] = []

    async def note(*_: object) -> None:
        times_s.append(clock.at_s)

    monkeypatch.setattr(history_pruning, "prune_history", note)
    return times_s


async def test_pruning_runs_once_an_hour(
    api: RegistryApi, clock: WoundClock, pruned_at_s: list[float]
) -> None:
    began_s, pruner = clock.at_s, HistoryPruner(api.database, boot_clock=clock.now_s)
    for _ in range(5 * 60):
        await pruner.tidy_up()
        clock.advance(60)
    assert [at_s - began_s for at_s in pruned_at_s] == [3_600, 7_200, 10_800, 14_400]


@pytest.mark.parametrize("jump_s", [-3_600, 3_600, 400 * DAY_SECONDS])
async def test_pruning_waits_for_an_hour_after_the_clock_was_set(
    api: RegistryApi, clock: WoundClock, pruned_at_s: list[float], jump_s: float
) -> None:
    boot = WoundClock(0.0)
    pruner = HistoryPruner(api.database, boot_clock=boot.now_s)

    async def run_until(end_s: float) -> None:
        while boot.at_s < end_s:
            await pruner.tidy_up()
            clock.advance(60)
            boot.advance(60)

    await run_until(3_600)
    clock.advance(jump_s)
    await run_until(5_400)
    clock.advance(-jump_s)
    await run_until(9_000)
    assert pruned_at_s == []
    await run_until(9_060)
    assert len(pruned_at_s) == 1


@pytest.mark.parametrize(
    ("pause_s", "times"), [(None, 1), (31 * DAY_SECONDS, 1), (33 * DAY_SECONDS, 0), (-60, 0)]
)
async def test_a_clock_is_trusted_soon_after_the_last_sweep(
    api: RegistryApi, clock: WoundClock, pruned_at_s: list[float], pause_s: float | None, times: int
) -> None:
    if pause_s is not None:
        await api.sweep()
        clock.advance(pause_s)
    pruner = HistoryPruner(api.database, boot_clock=clock.now_s)
    await pruner.trust_clock(32 * DAY_SECONDS)
    clock.advance(60)
    await pruner.prune_if_due()
    assert len(pruned_at_s) == times


async def test_old_finished_tasks_are_pruned_with_an_event(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_pruning, "TASKS_AT_ONCE", 1)
    one = await worker(api, capabilities=["write"])
    done = await create(api, capabilities=["write"], budget={"tokens": 9}, idempotency_key="k")
    grant = await one.granted()
    await one.report(grant)
    await one.reserve(grant, "c", tokens=1)
    await one.write(grant, "complete")
    await steer(api, done["task_id"], "review", verdict="accept", comment="well done")
    queued, waiting = await create(api, "waits"), await create(api, "in review")
    await one.write(await one.granted(task_id=waiting["task_id"]), "complete")
    clock.advance(90 * DAY_SECONDS)
    late = await create(api, "late")
    await steer(api, late["task_id"], "cancel")
    await tidy_up(api)
    # Exactly so old is not older.
    assert await _task_ids(api) == {task["task_id"] for task in (done, queued, waiting, late)}
    clock.advance(3_600)
    await tidy_up(api)
    assert await _task_ids(api) == {task["task_id"] for task in (queued, waiting, late)}
    for part in ("budgets", "calls", "comments", "creations", "needs", "runs", "writes"):
        table = f"task_{part}"
        left = f"SELECT count(*) FROM {table} WHERE task NOT IN (SELECT number FROM tasks)"  # noqa: S608
        assert await rows(api, left) == [(0,)]
    assert await rows(api, "SELECT count(*) FROM task_reports") == [(0,)]
    assert await steps(api, done["task_id"]) == ["assigned", "running", "review", "done"]
    assert (await log_report(api)).is_good
    # The idempotency key of a pruned task may be used again.
    assert (await create(api, idempotency_key="k", title="new"))["task_id"] != done["task_id"]


async def test_old_task_trees_are_deleted_from_the_leaves_unless_an_ancestor_is_unfinished(
    api: RegistryApi, clock: WoundClock
) -> None:
    one = await worker(api)
    parent = await create(api, "parent", lease_seconds=86_400)
    grant = await one.granted()
    child = (await one.write(grant, "delegate", task={"title": "child", "agent_id": "nobody"})).json()
    await steer(api, child["child_id"], "cancel")
    clock.advance(91 * DAY_SECONDS)
    await tidy_up(api)
    assert await _task_ids(api) == {parent["task_id"], child["child_id"]}
    await steer(api, parent["task_id"], "cancel")
    clock.advance(91 * DAY_SECONDS)
    await tidy_up(api)
    assert await _task_ids(api) == set()
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_rejected_task_is_kept_as_long_as_its_fix_task(api: RegistryApi, clock: WoundClock) -> None:
    one = await worker(api)
    rejected = await create(api, "first")
    await one.write(await one.granted(), "complete")
    fix = (await steer(api, rejected["task_id"], "review", verdict="reject")).json()["fix"]
    clock.advance(91 * DAY_SECONDS)
    await tidy_up(api)
    assert await _task_ids(api) == {rejected["task_id"], fix["task_id"]}
    await steer(api, fix["task_id"], "cancel")
    clock.advance(91 * DAY_SECONDS)
    await tidy_up(api, keep_tasks_days=92)
    assert await _task_ids(api) == {rejected["task_id"], fix["task_id"]}
    await tidy_up(api, keep_tasks_days=90)
    assert await _task_ids(api) == set()


async def _task_ids(api: RegistryApi) -> set[str]:
    listed = await api.ask("GET", TASKS, key=Role.READER)
    return {task["task_id"] for task in listed.json()["tasks"]}


async def test_old_rows_are_found_without_reading_new_ones(api: RegistryApi, database_kind: str) -> None:
    if database_kind == "postgresql":
        pytest.skip("NOT RUN on PostgreSQL, which reads small tables whole, whatever indexes they have")
    plans: list[str] = []

    def explain(connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if "tasks" in statement or "targets" in statement:
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[3] for row in cursor.fetchall())

    def forget(transaction: Transaction) -> None:
        event.listen(transaction.connection, "before_cursor_execute", explain)
        assert not history_pruning._forget_tasks(transaction, keep_days=90)
        assert not history_pruning._delete_delisted(transaction)

    await api.database.write(forget)
    assert [plan for plan in plans if plan.startswith("SCAN")] == []
    assert any("ix_tasks_status_status_since_s (status=? AND status_since_s<?)" in plan for plan in plans)
    assert any("ix_targets_gone_at_s (gone_at_s<?)" in plan for plan in plans)


async def test_history_of_a_former_agent_is_deleted_when_all_slots_are_old(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_pruning, "CHUNK", 1)
    for name in ("left-1", "left-2", "stays"):
        await api.register(name, monitoring="both", card_url=f"https://{name}.example/")
        for _ in range(2):
            seen = {
                "agent_id": name,
                "observed_at": moment(clock.at_s).isoformat(),
                "transport": {"result": "ok"},
            }
            assert (await api.report(seen)).status == 200
            clock.advance(1_800)
    for name in ("left-1", "left-2"):
        assert (await api.ask("DELETE", f"/api/v1/agents/{name}")).status == 204
    clock.advance(30 * DAY_SECONDS)
    await tidy_up(api)
    assert await rows(api, "SELECT count(*) FROM agent_history") == [(3,)]
    clock.advance(2 * DAY_SECONDS)
    await tidy_up(api)
    assert await rows(api, "SELECT agent_id FROM agent_history JOIN agents ON id = agent") == [("stays",)]
