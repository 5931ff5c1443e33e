import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select, text
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents, count_by_status, give_lease

from lifesign.domain.lifecycle.heartbeat_timeout import ExcludedSpan
from lifesign.domain.lifecycle.observed_facts import Observed, fold
from lifesign.domain.models.base import moment
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.probing.result_receipt import receipt_of
from lifesign.domain.probing.shard_eligibility import Idleness
from lifesign.domain.targets.target import target_id
from lifesign.domain.tasks.lease import Claim
from lifesign.registry.probing.reachability_witnesses import news_for_probers
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.status_changes.monitor_row import confirmed_in, confirmed_json, excluded_time_in
from lifesign.registry.status_changes.sweep_gap import move_some_agents_back
from lifesign.registry.sweep import Sweeper
from lifesign.storage.agents import agent_rows, commands, heartbeats
from lifesign.storage.agents.commands import StoredCommand
from lifesign.storage.agents.heartbeats import StoredHeartbeat
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.table_definitions import agents as agents_table
from lifesign.storage.engine.table_definitions import targets as targets_table
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log, webhooks
from lifesign.storage.events.webhooks import StoredWebhook
from lifesign.storage.probing import liveness, probe_results, prober_result_counts
from lifesign.storage.probing.liveness import LiveTarget
from lifesign.storage.probing.probe_results import ProbeResultRow
from lifesign.storage.probing.prober_result_counts import Reported
from lifesign.storage.targets import target_rows
from lifesign.storage.tasks import leases

HOUR_S = 3600.0
PERIOD_S = 4.0


class Machine:
    """A server process with a clock on the wall that can be set, and one that cannot."""

    def __init__(self, database: Database, clock: WoundClock) -> None:
        self.database = database
        self.clock = clock
        self._set_by_s = 0.0
        self.period_s = PERIOD_S
        self.sweeper = self.new_sweeper()

    def new_sweeper(self) -> Sweeper:
        return Sweeper(
            self.database,
            RegistrySettings.read(sweep_seconds=self.period_s),
            lambda: self.clock.at_s - self._set_by_s,
        )

    async def live(self, seconds: float, step_s: float = PERIOD_S) -> None:
        until_s = self.clock.at_s + seconds
        while self.clock.at_s < until_s:
            self.clock.advance(min(step_s, until_s - self.clock.at_s))
            await self.sweeper.sweep_once()

    async def live_for_sweeps(self, count: int) -> None:
        for _ in range(count):
            await self.live(self.period_s)

    def set_clock(self, by_s: float) -> None:
        self.clock.advance(by_s)
        self._set_by_s += by_s

    async def send_heartbeat(self, count: int) -> None:
        found = [
            StoredHeartbeat(number, self.clock.at_s, current_load=None, tasks=None, is_drifting=False)
            for number in range(1, count + 1)
        ]
        await self.database.write(lambda transaction: heartbeats.store(transaction, found))

    async def claim(self, resource: str) -> Claim:
        found = await self.database.read(lambda transaction: leases.find(transaction, resource))
        assert found is not None
        return found

    async def events(self) -> list[tuple[str, dict[str, object]]]:
        found = await self.database.read(lambda transaction: event_log.after(transaction, 0, limit=1000))
        return [(event.type.value, event.payload) for event in found]


@pytest.fixture
def machine(database: Database, clock: WoundClock) -> Machine:
    return Machine(database, clock)


async def test_downtime_of_the_registry_kills_no_agent(machine: Machine) -> None:
    await add_agents(machine.database, 30)
    await machine.live(5)
    machine.clock.advance(600)
    await machine.new_sweeper().sweep_once()
    await machine.live(80)
    assert await count_by_status(machine.database) == {"active": 30}
    assert [name for name, _ in await machine.events()] == ["monitor.downtime"]


async def test_restart_between_rare_sweeps_makes_no_agent_unhealthy(machine: Machine) -> None:
    """The stop lasts less than three sweeps, so that it has no event."""
    machine.period_s = 60.0
    machine.sweeper = machine.new_sweeper()
    await add_agents(machine.database, 1)
    await machine.live_for_sweeps(1)
    machine.clock.advance(170)
    machine.sweeper = machine.new_sweeper()
    await machine.sweeper.sweep_once()
    assert await count_by_status(machine.database) == {"active": 1}
    assert await machine.events() == []
    # The first sweep of the next process alone excludes the time since the last sweep.
    await machine.live_for_sweeps(1)
    assert await count_by_status(machine.database) == {"unhealthy": 1}


