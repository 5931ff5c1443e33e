import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents, count_by_status, give_lease
from tests.support.heard import TalkingAgents
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.observed_facts import Observed
from lifesign.registry.request_handling.heard_agents import HeardAgents
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.sweep import Sweeper
from lifesign.storage.agents import agent_rows, commands, last_requests
from lifesign.storage.agents.commands import StoredCommand
from lifesign.storage.agents.last_requests import LastRequests
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.postgresql import PostgresqlDatabase
from lifesign.storage.engine.table_definitions import agents as agents_table
from lifesign.storage.engine.table_definitions import heartbeats
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log
from lifesign.storage.tasks import leases


async def _types(database: Database) -> list[str]:
    events = await database.read(lambda transaction: event_log.after(transaction, 0, limit=10_000))
    return [event.type.value for event in events]


async def _judge_times(database: Database) -> list[float | None]:
    def read(transaction: Transaction) -> list[float | None]:
        return list(transaction.connection.scalars(select(agents_table.c.assess_at_s)))

    return await database.read(read)


@pytest.fixture
async def slow_api(database: Database, clock: WoundClock) -> RegistryApi:
    """An API whose sweeps follow one another slowly enough to wind the clock for hours."""
    api = RegistryApi(database, clock, sweep_seconds=10)
    await api.add_keys()
    return api


async def _live(api: RegistryApi, seconds: float) -> None:
    """Let time pass, with a sweep every 10 s."""
    for _ in range(round(seconds / 10)):
        api.clock.advance(10)
        await api.registry.sweeper.sweep_once()


async def test_missed_heartbeats_make_unhealthy_and_dead_after_the_thresholds(api: RegistryApi) -> None:
    await api.register("agent-1")
    for wound_s, status in ((90.0, "active"), (0.1, "unhealthy"), (209.9, "unhealthy"), (0.1, "dead")):
        api.clock.advance(wound_s)
        await api.sweep()
        assert (await api.record("agent-1"))["status"] == status
    assert (await api.lifecycle("agent-1"))[1:] == [
        ("active", "unhealthy", "heartbeat_timeout"),
        ("unhealthy", "dead", "heartbeat_timeout"),
    ]


