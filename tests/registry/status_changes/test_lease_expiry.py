import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.registry.events.test_verify_events import report as log_report
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.task_api import TASKS, create, status_and_code, steer, steps, task, worker

from lifesign.domain.access.permissions import Role
from lifesign.registry import sweep
from lifesign.registry.leases.raise_epoch import raise_epoch
from lifesign.registry.status_changes.lease_expiry import Reaper, reap
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.whole_database import clock_shift

LEASES = "/api/v1/leases"
QUICK = {"interval_seconds": 1, "unhealthy_after_seconds": 10, "dead_after_seconds": 20}


async def test_case_10_leases_of_the_dead_expire_after_the_agents_event(
    api: RegistryApi,
) -> None:
    one = await worker(api, heartbeat_config=QUICK)
    made = [(await create(api, f"task {number}"))["task_id"] for number in range(3)]
    for _ in made:
        await one.granted(ttl_seconds=3_600)
    await api.ask("POST", "/api/v1/leases", {"resource": "other"}, key=one.key)
    before = (await api.events())[-1]["sequence"]
    api.clock.advance(21)
    await api.sweep()
    new_events = [event for event in await api.events() if event["sequence"] > before]
    types = [event["type"] for event in new_events]
    assert types == ["agent.lifecycle"] * 2 + ["lease.expired"] * 4 + ["task.lifecycle"] * 6
    assert {event["payload"]["reason"] for event in new_events if event["type"] == "lease.expired"} == {
        "agent_dead"
    }
    for task_id in made:
        assert await steps(api, task_id) == ["assigned", "failed", "queued"]
        shown = await task(api, task_id)
        assert (shown["status"], shown["runs"][0]["exit_reason"]) == ("queued", "lease_expired")
    assert (await log_report(api)).is_good


async def test_death_of_a_holder_is_no_attempt_and_many_lost_runs_are_escalated(
    api: RegistryApi,
) -> None:
    one = await worker(api, heartbeat_config=QUICK)
    made = await create(api, max_attempts=1)
    await one.granted(ttl_seconds=3_600)
    api.clock.advance(21)
    await api.sweep()
    shown = await task(api, made["task_id"])
    why = "run 1, lost run 1 of at most 10: lease_expired"
    assert (shown["status"], shown["explanation"]) == ("queued", why)
    other = await worker(api, "agent-2")
    for _ in range(8):
        await other.write(await other.granted(), "release", exit_reason="killed")
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["attempts"], shown["lost_runs"]) == ("queued", 0, 9)
    await other.write(await other.granted(), "release", exit_reason="killed")
    assert (await task(api, made["task_id"]))["status"] == "handoff"
    resolved = await steer(api, made["task_id"], "resolve", resolution="requeue")
    assert (resolved.json()["attempts"], resolved.json()["lost_runs"]) == (0, 0)
    # A crash of the agent counts as an attempt, and the task allows only one.
    answer = await other.write(await other.granted(), "release", exit_reason="crash")
    assert answer.json()["status"] == "handoff"
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_case_13_task_of_a_crashed_holder_can_be_claimed_after_its_lease(api: RegistryApi) -> None:
    made = await create(api)
    one, other = await worker(api), await worker(api, "agent-2")
    await one.granted(ttl_seconds=60)
    api.clock.advance(59.9)
    await reap(api.database)
    assert (await other.claim()).status == 204
    api.clock.advance(0.1)
    await reap(api.database)
    assert (await other.granted())["task"]["task_id"] == made["task_id"]
    # The holder is no worse for it (RFC-0016 9.1).
    assert (await api.record("agent-1"))["status"] == "active"
    assert (await log_report(api)).is_good


async def test_case_14_a_queued_task_is_never_reaped(api: RegistryApi) -> None:
    made = await create(api)
    await create(api, agent_id="nobody")
    before = len(await api.events())
    api.clock.advance(10**7)
    await api.sweep()
    await reap(api.database)
    assert (await task(api, made["task_id"]))["status"] == "queued"
    assert [event["type"] for event in (await api.events())[before:]] == []


@pytest.mark.parametrize("broken", ["_begin", "_assess_some"])
async def test_case_15_leases_expire_while_sweeps_fail_and_no_agent_claims(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_given: Any, **_named: Any) -> None:
        raise LookupError("on purpose")

    made = await create(api)
    one = await worker(api)
    await one.granted(ttl_seconds=60)
    monkeypatch.setattr(sweep.Sweeper, broken, fail)
    await api.registry.reaper.reap_once()
    api.clock.advance(61)
    await api.registry.reaper.reap_once()
    assert (await task(api, made["task_id"]))["status"] == "queued"