async def test_a_short_stall_is_excused_and_not_worth_an_event(machine: Machine) -> None:
    machine.sweeper = Sweeper(
        machine.database, RegistrySettings.read(sweep_seconds=0.5), lambda: machine.clock.at_s
    )
    await add_agents(machine.database, 1)
    await machine.live(80, step_s=0.5)
    for _ in range(3):
        machine.clock.advance(8)
        await machine.sweeper.sweep_once()
    await machine.live(9, step_s=0.5)
    assert await count_by_status(machine.database) == {"active": 1}
    await machine.live(2, step_s=0.5)
    assert await count_by_status(machine.database) == {"unhealthy": 1}
    assert "monitor.downtime" not in [name for name, _ in await machine.events()]


@pytest.mark.parametrize(("seconds", "events"), [(9.9, []), (10, ["monitor.downtime"])])
async def test_downtime_of_ten_seconds_is_worth_an_event(
    machine: Machine, seconds: float, events: list[str]
) -> None:
    machine.sweeper = Sweeper(
        machine.database, RegistrySettings.read(sweep_seconds=0.5), lambda: machine.clock.at_s
    )
    await machine.live(1, step_s=0.5)
    machine.clock.advance(seconds)
    await machine.sweeper.sweep_once()
    assert [name for name, _ in await machine.events()] == events


async def test_silence_of_an_agent_continues_after_downtime_of_the_registry(machine: Machine) -> None:
    await add_agents(machine.database, 1)
    await machine.live(5)
    machine.clock.advance(600)
    await machine.sweeper.sweep_once()
    await machine.live(84)
    assert await count_by_status(machine.database) == {"active": 1}
    await machine.live(2)
    assert await count_by_status(machine.database) == {"unhealthy": 1}


async def test_drain_deadline_is_extended_by_the_downtime(machine: Machine) -> None:
    deadline_s = machine.clock.at_s + 60
    await add_agents(
        machine.database,
        1,
        status="draining",
        reason="drain_initiated",
        drain_deadline_s=deadline_s,
        assess_at_s=deadline_s,
    )
    await give_lease(machine.database, "agent-0", "task:t1")
    await machine.live(30)
    machine.clock.advance(600)
    await machine.sweeper.sweep_once()
    await machine.live(28)
    assert await count_by_status(machine.database) == {"draining": 1}
    await machine.live(4)
    assert await count_by_status(machine.database) == {"dead": 1}


async def test_idle_agent_drained_during_downtime_leaves_with_the_next_sweep(
    machine: Machine,
) -> None:
    await machine.live(5)
    machine.clock.advance(30)
    now_s = machine.clock.at_s
    await add_agents(
        machine.database,
        1,
        status="draining",
        reason="drain_initiated",
        drain_deadline_s=now_s + 60,
        assess_at_s=now_s,
    )
    machine.clock.advance(30)
    await machine.sweeper.sweep_once()
    assert await count_by_status(machine.database) == {"deregistered": 1}


async def test_a_slow_sweep_is_no_downtime(machine: Machine) -> None:
    await add_agents(machine.database, 1)
    await machine.live(60, step_s=12.0)
    assert await machine.events() == []


