import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select
from tests.support.databases import KINDS, WoundClock, bare_url, migrated_url
from tests.support.directory_api import claim, put, upload
from tests.support.event_logs import read_archive, verify
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS
from tests.support.task_api import Worker, create, steer

from lifesign.domain.events.chain import Event, agent_of
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.replay import Replay
from lifesign.domain.lifecycle.agent_history import HistorySlot, KeptHistory, packed
from lifesign.domain.models.base import moment
from lifesign.registry.backup.create_backup import Restored, back_up, restore
from lifesign.registry.events.archive_events import archive
from lifesign.registry.events.erase_archives import erase_archives
from lifesign.registry.events.verify_events import verify_log
from lifesign.storage.agents import histories
from lifesign.storage.engine import schema_version, table_definitions
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import BackupFailed, DatabaseNotEmpty, InvalidBackup, SchemaOutdated
from lifesign.storage.events import archive_erasures, event_log
from lifesign.storage.events.archive_erasures import ArchiveErasure
from lifesign.storage.events.event_archive import files_in
from lifesign.storage.keys import sessions
from lifesign.storage.keys.sessions import StoredSession
from lifesign.storage.whole_database import all_rows

LEASES = "/api/v1/leases"
Made = Callable[[str], Awaitable[RegistryApi]]


@pytest.fixture
async def made(tmp_path: Path, clock: WoundClock) -> AsyncIterator[Made]:
    """Creates registries, each with a separate database, set up as servers do."""
    async with AsyncExitStack() as stack:

        async def make(kind: str) -> RegistryApi:
            database = open_database(migrated_url(kind, tmp_path), clock=clock.now_s)
            stack.push_async_callback(database.close)
            return RegistryApi(database, clock)

        yield make


@pytest.fixture
async def full(made: Made, database_kind: str) -> RegistryApi:
    """A registry with an agent that sends heartbeats and holds a lease."""
    api = await made(database_kind)
    await api.add_keys()
    key = (await api.register("agent-1", capabilities=["billing"], metadata={"a": [1, "ü", None]}))[
        "agent_key"
    ]
    await api.send_heartbeat("agent-1", key, current_load=1)
    await acquire(api, key, "task:1")
    await api.sweep()
    return api


async def fill_with_targets(api: RegistryApi) -> None:
    """Have a row in every table that probing fills."""
    urls = [f"https://agent-{number}.example/" for number in range(20)]
    await put(api, "dir", "one", urls)
    await put(api, "dir", "two", urls[:3])
    await upload(api, "dir", "three", urls)
    await claim(api)
    for result in ("refused", "ok", "timeout"):
        seen = {
            "target_url": urls[0],
            "observed_at": moment(api.clock.at_s).isoformat(),
            "discovery": {"result": result},
            "network_class": "public_ipv4",
            "address": "192.0.2.1",
        }
        await api.report(seen, memories=[{"probed_at_s": 1.25}])
        api.clock.advance(1)
    await api.ask("PUT", "/api/v1/census/runs/one", {"name": "weekly", "is_over": True})
    await api.ask("POST", "/api/v1/opt-outs", {"url": urls[1]})
    await api.database.write(_add_reports)


def _add_reports(transaction: Transaction) -> None:
    reported = {"holder": "key:a/b", "reported_at_s": 1.5, "answered": 1, "failed": 2, "inconclusive": 3}
    transaction.connection.execute(insert(table_definitions.prober_reports).values(reported))
    transaction.connection.execute(insert(table_definitions.agent_requests).values(process="a", at_s=1.5))
    target, agent = (
        transaction.connection.execute(select(func.min(of.c.id))).scalar_one()
        for of in (table_definitions.targets, table_definitions.agents)
    )
    claim = {"target": target, "agent": agent, "registry": "https://registry.example/", "card_at_s": 1.5}
    transaction.connection.execute(insert(table_definitions.target_claims).values(**claim, due_at_s=2.5))
    transaction.connection.execute(
        insert(table_definitions.links).values(target=target, agent=agent, linked_at_s=1.5)
    )
    version = {"target": target, "number": 1, "seen_at_s": 1.5, "digest": "d" * 64, "body": "{}"}
    transaction.connection.execute(insert(table_definitions.interface_versions).values(version))
    transaction.connection.execute(
        insert(table_definitions.interface_states).values(target=target, newest=1, baseline=1, due_at_s=2.5)
    )