async def test_agent_that_sends_heartbeats_is_postponed_without_an_event(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    for _ in range(8):
        api.clock.advance(30)
        await api.send_heartbeat("agent-1", key)
        await api.sweep()
    assert (await api.record("agent-1"))["status"] == "active"
    assert len(await api.lifecycle("agent-1")) == 1
    assert await _judge_times(api.database) == [api.clock.at_s - 60 + 90]


async def test_long_silence_found_by_one_sweep_makes_two_transitions(api: RegistryApi) -> None:
    await api.register("agent-1")
    api.clock.advance(301)
    await api.sweep()
    assert [step[1] for step in await api.lifecycle("agent-1")] == ["active", "unhealthy", "dead"]


async def test_leases_of_a_dead_agent_expire_after_its_event(api: RegistryApi) -> None:
    await api.register("agent-1")
    await give_lease(api.database, "agent-1", "task:t1")
    api.clock.advance(301)
    await api.sweep()
    claim = await api.database.read(lambda transaction: leases.find(transaction, "task:t1"))
    assert claim is not None
    assert (claim.end_reason, claim.ended_at_s) == ("agent_dead", api.clock.at_s)
    types = await _types(api.database)
    assert types[-3:] == ["agent.lifecycle", "agent.lifecycle", "lease.expired"]


@pytest.mark.both_databases
async def test_death_of_a_coordinator_is_reported(api: RegistryApi) -> None:
    await api.register("lead", role_id="leaders", capabilities=["coordinator"])
    await api.register("worker", capabilities=["translation"])
    api.clock.advance(301)
    await api.sweep()
    events = await api.database.read(lambda transaction: event_log.after(transaction, 0, limit=100))
    found = [event.payload for event in events if event.type == "coordinator.lost"]
    assert [(payload["agent_id"], payload["role_id"]) for payload in found if payload] == [
        ("lead", "leaders")
    ]


@pytest.mark.both_databases
async def test_draining_agent_without_leases_is_deregistered(database: Database, clock: WoundClock) -> None:
    now_s = clock.at_s
    await add_agents(
        database,
        1,
        status="draining",
        reason="drain_initiated",
        drain_deadline_s=now_s + 60,
        assess_at_s=now_s,
    )
    await _sweeper(database, clock).sweep_once()
    assert await count_by_status(database) == {"deregistered": 1}


@pytest.mark.both_databases
async def test_drain_timeout_with_leases_is_death_with_a_warning(
    database: Database, clock: WoundClock
) -> None:
    deadline_s = clock.at_s + 60
    await add_agents(
        database,
        1,
        status="draining",
        reason="drain_initiated",
        drain_deadline_s=deadline_s,
        assess_at_s=deadline_s,
    )
    await give_lease(database, "agent-0", "task:t1")
    clock.advance(60)
    await _sweeper(database, clock).sweep_once()
    assert await count_by_status(database) == {"dead": 1}
    assert await _types(database) == ["agent.lifecycle", "agent.drain_warning", "lease.expired"]


@pytest.mark.both_databases
async def test_expired_lease_ends_without_a_change_of_its_holder(
    database: Database, clock: WoundClock
) -> None:
    await add_agents(database, 1)
    await give_lease(database, "agent-0", "task:t1", ttl_s=10)

    def name_task(transaction: Transaction) -> None:
        transaction.connection.execute(update(heartbeats).values(tasks='["t1"]'))

    await database.write(name_task)
    sweeper = _sweeper(database, clock)
    clock.advance(9.9)
    await sweeper.sweep_once()
    assert await _types(database) == []
    clock.advance(0.1)
    await sweeper.sweep_once()
    await sweeper.sweep_once()
    assert await _types(database) == ["lease.expired"]
    assert await count_by_status(database) == {"active": 1}
    tasks = await database.read(lambda transaction: transaction.connection.scalar(select(heartbeats.c.tasks)))
    assert tasks is None


@pytest.mark.both_databases
async def test_expired_command_is_removed_with_an_event(database: Database, clock: WoundClock) -> None:
    await add_agents(database, 1)
    now_s = clock.at_s
    command = StoredCommand(
        id="command_1",
        agent=1,
        command="drain",
        reason=None,
        drain_timeout_s=None,
        created_at_s=now_s,
        expires_at_s=now_s + 1,
    )
    await database.write(lambda transaction: commands.add(transaction, command))
    sweeper = _sweeper(database, clock)
    clock.advance(1)
    await sweeper.sweep_once()
    await sweeper.sweep_once()
    assert await _types(database) == ["agent.command_expired"]


async def test_all_due_agents_are_processed_in_several_transactions(
    database: Database, clock: WoundClock, monkeypatch: Any
) -> None:
    monkeypatch.setattr("lifesign.registry.sweep.CHUNK", 3)
    await add_agents(database, 10)
    clock.advance(91)
    await _sweeper(database, clock).sweep_once()
    assert await count_by_status(database) == {"unhealthy": 10}
    assert await _types(database) == ["agent.lifecycle"] * 10


async def test_agent_within_its_interval_is_visited_once_per_sweep(
    database: Database, clock: WoundClock, monkeypatch: Any
) -> None:
    monkeypatch.setattr("lifesign.registry.sweep.CHUNK", 2)
    await add_agents(database, 5)
    clock.advance(90)
    await _sweeper(database, clock).sweep_once()
    due_s = [at_s for at_s in await _judge_times(database) if at_s is not None and at_s <= clock.at_s]
    assert due_s == []
    clock.advance(0.001)
    await _sweeper(database, clock).sweep_once()
    assert await count_by_status(database) == {"unhealthy": 5}


async def test_simultaneous_silence_of_all_takes_no_agent_down_during_the_suspension(
    slow_api: RegistryApi,
) -> None:
    key = (await slow_api.register("survivor"))["agent_key"]
    await add_agents(slow_api.database, 30)
    slow_api.clock.advance(91)
    await slow_api.sweep()
    assert await count_by_status(slow_api.database) == {"active": 31}
    for _ in range(29):
        await _live(slow_api, 30)
        await slow_api.send_heartbeat("survivor", key)
    assert await count_by_status(slow_api.database) == {"active": 31}
    await _live(slow_api, 60)
    await slow_api.send_heartbeat("survivor", key)
    counts = await count_by_status(slow_api.database)
    assert counts == {"active": 1, "unhealthy": 30}
    types = await _types(slow_api.database)
    assert types.count("monitor.suspended") == types.count("monitor.resuming") == 1
    assert "monitor.downtime" not in types
    for _ in range(10):
        await _live(slow_api, 30)
        await slow_api.send_heartbeat("survivor", key)
    assert await count_by_status(slow_api.database) == {"active": 1, "dead": 30}
    types = await _types(slow_api.database)
    assert [name for name in types if name.startswith("monitor.")] == [
        "monitor.suspended", "monitor.resuming", "monitor.normal",
    ]  # fmt: skip


@pytest.mark.parametrize("beats", [0, 1])
async def test_enrolling_key_cannot_suspend_verdicts(slow_api: RegistryApi, beats: int) -> None:
    """A loop registers agents that send no heartbeat, or one: the death of a victim is still noticed."""
    quick = {"interval_seconds": 1, "unhealthy_after_seconds": 3, "dead_after_seconds": 6}
    await add_agents(slow_api.database, 1, "victim")
    for number in range(40):
        body = {"agent_id": f"sybil-{number}", "heartbeat_config": quick}
        answer = await slow_api.ask("POST", AGENTS, body, key=Role.ENROLL)
        assert answer.status == 201
        slow_api.clock.advance(0.01)
        for _ in range(beats):
            await slow_api.send_heartbeat(f"sybil-{number}", answer.json()["agent_key"])
    await _live(slow_api, 100)
    assert (await slow_api.record("victim-0"))["status"] == "unhealthy"
    assert not [name for name in await _types(slow_api.database) if name.startswith("monitor.")]


@pytest.mark.both_databases
async def test_new_agent_is_suspended_with_the_others(slow_api: RegistryApi) -> None:
    await add_agents(slow_api.database, 30)
    await slow_api.register("newcomer")
    slow_api.clock.advance(91)
    await slow_api.sweep()
    await _live(slow_api, 60)
    assert await count_by_status(slow_api.database) == {"active": 31}
    monitor = (await slow_api.ask("GET", "/api/v1/monitor")).json()
    assert {name: track["exits"] for name, track in monitor["tracks"].items()} == {
        "heartbeat": 30,
        "probe": 0,
    }


async def test_suspended_agents_that_answer_again_never_go_down(slow_api: RegistryApi) -> None:
    names = await add_agents(slow_api.database, 30)
    keys = [await slow_api.add_agent_key(name) for name in names]
    slow_api.clock.advance(91)
    await slow_api.sweep()
    for _ in range(8):
        for name, key in zip(names, keys, strict=True):
            assert (await slow_api.send_heartbeat(name, key)).json()["agent_status"] == "active"
        await _live(slow_api, 30)
    types = await _types(slow_api.database)
    assert types == ["monitor.suspended", "monitor.resuming"]
    held = (await slow_api.events(type="monitor.resuming"))[0]
    assert held["payload"]["cause"] == "mass_exit_over"


# Missed heartbeats have witnesses.


async def test_two_silent_agents_without_witness_are_suspended_up_to_the_limit(
    slow_api: RegistryApi,
) -> None:
    """As if the network to the registry were cut: no request of any agent arrives."""
    names = await add_agents(slow_api.database, 2)
    keys = [await slow_api.add_agent_key(name) for name in names]
    await _live(slow_api, 600)
    assert await count_by_status(slow_api.database) == {"active": 2}
    (held,) = [event["payload"] for event in await slow_api.events(type="monitor.suspended")]
    assert (held["track"], held["cause"]) == ("heartbeat", "mass_exit")
    assert (held["exits"], held["unwitnessed"], held["limit"]) == (2, 2, 20)
    monitor = (await slow_api.ask("GET", "/api/v1/monitor")).json()
    assert (monitor["state"], monitor["tracks"]["heartbeat"]["unwitnessed"]) == ("suspended", 2)
    assert monitor["tracks"]["probe"]["state"] == "normal"
    # The network works again: both answer, and no agent goes down.
    for _ in range(10):
        for name, key in zip(names, keys, strict=True):
            await slow_api.send_heartbeat(name, key)
        await _live(slow_api, 30)
    assert await count_by_status(slow_api.database) == {"active": 2}
    assert [event["payload"]["cause"] for event in await slow_api.events(type="monitor.resuming")] == [
        "mass_exit_over"
    ]


@pytest.mark.both_databases
@pytest.mark.parametrize(("beats", "statuses"), [(4, {"active": 2}), (6, {"active": 1, "unhealthy": 1})])
async def test_missed_heartbeats_are_suspended_if_the_network_fails_for_one_agent_after_the_other(
    slow_api: RegistryApi, beats: int, statuses: dict[str, int]
) -> None:
    """An agent whose heartbeat is only late is a witness against the other."""
    await add_agents(slow_api.database, 2)
    key = await slow_api.add_agent_key("agent-1")
    for _ in range(beats):
        await _live(slow_api, 10)
        await slow_api.send_heartbeat("agent-1", key)
    slow_api.clock.advance(91 - 10 * beats)
    await slow_api.sweep()
    assert await count_by_status(slow_api.database) == statuses


async def test_request_time_in_the_future_does_not_confirm_a_missed_heartbeat(slow_api: RegistryApi) -> None:
    """A process that ended stored it before the clock was set back."""
    await add_agents(slow_api.database, 2)
    await slow_api.database.write(
        lambda transaction: last_requests.store(
            transaction, "ended", LastRequests(transaction.now_s + 86_400, None)
        )
    )
    await _live(slow_api, 600)
    assert await count_by_status(slow_api.database) == {"active": 2}


async def test_silent_agents_go_down_after_the_longest_suspension(slow_api: RegistryApi) -> None:
    await add_agents(slow_api.database, 2)
    await _live(slow_api, 100 + 900 + 90)
    assert await count_by_status(slow_api.database) == {"unhealthy": 2}
    (ended,) = await slow_api.events(type="monitor.resuming")
    assert ended["payload"]["cause"] == "max_suspension"


async def test_single_agent_has_no_mass_exit(slow_api: RegistryApi) -> None:
    await add_agents(slow_api.database, 1)
    await _live(slow_api, 100)
    assert await count_by_status(slow_api.database) == {"unhealthy": 1}


@pytest.mark.parametrize("request_of", ["heartbeat", "lease", "record"])
async def test_request_of_another_agent_confirms_a_missed_heartbeat(
    slow_api: RegistryApi, request_of: str
) -> None:
    await add_agents(slow_api.database, 2)
    key = await slow_api.add_agent_key("agent-1")
    for _ in range(10):
        await _live(slow_api, 10)
        if request_of == "heartbeat":
            await slow_api.send_heartbeat("agent-1", key)
        elif request_of == "lease":
            await slow_api.ask("POST", "/api/v1/leases", {"resource": "a"}, key=key)
            await slow_api.ask("POST", "/api/v1/leases", {"resource": f"b{slow_api.clock.at_s}"}, key=key)
        else:
            await slow_api.ask("GET", f"{AGENTS}/agent-1", key=key)
    await _live(slow_api, 10)
    assert (await slow_api.record("agent-0"))["status"] == "unhealthy"
    assert await slow_api.events(type="monitor.suspended") == []


async def test_missed_heartbeats_are_suspended_if_connections_were_refused(
    slow_api: RegistryApi,
) -> None:
    """Agents that open a connection for each heartbeat are refused; one that keeps its connection is not."""
    await add_agents(slow_api.database, 2)
    key = await slow_api.add_agent_key("agent-1")
    for _ in range(12):
        await _live(slow_api, 10)
        slow_api.registry.heard.note_refusal()
        await slow_api.send_heartbeat("agent-1", key)
    assert await count_by_status(slow_api.database) == {"active": 2}
    (suspended,) = await slow_api.events(type="monitor.suspended")
    assert suspended["payload"]["unwitnessed"] == 1
    for _ in range(100):
        await slow_api.send_heartbeat("agent-1", key)
        await _live(slow_api, 10)
    assert await count_by_status(slow_api.database) == {"active": 1, "unhealthy": 1}


async def test_missed_heartbeats_are_suspended_if_heartbeats_could_not_be_stored(
    slow_api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that is stopped may lock the rows of agents; reads are answered meanwhile."""

    def fail(*_: object) -> None:
        raise StoreUnavailable("on purpose")

    await add_agents(slow_api.database, 2)
    key = await slow_api.add_agent_key("agent-1")
    monkeypatch.setattr(slow_api.registry.heartbeats.groups, "_function", fail)
    for _ in range(12):
        await _live(slow_api, 10)
        refused = await slow_api.send_heartbeat("agent-1", key)
        assert refused.status == 503
        await slow_api.ask("GET", f"{AGENTS}/agent-1", key=key)
    assert await count_by_status(slow_api.database) == {"active": 2}


async def test_refusal_is_stored_after_a_commit_that_failed(
    database: Database, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = HeardAgents(clock.now_s)
    sweeper = Sweeper(database, RegistrySettings.read(), clock.now_s, heard=heard)
    write = database.write

    async def roll_back(function: Callable[[Transaction], object]) -> object:
        def fail(transaction: Transaction) -> object:
            function(transaction)
            raise StoreUnavailable("on purpose")

        return await write(fail)

    heard.note_refusal()
    with monkeypatch.context() as failing:
        failing.setattr(database, "write", roll_back)
        with pytest.raises(StoreUnavailable):
            await sweeper.sweep_once()
    clock.advance(1)
    await sweeper.sweep_once()
    stored = await database.read(last_requests.last)
    assert stored.refused_at_s == clock.at_s - 1


@pytest.mark.parametrize("key", [Role.ADMIN, Role.READER, "ahk_" + "x" * 43])
async def test_request_with_a_key_of_another_role_does_not_confirm_a_missed_heartbeat(
    slow_api: RegistryApi, key: Role | str
) -> None:
    await add_agents(slow_api.database, 2)
    for _ in range(10):
        await _live(slow_api, 10)
        await slow_api.ask("GET", f"{AGENTS}/agent-1", key=key)
    assert await count_by_status(slow_api.database) == {"active": 2}


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "unhealthy", "reason": "heartbeat_timeout", "unhealthy_after_s": 60.0},
        {"maintenance_until_s": 4e9},
        {"monitoring": "probe"},
        {"registered_at_s": 1_763_640_000.0, "status_since_s": 1_763_640_000.0},
        {"interval_s": 3_600.0, "unhealthy_after_s": 7_200.0, "dead_after_s": 14_400.0},
    ],
    ids=["is known to be silent", "in maintenance", "sends none", "is not proven", "is not due"],
)
async def test_agent_without_a_due_heartbeat_is_no_companion(
    slow_api: RegistryApi, columns: dict[str, Any]
) -> None:
    await add_agents(slow_api.database, 1, "victim")
    await add_agents(slow_api.database, 1, "other", **columns)
    await _live(slow_api, 100)
    assert (await slow_api.record("victim-0"))["status"] == "unhealthy"


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "unhealthy", "reason": "health_reported_unhealthy", "status_since_s": 1_763_640_000.0},
        {"status": "draining", "reason": "drain_initiated", "drain_deadline_s": 4e9},
    ],
    ids=["unhealthy by its document", "draining"],
)
async def test_agent_whose_heartbeats_were_not_missed_before_is_a_companion(
    slow_api: RegistryApi, columns: dict[str, Any]
) -> None:
    await add_agents(slow_api.database, 1, "victim")
    await add_agents(slow_api.database, 1, "other", **columns)
    await give_lease(slow_api.database, "other-0", "a drain waits for it")
    await _live(slow_api, 100)
    assert (await slow_api.record("victim-0"))["status"] == "active"


@pytest.mark.both_databases
async def test_request_before_the_first_heartbeat_of_a_shorter_interval_confirms_nothing(
    slow_api: RegistryApi,
) -> None:
    patient = {"unhealthy_after_s": 600, "dead_after_s": 1200}
    await add_agents(slow_api.database, 1, "victim", interval_s=300, **patient)
    await add_agents(slow_api.database, 1, "other", **patient)
    key = await slow_api.add_agent_key("victim-0")
    await _live(slow_api, 150)
    config = {"interval_seconds": 10, "unhealthy_after_seconds": 20, "dead_after_seconds": 40}
    path, body = f"{AGENTS}/victim-0", {"heartbeat_config": config}
    answer = await slow_api.ask("PATCH", path, body, key=key, headers={"if-match": "*"})
    assert answer.status == 200
    await _live(slow_api, 60)
    assert (await slow_api.record("victim-0"))["status"] == "active"
    assert len(await slow_api.events(type="monitor.suspended")) == 1


async def test_heartbeats_of_all_processes_reach_the_sweep(database: Database, clock: WoundClock) -> None:
    await add_agents(database, 2)
    sweeping = Sweeper(database, RegistrySettings.read(sweep_seconds=10), clock.now_s)
    heard = HeardAgents(clock.now_s)
    other = Sweeper(database, RegistrySettings.read(sweep_seconds=10), clock.now_s, heard=heard)
    for _ in range(9):
        clock.advance(10)
        await sweeping.sweep_once()
    # A request of agent-1, which is no heartbeat, reaches the other process alone.
    heard.note()
    await other.sweep_once()
    clock.advance(2)
    await sweeping.sweep_once()
    assert await count_by_status(database) == {"unhealthy": 2}


@pytest.mark.both_databases
async def test_tracks_are_suspended_and_resumed_separately(slow_api: RegistryApi) -> None:
    await add_agents(slow_api.database, 30, "heartbeats")
    await add_agents(slow_api.database, 1, "lonely", monitoring="probe")
    failing = Observed(
        last_observed_at_s=slow_api.clock.at_s + 91,
        measured_at_s=slow_api.clock.at_s + 91,
        evidence_until_s=slow_api.clock.at_s + 1e6,
        results_until_s=slow_api.clock.at_s + 1e6,
        failures_in_row=2,
        silence_s=901,
    )
    row = agent_rows.observed_row(31, failing)
    await slow_api.database.write(lambda transaction: agent_rows.set_observed(transaction, [row]))
    await _live(slow_api, 100)
    assert await count_by_status(slow_api.database) == {"active": 30, "unhealthy": 1}
    assert (await slow_api.record("lonely-0"))["status"] == "unhealthy"
    path = "/api/v1/monitor/release"
    released = await slow_api.ask("POST", f"{path}?track=probe")
    assert released.json()["tracks"]["heartbeat"]["state"] == "suspended"
    released = await slow_api.ask("POST", f"{path}?track=heartbeat")
    assert released.json()["tracks"]["heartbeat"]["state"] == "resuming"


@pytest.mark.both_databases
async def test_drain_timeout_waits_while_verdicts_about_heartbeats_are_suspended(
    slow_api: RegistryApi,
) -> None:
    names = ("drainer", "second", "third")
    keys = {name: (await slow_api.register(name, drain_timeout_seconds=200))["agent_key"] for name in names}
    lease = {"resource": "r:1", "ttl_seconds": 3_600}
    assert (await slow_api.ask("POST", "/api/v1/leases", lease, key=keys["drainer"])).status == 201

    async def send_heartbeats() -> None:
        for name, key in keys.items():
            await slow_api.send_heartbeat(name, key)

    for _ in range(12):
        await _live(slow_api, 30)
        await send_heartbeats()
    path, draining = f"{AGENTS}/drainer/status", {"status": "draining"}
    await slow_api.ask("PATCH", path, draining, key=keys["drainer"], headers={"if-match": "*"})
    # The network to the registry is cut.
    await _live(slow_api, 600)
    assert (await slow_api.ask("GET", "/api/v1/monitor")).json()["state"] == "suspended"
    assert await count_by_status(slow_api.database) == {"active": 2, "draining": 1}
    while (await slow_api.ask("GET", "/api/v1/monitor")).json()["state"] == "suspended":
        await send_heartbeats()
        await _live(slow_api, 30)
    # The drain gets the time of the suspension, and no more.
    await _live(slow_api, 30)
    assert (await slow_api.record("drainer"))["status"] == "draining"
    for _ in range(4):
        await send_heartbeats()
        await _live(slow_api, 30)
    record = await slow_api.record("drainer")
    assert (record["status"], record["reason"]) == ("dead", "drain_timeout")


async def test_drain_completes_while_verdicts_are_suspended(api: RegistryApi) -> None:
    await add_agents(api.database, 30)
    key = (await api.register("drainer"))["agent_key"]
    api.clock.advance(91)
    await api.sweep()
    headers = {"if-match": "*"}
    await api.ask("PATCH", f"{AGENTS}/drainer/status", {"status": "draining"}, key=key, headers=headers)
    await api.sweep()
    assert (await api.record("drainer"))["status"] == "deregistered"


@pytest.mark.both_databases
async def test_sweep_skips_an_invalid_record_and_processes_the_others(
    database: Database, clock: WoundClock, caplog: Any
) -> None:
    await add_agents(database, 5)

    def spoil(transaction: Transaction) -> None:
        broken = update(agents_table).where(agents_table.c.agent_id == "agent-2")
        transaction.connection.execute(broken.values(reason="nonsense"))

    await database.write(spoil)
    clock.advance(91)
    sweeper = _sweeper(database, clock)
    await sweeper.sweep_once()
    assert await count_by_status(database) == {"active": 1, "unhealthy": 4}
    (failure,) = (record for record in caplog.records if record.exc_info)
    assert failure.levelname == "ERROR"


@pytest.mark.both_databases
async def test_a_sweep_that_fails_is_followed_by_the_next(
    database: Database, clock: WoundClock, monkeypatch: Any, caplog: Any
) -> None:
    await add_agents(database, 1)
    clock.advance(91)
    settings = RegistrySettings.read(sweep_seconds=0.05)
    sweeper = Sweeper(database, settings, clock.now_s)
    away = StoreUnavailable("it is full")
    whole, failures = sweeper._begin, [LookupError("on purpose"), LookupError("again"), away, away]

    def fail_at_first(transaction: Transaction) -> Any:
        if failures:
            raise failures.pop()
        return whole(transaction)

    monkeypatch.setattr(sweeper, "_begin", fail_at_first)
    running = asyncio.create_task(sweeper.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await count_by_status(database) != {"unhealthy": 1}:  # noqa: ASYNC110 - the database has no event for it
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("next one follows") == 2
    # A state that may last for hours is reported once, and again at its end.
    changes = [str(record.args) for record in caplog.records if record.getMessage().startswith("changes")]
    assert (caplog.text.count("it is full"), len(changes)) == (1, 2)
    assert ["it is full" in args for args in changes] == [True, False]


async def test_server_that_stops_sweeps_no_more(database: Database, clock: WoundClock) -> None:
    await add_agents(database, 1)
    clock.advance(91)
    sweeper = Sweeper(database, RegistrySettings.read(sweep_seconds=0.05), clock.now_s)
    stops = asyncio.Event()
    stops.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await sweeper.run(stops)
    assert await count_by_status(database) == {"active": 1}


@pytest.mark.both_databases
async def test_sweep_claimed_by_another_process_is_skipped_until_that_stops(
    database: Database, clock: WoundClock
) -> None:
    await add_agents(database, 1)
    clock.advance(91)
    first, second = _sweeper(database, clock), _sweeper(database, clock)
    assert await database.write(first._begin) is not None
    await second.sweep_once()
    assert await count_by_status(database) == {"active": 1}
    clock.advance(5.1)
    await second.sweep_once()
    # Later writes of the first holder do not count.
    lost = await database.write(first._locked)
    assert lost is None


async def test_duration_of_a_sweep_does_not_count_as_missed_heartbeats(
    database: Database, clock: WoundClock
) -> None:
    await add_agents(database, 2)
    settings = RegistrySettings.read(sweep_seconds=5)
    sweeper = Sweeper(database, settings, clock.now_s, heard=TalkingAgents(clock.now_s))
    begun = await database.write(sweeper._begin)
    assert begun is not None
    # Simulates a frozen database or process.
    clock.advance(3_600)
    assert await database.write(lambda transaction: sweeper._assess_some(transaction, begun, 10)) is None
    await sweeper.sweep_once()
    assert await count_by_status(database) == {"active": 2}
    for _ in range(19):
        clock.advance(5)
        await sweeper.sweep_once()
    assert await count_by_status(database) == {"unhealthy": 2}


@pytest.mark.postgresql_only
async def test_concurrent_sweepers_make_one_transition_and_one_event_per_agent(
    database: Database, clock: WoundClock
) -> None:
    # On SQLite there is one writer: several processes are in tests/journeys.
    assert isinstance(database, PostgresqlDatabase)
    await add_agents(database, 15)
    await give_lease(database, "agent-3", "task:t1")
    other = open_database(
        database.url.set(drivername="postgresql").render_as_string(hide_password=False), clock=clock.now_s
    )
    try:
        clock.advance(301)
        sweepers = [_sweeper(each, clock) for each in (database, other) for _ in range(4)]
        await asyncio.gather(*(sweeper.sweep_once() for sweeper in sweepers))
    finally:
        await other.close()
    assert await count_by_status(database) == {"dead": 15}
    types = await _types(database)
    assert (types.count("agent.lifecycle"), types.count("lease.expired"), len(types)) == (30, 1, 31)


@pytest.mark.both_databases
async def test_heartbeat_concurrent_with_a_sweep_is_accepted_or_finds_the_agent_dead(
    database: Database, clock: WoundClock
) -> None:
    api = RegistryApi(database, clock)
    await api.add_keys()
    names = await add_agents(database, 15)
    keys = [await api.add_agent_key(name) for name in names]
    clock.advance(301)
    sweeping = asyncio.create_task(api.sweep())
    beating = [api.send_heartbeat(name, key) for name, key in zip(names, keys, strict=True)]
    answers = await asyncio.gather(*beating)
    await sweeping
    for name, answer in zip(names, answers, strict=True):
        assert answer.status in {200, 410}
        status = (await api.record(name))["status"]
        assert status == ("active" if answer.status == 200 else "dead")


async def test_sweep_without_changes_stores_its_time(database: Database, clock: WoundClock) -> None:
    await _sweeper(database, clock).sweep_once()
    row = await database.read(registry_row.find)
    assert row is not None
    assert row.swept_at_s == clock.at_s
    assert await _types(database) == []


def _sweeper(database: Database, clock: WoundClock) -> Sweeper:
    return Sweeper(database, RegistrySettings.read(), clock.now_s, heard=TalkingAgents(clock.now_s))