@pytest.fixture
def slow_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose sweeps take 2 s after their last note, with half a second between them."""
    end_all_expired = Sweeper._end_all_expired

    async def end_slowly(sweeper: Sweeper, began_s: float) -> None:
        machine.clock.advance(2)
        await end_all_expired(sweeper, began_s)

    monkeypatch.setattr(Sweeper, "_end_all_expired", end_slowly)
    machine.period_s = 0.5
    machine.sweeper = machine.new_sweeper()
    return machine


async def test_sweeps_that_are_always_slow_are_no_downtime(slow_machine: Machine) -> None:
    await slow_machine.live_for_sweeps(7)
    await add_agents(slow_machine.database, 1)
    await slow_machine.live_for_sweeps(36)
    assert await count_by_status(slow_machine.database) == {"active": 1}
    await slow_machine.live_for_sweeps(2)
    assert await count_by_status(slow_machine.database) == {"unhealthy": 1}


async def test_stall_among_slow_sweeps_is_excluded(slow_machine: Machine) -> None:
    await slow_machine.live_for_sweeps(7)
    await add_agents(slow_machine.database, 1)
    slow_machine.clock.advance(200)
    await slow_machine.live_for_sweeps(1)
    assert await count_by_status(slow_machine.database) == {"active": 1}


async def test_registry_that_is_killed_within_a_slow_sweep_was_down_from_its_last_note_on(
    slow_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slow_machine.live_for_sweeps(7)
    await add_agents(slow_machine.database, 1)
    noted_s = slow_machine.clock.at_s + 0.5

    async def be_killed(_sweeper: Sweeper, _began_s: float) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(Sweeper, "_end_all_expired", be_killed)
        with pytest.raises(asyncio.CancelledError):
            await slow_machine.live_for_sweeps(1)
    slow_machine.clock.advance(200)
    slow_machine.sweeper = slow_machine.new_sweeper()
    await slow_machine.sweeper.sweep_once()
    row = await slow_machine.database.read(registry_row.find)
    assert row is not None
    assert excluded_time_in(row).spans[-1] == ExcludedSpan(noted_s, noted_s + 200)
    assert await count_by_status(slow_machine.database) == {"active": 1}


async def test_many_short_stalls_hide_no_missed_heartbeats(machine: Machine) -> None:
    machine.period_s = 0.5
    machine.sweeper = machine.new_sweeper()
    for _ in range(40):
        machine.clock.advance(2)
        await machine.live(4, step_s=0.5)
    await add_agents(machine.database, 1)
    for _ in range(11):
        machine.clock.advance(2)
        await machine.live(6, step_s=0.5)
    assert await count_by_status(machine.database) == {"active": 1}
    for _ in range(7):
        machine.clock.advance(2)
        await machine.live(6, step_s=0.5)
    assert await count_by_status(machine.database) == {"unhealthy": 1}


async def test_clock_jump_ahead_kills_no_agent(machine: Machine) -> None:
    await add_agents(machine.database, 30)
    await give_lease(machine.database, "agent-0", "task:t1", ttl_s=100)
    await machine.live(5)
    machine.set_clock(HOUR_S)
    await machine.live(84)
    assert await count_by_status(machine.database) == {"active": 30}
    events = await machine.events()
    assert [name for name, _ in events] == ["monitor.clock_jump"]
    assert events[0][1] == {"jump_seconds": HOUR_S}
    await machine.live(3)
    assert await count_by_status(machine.database) == {"active": 30}, "a mass exit was not suspended"
    assert (await machine.events())[1][0] == "monitor.suspended"


async def test_a_lease_keeps_its_remaining_time_when_the_clock_jumps(machine: Machine) -> None:
    for jump_s in (HOUR_S, -HOUR_S):
        resource = f"task:t{jump_s:g}"
        await add_agents(machine.database, 1, prefix=f"holder{jump_s:g}")
        await give_lease(machine.database, f"holder{jump_s:g}-0", resource, ttl_s=50)
        await machine.live(10)
        machine.set_clock(jump_s)
        await machine.live(38)
        claim = await machine.claim(resource)
        assert claim.ended_at_s is None
        await machine.live(3)
        claim = await machine.claim(resource)
        assert claim.end_reason == "expired"


@pytest.mark.both_databases
async def test_lease_granted_between_a_jump_ahead_and_the_next_sweep_gains_no_time(machine: Machine) -> None:
    await add_agents(machine.database, 1, prefix="holder")
    await machine.live(8)
    await give_lease(machine.database, "holder-0", "task:old", ttl_s=50)
    old_s = (await machine.claim("task:old")).expires_at_s
    machine.set_clock(HOUR_S)
    await give_lease(machine.database, "holder-0", "task:new", ttl_s=50)
    new_s = (await machine.claim("task:new")).expires_at_s
    await machine.live(4)
    assert (await machine.claim("task:old")).expires_at_s == pytest.approx(old_s + HOUR_S, abs=0.01)
    assert (await machine.claim("task:new")).expires_at_s == new_s


@pytest.mark.both_databases
async def test_clock_that_jumps_ahead_during_a_sweep_ends_no_lease(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_agents(machine.database, 1, prefix="holder")
    await give_lease(machine.database, "holder-0", "task:t", ttl_s=50)
    await machine.live(8)
    judge_all = Sweeper._judge_all

    async def judge_late(*given: Any) -> Any:
        machine.set_clock(HOUR_S)
        return await judge_all(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Sweeper, "_judge_all", judge_late)
        await machine.live(4)
    assert (await machine.claim("task:t")).ended_at_s is None
    await machine.live(36)
    assert (await machine.claim("task:t")).ended_at_s is None
    await machine.live(8)
    assert (await machine.claim("task:t")).end_reason == "expired"


async def test_clock_setback_kills_no_agent_and_leaves_none_unwatched(machine: Machine) -> None:
    await add_agents(machine.database, 3)
    await machine.live(5)
    machine.set_clock(-HOUR_S)
    await machine.live(84)
    assert await count_by_status(machine.database) == {"active": 3}
    events = await machine.events()
    assert [name for name, _ in events] == ["monitor.clock_jump"]
    assert events[0][1] == {"jump_seconds": -HOUR_S}
    await machine.live(3)
    assert await count_by_status(machine.database) == {"unhealthy": 3}
    await machine.live(210)
    assert await count_by_status(machine.database) == {"dead": 3}


@pytest.mark.both_databases
async def test_heartbeat_after_clock_set_back_starts_monitoring(machine: Machine) -> None:
    await add_agents(machine.database, 3)
    await machine.live(5)
    machine.set_clock(-HOUR_S)
    await machine.send_heartbeat(3)
    await machine.live(5)
    await machine.send_heartbeat(3)
    await machine.live(89)
    assert await count_by_status(machine.database) == {"active": 3}
    await machine.live(4)
    assert await count_by_status(machine.database) == {"unhealthy": 3}


async def test_new_server_detects_an_earlier_clock_setback(machine: Machine) -> None:
    await add_agents(machine.database, 3)
    await machine.live(5)
    machine.set_clock(-HOUR_S)
    machine.sweeper = machine.new_sweeper()
    await machine.live(92)
    assert await count_by_status(machine.database) == {"unhealthy": 3}


@pytest.mark.both_databases
async def test_several_processes_report_one_clock_jump_once(machine: Machine) -> None:
    await add_agents(machine.database, 3)
    sweepers = [machine.new_sweeper() for _ in range(3)]
    for jump_s in (HOUR_S, -HOUR_S):
        for _ in range(3):
            for sweeper in sweepers:
                machine.clock.advance(0.2)
                await sweeper.sweep_once()
        machine.set_clock(jump_s)
    for sweeper in sweepers:
        machine.clock.advance(0.2)
        await sweeper.sweep_once()
    jumps = [payload["jump_seconds"] for name, payload in await machine.events()]
    assert jumps == pytest.approx([HOUR_S, -HOUR_S], abs=0.5)


async def test_excused_time_that_lies_ahead_is_forgotten_with_the_clock_set_back(machine: Machine) -> None:
    await add_agents(machine.database, 1)
    await machine.live(2)
    machine.set_clock(HOUR_S)
    await machine.live(2)
    machine.set_clock(-HOUR_S)
    await machine.live(93)
    assert await count_by_status(machine.database) == {"unhealthy": 1}


@pytest.mark.both_databases
async def test_observed_times_in_the_future_are_corrected_after_a_clock_setback(machine: Machine) -> None:
    await add_agents(machine.database, 1, monitoring="probe")
    seen = Observation(
        agent_id="agent-0",
        observed_at=moment(machine.clock.at_s),
        transport=LayerResult(result=ResultClass.OK),
    )
    now_s = machine.clock.at_s
    row = agent_rows.observed_row(1, fold(None, seen, receipt_of(now_s, 300, None), now_s))
    await machine.database.write(lambda transaction: agent_rows.set_observed(transaction, [row]))
    await machine.live(5)
    seen_at_s = machine.clock.at_s - 5
    machine.set_clock(-HOUR_S)
    await machine.live(1)
    stored = await machine.database.read(lambda transaction: agent_rows.find(transaction, "agent-0"))
    assert stored is not None
    assert stored.observed is not None
    assert Observed.from_json(stored.observed).last_liveness_signal_at_s == seen_at_s - HOUR_S
    assert stored.evidence.at_s == seen_at_s - HOUR_S
    assert stored.evidence.until_s == stored.evidence.results_until_s == seen_at_s - HOUR_S + 900


@pytest.mark.both_databases
async def test_webhook_is_due_at_the_same_distance_after_a_clock_setback(machine: Machine) -> None:
    now_s = machine.clock.at_s
    failing = StoredWebhook(
        id="webhook_1",
        url="https://hooks.example/",
        types=(),
        agent_id=None,
        secret="",
        created_by="",
        created_at_s=now_s,
        delivered_sequence=0,
        failures=1,
        failing_since_s=now_s,
        last_error="",
        next_try_at_s=now_s + 60,
        claimed_until_s=now_s + 60,
        is_disabled=False,
    )
    await machine.database.write(lambda transaction: webhooks.add(transaction, failing))
    await machine.live(2)
    machine.set_clock(-HOUR_S)
    await machine.live(2)
    (stored,) = await machine.database.read(lambda transaction: webhooks.listing(transaction, 2))
    times_s = [stored.failing_since_s, stored.next_try_at_s, stored.claimed_until_s]
    assert times_s == pytest.approx([now_s - HOUR_S, now_s - HOUR_S + 60, now_s - HOUR_S + 60], abs=1)


@pytest.mark.both_databases
async def test_target_results_in_the_future_are_corrected_after_a_clock_setback(machine: Machine) -> None:
    def store(transaction: Transaction) -> None:
        now_s, url = transaction.now_s, "https://agent.example/"
        target_rows.add(transaction, {target_id(url): url}, 1)
        left = ProbeResultRow(
            1, now_s, 1, 1, now_s + 900, now_s, now_s + 900, result="ok", result_since_s=now_s - HOUR_S
        )
        probe_results.store(transaction, [left])
        liveness.note(transaction, [LiveTarget(1, "public_ipv4", "192.0.2.1", now_s)], [])

    def read(transaction: Transaction) -> tuple[float, ...]:
        columns = (
            "observed_at_s, evidence_at_s, evidence_until_s, results_until_s, result_since_s, answered_at_s"
        )
        joined = (
            f"SELECT {columns} FROM probe_results JOIN liveness ON liveness.target = probe_results.target"  # noqa: S608
        )
        return tuple(transaction.connection.execute(text(joined)).one())

    await machine.live(1)
    await machine.database.write(store)
    before = await machine.database.read(read)
    await machine.live(5)
    machine.set_clock(-HOUR_S)
    await machine.live(1)
    moved = [-HOUR_S, -HOUR_S, -HOUR_S, -HOUR_S, 0, -HOUR_S]
    after = await machine.database.read(read)
    assert after == tuple(at_s + by_s for at_s, by_s in zip(before, moved, strict=True))


@pytest.mark.both_databases
async def test_outage_confirmations_in_the_future_are_corrected_after_a_clock_setback(
    machine: Machine,
) -> None:
    def confirm(transaction: Transaction) -> None:
        url = "https://agent.example/"
        target_rows.add(transaction, {target_id(url): url}, target_rows.next_version(transaction))
        target_rows.confirm(transaction, [1], transaction.now_s, target_rows.next_version(transaction))
        row = registry_row.lock(transaction)
        text = confirmed_json({"public_ipv4": transaction.now_s})
        registry_row.store(transaction, replace(row, confirmed=text))

    def read(transaction: Transaction) -> tuple[float, float, int]:
        row = registry_row.find(transaction)
        assert row is not None
        at_s, version = transaction.connection.execute(
            select(targets_table.c.confirmed_at_s, targets_table.c.version)
        ).one()
        return confirmed_in(row)["public_ipv4"], at_s, version

    await machine.live(1)
    confirmed_at_s = machine.clock.at_s
    await machine.database.write(confirm)
    assert await machine.database.read(read) == (confirmed_at_s, confirmed_at_s, 2)
    await machine.live(5)
    machine.set_clock(-HOUR_S)
    row = await machine.database.read(registry_row.find)
    # No prober learns of it before it is moved.
    assert news_for_probers(row, "key:k", machine.clock.at_s).confirmed_classes == {}
    await machine.live(1)
    moved_s = confirmed_at_s - HOUR_S
    assert await machine.database.read(read) == (moved_s, moved_s, 3)
    row = await machine.database.read(registry_row.find)
    news = news_for_probers(row, "key:k", machine.clock.at_s)
    assert news.confirmed_classes == {"public_ipv4": moment(moved_s)}


@pytest.mark.both_databases
@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_times_of_prober_reports_are_corrected_when_the_clock_jumps(
    machine: Machine, jump_s: float
) -> None:
    def store(transaction: Transaction) -> None:
        now_s = transaction.now_s
        prober_result_counts.add(transaction, "key:k/w", now_s, Reported(answered=1))
        idle = Idleness(at_s=now_s, idle_s=5.0, bar_s=600.0, barred_until_s=now_s + 600.0)
        prober_result_counts.note_idle(transaction, "key:k/w", idle)

    await machine.live(1)
    noted_at_s = machine.clock.at_s
    await machine.database.write(store)
    await machine.live(5)
    machine.set_clock(jump_s)
    await machine.live(1)
    moved_s = pytest.approx(noted_at_s + jump_s, abs=0.01)
    (stored,) = await machine.database.read(prober_result_counts.all_of)
    assert stored.reported_at_s == moved_s
    assert stored.idle is not None
    assert stored.idle.at_s == moved_s
    assert stored.idle.barred_until_s == pytest.approx(noted_at_s + jump_s + 600.0, abs=0.01)
    assert (stored.idle.idle_s, stored.idle.bar_s) == (5.0, 600.0)


@pytest.mark.both_databases
async def test_interrupted_clock_correction_is_finished_by_the_next_sweep(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.registry.sweep.CHUNK", 2)
    await add_agents(machine.database, 5)
    await machine.live(5)
    machine.set_clock(-HOUR_S)
    await machine.database.write(
        lambda transaction: move_some_agents_back(transaction, -HOUR_S, after=0, limit=2)
    )
    machine.sweeper = machine.new_sweeper()
    await machine.live(1)

    def read(transaction: Transaction) -> list[float]:
        return list(transaction.connection.scalars(select(agents_table.c.assess_at_s)))

    expected_s = machine.clock.at_s - 6 + 90
    assert await machine.database.read(read) == pytest.approx([expected_s] * 5, abs=1.1)


def _ends(transaction: Transaction) -> dict[str, float | None]:
    columns = agents_table.c
    rows = transaction.connection.execute(
        select(columns.agent_id, columns.maintenance_until_s, columns.override_until_s)
    )
    return {row.agent_id: row.maintenance_until_s or row.override_until_s for row in rows}


@pytest.mark.both_databases
@pytest.mark.parametrize("jump_s", [2 * HOUR_S, -2 * HOUR_S])
async def test_maintenance_and_override_keep_their_remaining_time_when_the_clock_jumps(
    machine: Machine, jump_s: float
) -> None:
    until_s = machine.clock.at_s + HOUR_S
    await add_agents(machine.database, 2, prefix="maintained", maintenance_until_s=until_s)
    await add_agents(
        machine.database, 1, prefix="declared", override_status="active", override_until_s=until_s
    )
    ended_s = machine.clock.at_s - 1
    await add_agents(machine.database, 1, prefix="earlier", maintenance_until_s=ended_s, status="dead")
    await machine.live(100)
    machine.set_clock(jump_s)
    await machine.live(100)
    assert await count_by_status(machine.database) == {"active": 3, "dead": 1}
    moved_s = pytest.approx(until_s + jump_s, abs=0.01)
    ends = await machine.database.read(_ends)
    assert ends == {
        "maintained-0": moved_s,
        "maintained-1": moved_s,
        "declared-0": moved_s,
        "earlier-0": ended_s,
    }


@pytest.mark.both_databases
async def test_log_has_the_moved_ends_of_maintenance_and_override(machine: Machine) -> None:
    until_s = machine.clock.at_s + HOUR_S
    await add_agents(machine.database, 1, prefix="maintained", maintenance_until_s=until_s)
    await add_agents(
        machine.database, 1, prefix="declared", override_status="active", override_until_s=until_s
    )
    await machine.live(5)
    for jump_s in (HOUR_S, -HOUR_S):
        machine.set_clock(jump_s)
        await machine.live(5)
    events = await machine.events()
    assert [name for name, _ in events] == 2 * [
        "monitor.clock_jump",
        "agent.maintenance_changed",
        "agent.override_changed",
    ]
    assert events[2][1]["status"] == "active"
    moved = [moment(until_s + HOUR_S)] * 2 + [moment(until_s)] * 2
    logged = [payload["until"] for name, payload in events if name != "monitor.clock_jump"]
    assert [datetime.fromisoformat(str(each)) for each in logged] == moved


@pytest.mark.both_databases
@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_command_keeps_its_remaining_time_when_the_clock_jumps(machine: Machine, jump_s: float) -> None:
    await add_agents(machine.database, 1)
    command = StoredCommand(
        id="command_1",
        agent=1,
        command="drain",
        reason=None,
        drain_timeout_s=None,
        created_at_s=machine.clock.at_s,
        expires_at_s=machine.clock.at_s + 60,
    )
    await machine.database.write(lambda transaction: commands.add(transaction, command))

    async def waiting() -> int:
        return len(await machine.database.read(lambda transaction: commands.waiting(transaction, [1])))

    await machine.live(8)
    machine.set_clock(jump_s)
    await machine.live(48)
    assert await waiting() == 1
    await machine.live(8)
    assert await waiting() == 0