async def fill_with_tasks(api: RegistryApi, key: str) -> dict[str, Any]:
    """Have a row in every table of tasks, and return the grant of the one that is held."""
    await create(api, capabilities=["billing"], budget={"tokens": 10}, idempotency_key="order-7")
    one = Worker(api, "agent-1", key)
    grant = await one.granted()
    await one.report(grant)
    await one.reserve(grant, "call-1", tokens=5)
    child = await one.write(grant, "delegate", task={"title": "child"})
    await steer(api, child.json()["child_id"], "cancel", reason="not needed")
    return grant


async def acquire(api: RegistryApi, key: str, resource: str) -> int:
    """Take a lease and return its fencing token."""
    answer = await api.ask("POST", LEASES, {"resource": resource}, key=key)
    assert answer.status == 201, answer.body
    return int(answer.json()["fencing_token"])


async def back(database: Database, file: Path, *, is_forced: bool = False) -> Restored:
    return await database.write(
        lambda transaction: restore(
            transaction, file, is_forced=is_forced, actor="test", trusts_all_keys=True
        )
    )


async def everything(database: Database) -> dict[str, list[Any]]:
    def function(transaction: Transaction) -> dict[str, list[Any]]:
        return {table.name: list(all_rows.read(transaction, table)) for table in all_rows.TABLES}

    return await database.read(function)


async def agent_key(api: RegistryApi, agent_id: str = "agent-1") -> str:
    """Return a key of an agent that is there."""
    return await api.add_agent_key(agent_id)