async def test_case_15_leases_expire_while_verdicts_are_suspended(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api, "holder", heartbeat_config={**QUICK, "dead_after_seconds": 100_000})
    soon_s = api.clock.at_s + 1
    await add_agents(api.database, 30, interval_s=1, unhealthy_after_s=3, dead_after_s=9, assess_at_s=soon_s)
    await one.granted(ttl_seconds=5)
    for _ in range(15):
        api.clock.advance(1)
        await api.send_heartbeat("holder", one.key)
        await api.registry.sweeper.sweep_once()
    monitor = (await api.ask("GET", "/api/v1/monitor", key=Role.READER)).json()
    assert monitor["state"] == "suspended", monitor
    assert (await task(api, made["task_id"]))["status"] == "queued"


@pytest.mark.both_databases
async def test_reaper_continues_after_a_failed_round(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []

    async def failing(_reaper: object) -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise LookupError("on purpose")
        raise asyncio.CancelledError

    monkeypatch.setattr(Reaper, "reap_once", failing)
    with pytest.raises(asyncio.CancelledError):
        await Reaper(api.database, 0.0, api.clock.now_s).run()
    assert len(rounds) == 2


async def test_an_outage_of_the_database_is_logged_once(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable = StoreUnavailable("on purpose")
    rounds = iter([unreachable, unreachable, None, unreachable, asyncio.CancelledError()])

    async def reap_or_fail(_reaper: object) -> None:
        if (failure := next(rounds)) is not None:
            raise failure

    monkeypatch.setattr(Reaper, "reap_once", reap_or_fail)
    with pytest.raises(asyncio.CancelledError):
        await Reaper(api.database, 0.0, api.clock.now_s).run()
    assert [record.args for record in caplog.records] == [(unreachable,)] * 2


@pytest.mark.both_databases
async def test_case_19_reaper_ends_no_lease_until_a_sweep_corrects_a_changed_clock(
    api: RegistryApi,
) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted(ttl_seconds=60)
    monotonic = WoundClock()
    reaper = Reaper(api.database, 0.5, monotonic.now_s)
    await reaper.reap_once()
    monotonic.advance(10.5)
    api.clock.advance(10.5)
    await reaper.reap_once()
    # Only the database's clock advances: no caller has sent a request for an hour.
    api.clock.advance(3_600)
    monotonic.advance(0.5)
    await reaper.reap_once()
    assert (await task(api, made["task_id"]))["holder"] == "agent-1"

    def mend(transaction: Transaction) -> None:
        clock_shift.move_leases(transaction, 3_600, api.clock.at_s - 3_600)

    await api.database.write(mend)
    for _ in range(30):
        api.clock.advance(1)
        monotonic.advance(1)
        await reaper.reap_once()
    assert (await one.report(grant)).status == 200
    api.clock.advance(30)
    monotonic.advance(30)
    await reaper.reap_once()
    assert (await task(api, made["task_id"]))["status"] == "queued"


@pytest.mark.both_databases
async def test_case_19_requests_about_an_overdue_lease_wait_for_the_sweep_after_the_clock_was_set(
    api: RegistryApi,
) -> None:
    resource, state = "intent:i1/s1", "/api/v1/intents/i1/state/s1"
    await create(api)
    one, other = await worker(api), await worker(api, "agent-2")
    await api.sweep()
    grant = await one.granted(ttl_seconds=60)
    held = (await api.ask("POST", LEASES, {"resource": resource, "ttl_seconds": 60}, key=one.key)).json()
    token, lease = held["fencing_token"], f"{LEASES}/{held['lease_id']}"

    async def ask_all() -> list[object]:
        answers = [
            await api.ask("POST", LEASES, {"resource": resource}, key=other.key),
            await api.ask("POST", f"{lease}/renew", {"fencing_token": token}, key=one.key),
            await api.ask("PUT", state, {}, key=one.key, headers={"x-fencing-token": str(token)}),
            await one.report(grant),
            await api.ask("DELETE", lease, key=one.key),
        ]
        return [each.status if each.status < 400 else status_and_code(each) for each in answers]

    def mend(transaction: Transaction) -> None:
        clock_shift.move_leases(transaction, 3_600, api.clock.at_s - 3_600)
        row = registry_row.lock(transaction)
        registry_row.store(transaction, replace(row, swept_at_s=api.clock.at_s))

    api.clock.advance(3_600)
    assert set(await ask_all()) == {(503, "lease_end_uncertain")}
    assert not await api.events(type="fenced_write_rejected")
    await api.database.write(mend)
    api.clock.advance(1)
    assert await ask_all() == [(409, "lease_held"), 200, 200, 200, 204]
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_case_19_no_lease_gets_a_new_end_until_a_sweep_corrects_a_clock_that_was_set_back(
    api: RegistryApi,
) -> None:
    await create(api)
    await create(api)
    one = await worker(api)
    grant = await one.granted(ttl_seconds=60)
    lease = f"{LEASES}/{grant['lease']['lease_id']}"

    async def ask_all() -> list[object]:
        answers = [
            await api.ask("POST", LEASES, {"resource": "intent:i1/s1"}, key=one.key),
            await api.ask(
                "POST", f"{lease}/renew", {"fencing_token": grant["lease"]["fencing_token"]}, key=one.key
            ),
            await api.ask("POST", f"{TASKS}/claim", {}, key=one.key),
        ]
        return [each.status if each.status < 400 else status_and_code(each) for each in answers]

    await api.registry.sweeper.sweep_once()
    api.clock.advance(-6)
    assert set(await ask_all()) == {(503, "lease_end_uncertain")}
    assert (await one.report(grant)).status == 200
    await api.registry.sweeper.sweep_once()
    assert await ask_all() == [201, 200, 200]
    api.clock.advance(50)
    await api.sweep()
    assert (await one.report(grant, idempotency_key="later")).status == 200
    assert (await log_report(api)).is_good


async def test_case_19_reaper_waits_for_two_sweeps_if_sweeps_are_rare(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    await one.granted(ttl_seconds=600)
    monotonic = WoundClock()
    reaper = Reaper(api.database, 60.0, monotonic.now_s)
    holders = []
    for round_number in range(6):
        await reaper.reap_once()
        holders.append((await task(api, made["task_id"])).get("holder"))
        monotonic.advance(60)
        # The clock jumps before the round number 3, which notices that.
        api.clock.advance(60 + (3_600 if round_number == 2 else 0))
    assert holders == ["agent-1"] * 5 + [None]


async def test_case_19_a_clock_that_jumps_ahead_ends_a_lease_once_and_one_set_back_ends_none(
    api: RegistryApi,
) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted(ttl_seconds=60)
    api.clock.advance(-3_600)
    await reap(api.database)
    api.clock.advance(3_600)
    assert (await one.report(grant)).status == 200
    api.clock.advance(61)
    await reap(api.database)
    assert status_and_code(await one.report(grant, idempotency_key="late")) == (412, "lease_ended")
    assert await steps(api, made["task_id"]) == ["assigned", "running", "failed", "queued"]


@pytest.mark.both_databases
async def test_case_20_two_concurrent_reapers_end_a_lease_once(api: RegistryApi) -> None:
    made = [(await create(api, f"task {number}"))["task_id"] for number in range(6)]
    one = await worker(api)
    for _ in made:
        await one.granted(ttl_seconds=60)
    api.clock.advance(61)
    await asyncio.gather(*(reap(api.database) for _ in range(4)), api.sweep())
    assert len(await api.events(type="lease.expired")) == 6
    for task_id in made:
        assert await steps(api, task_id) == ["assigned", "failed", "queued"]
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_case_2_a_raised_epoch_ends_all_runs_and_tokens_rise(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()

    def restore(transaction: Transaction) -> None:
        raise_epoch(transaction, "command_line", "restored")

    await api.database.write(restore)
    assert (await task(api, made["task_id"]))["status"] == "queued"
    assert status_and_code(await one.report(grant)) == (412, "lease_ended")
    after = await one.granted()
    assert after["lease"]["fencing_token"] > 2**32 > grant["lease"]["fencing_token"]
    assert (await log_report(api)).is_good


async def test_erased_agent_leaves_its_task_without_its_id(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    await one.report(grant)
    answer = await api.ask("DELETE", f"{AGENTS}/agent-1/record")
    assert answer.status == 200, answer.body
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["runs"][0]["exit_reason"]) == ("queued", "killed")
    assert "holder" not in shown["runs"][0]
    assert (await log_report(api)).is_good
    other = await worker(api, "agent-2")
    assert (await other.granted())["lease"]["fencing_token"] > grant["lease"]["fencing_token"]
    assert (await log_report(api)).is_good


async def test_new_agent_with_an_erased_id_inherits_no_leases(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted()
    await one.write(grant, "complete")
    await api.ask("DELETE", f"{AGENTS}/agent-1/record")
    again = await worker(api)
    read = await api.ask("GET", f"{TASKS}/{grant['task']['task_id']}", key=again.key)
    assert status_and_code(read) == (403, "not_allowed")
    assert (await again.write(grant, "complete")).status in {403, 404, 412}