@pytest.mark.both_databases
@pytest.mark.parametrize("target_kind", KINDS)
async def test_backup_is_restored_completely_to_either_database(
    full: RegistryApi, made: Made, target_kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    await fill_with_targets(full)
    await fill_with_tasks(full, await agent_key(full))
    erasure = ArchiveErasure(7, "agent-9", ((1, 6),), 5.0)
    await full.database.write(lambda transaction: archive_erasures.add(transaction, erasure))
    history = KeptHistory(packed([HistorySlot(981_000, alive=2)]), packed([HistorySlot(20_436, failed=1)]))
    await full.database.write(lambda transaction: histories.store(transaction, {1: history}))
    session = StoredSession(digest="d" * 64, key_id="key_x", created_at_s=1.0, expires_at_s=2.0)
    await full.database.write(lambda transaction: sessions.add(transaction, session, 1))
    before = await everything(full.database)
    assert {name for name, rows in before.items() if not rows} <= {
        "commands",
        "fenced_states",
        "webhooks",
    }
    counts = await full.database.read(lambda transaction: back_up(transaction, file))
    # No session survives.
    assert before.pop("sessions")
    assert counts == {name: len(rows) for name, rows in before.items()}
    target = await made(target_kind)
    assert (await back(target.database, file)).agents == 2
    after = await everything(target.database)
    assert after["sessions"] == []
    changed = {name for name in before if before[name] != after[name]}
    # The lease of the task is over, and with it the run, and what its call had reserved.
    of_tasks = {"tasks", "task_runs", "task_budgets", "task_calls"}
    assert changed == {"leases", "events", "event_log", "registry"} | of_tasks
    assert after["events"][: len(before["events"])] == before["events"]


@pytest.mark.both_databases
async def test_agent_that_was_erased_since_the_backup_stays_erased_in_database_and_archives(
    full: RegistryApi, tmp_path: Path
) -> None:
    file, archives = tmp_path / "backup.gz", tmp_path / "archives"

    def archived() -> list[Event]:
        return [event for found in files_in(archives) for event in read_archive(found.path)]

    await archive(full.database, archives, full.clock.now_s() + 1)
    await full.database.read(lambda transaction: back_up(transaction, file))
    answer = await full.ask("DELETE", f"{AGENTS}/agent-1/record")
    assert answer.status == 200, answer.body
    restored = await back(full.database, file, is_forced=True)
    assert restored.withdrawn.erased_agents == ("agent-1",)
    assert (await full.ask("GET", f"{AGENTS}/agent-1")).status == 404
    full.clock.advance(1)
    await archive(full.database, archives, full.clock.now_s())
    await erase_archives(full.database, archives)
    others = [event for event in archived() if event.type != EventType.AGENT_ERASED]
    assert "agent-1" not in {agent_of(event) for event in others}
    found = await full.database.read(verify_log)
    assert found.is_good, found
    assert found.archive_erasures == 0
    assert verify(archived()) == found.archived


@pytest.mark.both_databases
async def test_case_2_holder_from_before_a_restore_cannot_write(full: RegistryApi, tmp_path: Path) -> None:
    file = tmp_path / "backup.gz"
    key = await agent_key(full)
    grant = await fill_with_tasks(full, key)
    await full.database.read(lambda transaction: back_up(transaction, file))
    await back(full.database, file, is_forced=True)
    one = Worker(full, "agent-1", key)
    late = await one.report(grant, idempotency_key="late")
    assert (late.status, late.json()["error"]["code"]) == (412, "lease_ended")
    again = await one.granted()
    assert again["task"]["task_id"] == grant["task"]["task_id"]
    assert again["lease"]["fencing_token"] > grant["lease"]["fencing_token"] + 2**31
    assert again["latest_report"]["number"] == 1
    assert (await full.database.read(verify_log)).is_good


async def test_tokens_after_a_restore_are_above_all_earlier_tokens(
    full: RegistryApi, made: Made, database_kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    key = await agent_key(full)
    before = [await acquire(full, key, f"task:{number}") for number in range(2, 5)]
    target = await made(database_kind)
    await back(target.database, file)
    key = await agent_key(target)
    after = [await acquire(target, key, f"task:{number}") for number in range(1, 5)]
    assert min(after) > max(before)


async def test_leases_granted_after_the_backup_are_invalid(full: RegistryApi, tmp_path: Path) -> None:
    """Restored twice into the same database: the second epoch is above the first one too."""
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    tokens = []
    for _ in range(3):
        tokens.append(await acquire(full, await agent_key(full), "task:2"))
        await back(full.database, file, is_forced=True)
    assert tokens == sorted(set(tokens))


@pytest.mark.both_databases
async def test_two_restores_of_one_backup_grant_different_tokens(
    full: RegistryApi, made: Made, clock: WoundClock, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    clock.at_s = 1_800_000_000
    await full.database.read(lambda transaction: back_up(transaction, file))
    tokens = []
    for _ in range(2):
        target = await made("sqlite")
        await back(target.database, file)
        tokens.append(await acquire(target, await agent_key(target), "task:2"))
        clock.advance(600)
    assert tokens[0] < tokens[1]


async def test_restore_ends_leases_with_a_reason_in_the_log(
    full: RegistryApi, made: Made, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    target = await made("sqlite")
    await back(target.database, file)
    events = await target.database.read(lambda transaction: event_log.after(transaction, 0, limit=1_000))
    verify(events)
    assert [event.type for event in events[-2:]] == [EventType.LEASE_EXPIRED, EventType.EPOCH_RAISED]
    assert events[-2].payload["reason"] == "epoch_raised"
    replay = Replay()
    for event in events:
        replay.apply(event)
    assert not replay.leases["task:1"].is_held


@pytest.mark.parametrize("target_kind", KINDS)
async def test_stores_restored_simultaneously_grant_different_tokens(
    full: RegistryApi, made: Made, clock: WoundClock, tmp_path: Path, target_kind: str
) -> None:
    file = tmp_path / "backup.gz"
    clock.at_s = 1_800_000_000
    await full.database.read(lambda transaction: back_up(transaction, file))
    granted: list[tuple[int, str]] = []
    for _ in range(2):
        target = await made(target_kind)
        await back(target.database, file)
        key = await agent_key(target)
        for _ in range(3):
            body = {"resource": "task:2", "ttl_seconds": 1}
            answer = (await target.ask("POST", LEASES, body, key=key)).json()
            granted.append((answer["fencing_token"], answer["lease_id"]))
            await target.ask("DELETE", f"{LEASES}/{answer['lease_id']}", key=key)
            clock.advance(1)
    assert [token for token, _ in granted] == sorted({token for token, _ in granted})
    assert len({lease_id for _, lease_id in granted}) == len(granted)
    # Both in one span of 10 minutes, and none beyond the integers of JSON.
    assert len({token // 2**32 for token, _ in granted}) == 1
    assert granted[-1][0] < 2**53


@pytest.mark.both_databases
@pytest.mark.parametrize("away_s", [3_600, 30 * 86_400])
async def test_time_between_backup_and_restore_kills_no_agent(
    full: RegistryApi, made: Made, clock: WoundClock, tmp_path: Path, away_s: float
) -> None:
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    clock.advance(away_s)
    target = await made("sqlite")
    await back(target.database, file)
    target.keys = full.keys
    # A server that starts, not one that has been there all the time.
    for _ in range(3):
        await target.registry.sweeper.sweep_once()
        clock.advance(1)
    assert (await target.record("agent-1"))["status"] == "active"
    # Only the time since then is its silence.
    for _ in range(4):
        clock.advance(30)
        await target.sweep()
    assert (await target.record("agent-1"))["status"] == "unhealthy"


async def test_backup_taken_before_the_first_sweep_kills_no_agent(
    made: Made, clock: WoundClock, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    source, target = await made("sqlite"), await made("sqlite")
    await source.add_keys()
    await source.register("agent-1")
    await source.database.read(lambda transaction: back_up(transaction, file))
    clock.advance(86_400)
    await back(target.database, file)
    await target.registry.sweeper.sweep_once()
    assert (await target.record("agent-1"))["status"] == "active"


async def test_new_agents_get_numbers_of_their_own_after_a_restore(
    full: RegistryApi, made: Made, database_kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    target = await made(database_kind)
    await back(target.database, file)
    target.keys = full.keys
    await target.register("agent-2")
    assert (await target.record("agent-2"))["status"] == "active"


@pytest.mark.both_databases
async def test_a_database_that_holds_something_is_replaced_only_if_forced(
    full: RegistryApi, made: Made, database_kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    other = await made(database_kind)
    await other.add_keys()
    await other.register("agent-of-another")
    before = await everything(other.database)
    with pytest.raises(DatabaseNotEmpty, match="--force"):
        await back(other.database, file)
    assert await everything(other.database) == before
    await back(other.database, file, is_forced=True)
    assert [row[1] for row in (await everything(other.database))["agents"]] == ["agent-1"]


async def test_backup_is_a_consistent_snapshot(full: RegistryApi, tmp_path: Path) -> None:
    """The registry continues while the backup is written."""
    file = tmp_path / "backup.gz"
    loop = asyncio.get_running_loop()

    def slowly(transaction: Transaction) -> dict[str, int]:
        transaction.connection.execute(all_rows.TABLES[0].select())
        if not transaction.is_postgresql:
            # The reader's own thread: the registry can go on meanwhile.
            asyncio.run_coroutine_threadsafe(full.register("agent-2"), loop).result(PATIENCE_SECONDS)
        return back_up(transaction, file)

    before = await everything(full.database)
    del before["sessions"]
    counts = await full.database.read(slowly)
    assert counts == {name: len(rows) for name, rows in before.items()}


async def test_a_backup_is_readable_by_its_owner_only_and_replaces_the_last_one(
    full: RegistryApi, tmp_path: Path
) -> None:
    directory = tmp_path / "vault"
    directory.mkdir()
    file = directory / "backup.gz"
    for _ in range(2):
        await full.database.read(lambda transaction: back_up(transaction, file))
    assert [found.name for found in directory.iterdir()] == ["backup.gz"]
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.both_databases
async def test_failed_write_keeps_the_last_backup(full: RegistryApi, tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="No such file"):
        await full.database.read(lambda transaction: back_up(transaction, tmp_path / "absent" / "b.gz"))


async def test_a_database_that_is_not_set_up_is_not_backed_up(database_kind: str, tmp_path: Path) -> None:
    database = open_database(bare_url(database_kind, tmp_path))
    with pytest.raises(SchemaOutdated):
        await database.read(lambda transaction: back_up(transaction, tmp_path / "backup.gz"))
    await database.close()


@pytest.mark.both_databases
async def test_a_backup_of_other_tables_is_refused(
    full: RegistryApi, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    target = await made("sqlite")
    current = schema_version.newest_revision()
    monkeypatch.setattr(schema_version, "newest_revision", lambda: "9998")
    with pytest.raises(InvalidBackup, match=f"revision {current}"):
        await back(target.database, file)


@pytest.mark.both_databases
async def test_a_cut_off_backup_changes_nothing(
    full: RegistryApi, made: Made, database_kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup.gz"
    await full.database.read(lambda transaction: back_up(transaction, file))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    target = await made(database_kind)
    with pytest.raises(InvalidBackup):
        await back(target.database, file)
    assert not any((await everything(target.database)).values())


@pytest.mark.both_databases
async def test_rows_that_do_not_fit_change_nothing(
    full: RegistryApi, made: Made, database_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be whole and yet hold what no registry has written."""
    file = tmp_path / "backup.gz"
    read = all_rows.read

    def twice(transaction: Transaction, table: Any) -> Any:
        yield from read(transaction, table)
        if table.name == "leases":
            yield from read(transaction, table)

    monkeypatch.setattr(all_rows, "read", twice)
    await full.database.read(lambda transaction: back_up(transaction, file))
    monkeypatch.undo()
    target = await made(database_kind)
    with pytest.raises(InvalidBackup, match="leases"):
        await back(target.database, file)
    assert not any((await everything(target.database)).values())
