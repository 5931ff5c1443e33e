"""Charges of metered calls. The numbers are those of the cases in docs/registry.md."""

import asyncio
from typing import Any

import pytest
from tests.support.registry_api import RegistryApi
from tests.support.task_api import Worker, create, status_and_code, steer, task, worker

from lifesign.registry.tasks import charge_calls

ZERO = {"tokens": 0, "usd": 0.0}


async def _claimed_task(api: RegistryApi, **budget: float) -> tuple[Worker, dict[str, Any], str]:
    """Return a worker that has a task with this budget."""
    made = await create(api, budget=budget)
    one = await worker(api)
    return one, await one.granted(), made["task_id"]


async def _budget(api: RegistryApi, task_id: str) -> dict[str, Any]:
    return dict((await task(api, task_id))["budget"])


async def test_a_call_reserves_is_executed_and_settles(api: RegistryApi) -> None:
    one, grant, task_id = await _claimed_task(api, tokens=100, usd=1.5)
    answer = await one.reserve(grant, "c1", tokens=60, usd=1)
    assert answer.status == 201
    assert answer.json() == {
        "task_id": task_id,
        "call_id": "c1",
        "state": "reserved",
        "available": {"tokens": 40, "usd": 0.5},
    }
    settled = await one.write(grant, "calls/c1/settle", cost={"tokens": 10, "usd": 0.000001})
    assert settled.json()["available"] == {"tokens": 90, "usd": 1.499999}
    shown = await _budget(api, task_id)
    assert (shown["settled"], shown["reserved"]) == ({"tokens": 10, "usd": 0.000001}, ZERO)


@pytest.mark.both_databases
async def test_failed_call_releases_its_reservation(api: RegistryApi) -> None:
    one, grant, _ = await _claimed_task(api, tokens=100)
    await one.reserve(grant, "c1", tokens=60)
    assert (await one.write(grant, "calls/c1/release")).json()["available"]["tokens"] == 100


@pytest.mark.both_databases
async def test_case_12_a_hundred_calls_at_once_never_exceed_the_envelope(api: RegistryApi) -> None:
    one, grant, task_id = await _claimed_task(api, tokens=50, usd=1)
    answers = await asyncio.gather(*(one.reserve(grant, f"c{n}", tokens=1, usd=0.03) for n in range(100)))
    assert sorted({answer.status for answer in answers}) == [201, 402]
    # 33 times 0.03 USD.
    assert sum(answer.status == 201 for answer in answers) == 33
    assert {status_and_code(answer) for answer in answers if answer.status != 201} == {
        (402, "budget_exceeded")
    }
    shown = await _budget(api, task_id)
    assert shown["reserved"] == {"tokens": 33, "usd": 0.99}
    assert shown["available"] == {"tokens": 17, "usd": 0.01}


@pytest.mark.both_databases
async def test_case_12_refused_call_costs_nothing_and_returns_the_remaining_budget(api: RegistryApi) -> None:
    one, grant, task_id = await _claimed_task(api, tokens=10)
    before, events = await _budget(api, task_id), len(await api.events())
    answer = await one.reserve(grant, "c1", tokens=11)
    assert status_and_code(answer) == (402, "budget_exceeded")
    assert answer.json()["error"]["details"]["left_tokens"] == 10
    assert (await _budget(api, task_id), len(await api.events())) == (before, events)
    assert status_and_code(await one.write(grant, "calls/c1/settle", cost={"tokens": 1})) == (
        404,
        "call_not_found",
    )
    # A task without a budget pays for nothing.
    await create(api)
    poor = await one.granted()
    assert status_and_code(await one.reserve(poor, "c1", usd=0.000001)) == (402, "budget_exceeded")
    assert (await one.reserve(poor, "c2")).status == 201


@pytest.mark.parametrize("end", ["expiry", "release", "death"])
async def test_case_12_reservation_of_a_lost_holder_returns_to_the_budget(api: RegistryApi, end: str) -> None:
    one, grant, task_id = await _claimed_task(api, tokens=100)
    await one.reserve(grant, "c1", tokens=60)
    await one.reserve(grant, "c2", tokens=20)
    await one.write(grant, "calls/c2/settle", cost={"tokens": 15})
    match end:
        case "expiry":
            api.clock.advance(301)
            await api.sweep()
        case "release":
            await one.write(grant, "release", exit_reason="crash")
        case _:
            await api.ask("DELETE", "/api/v1/agents/agent-1")
    shown = await _budget(api, task_id)
    assert (shown["reserved"], shown["available"]["tokens"]) == (ZERO, 85)
    # The late settlement of a run that is over is refused like every other late write.
    late = await one.write(grant, "calls/c1/settle", cost={"tokens": 60})
    assert late.status == 412
    assert (await _budget(api, task_id)) == shown


@pytest.mark.both_databases
async def test_repeated_reservation_counts_once(api: RegistryApi) -> None:
    one, grant, task_id = await _claimed_task(api, tokens=100)
    for _ in range(3):
        assert (await one.reserve(grant, "c1", tokens=30)).json()["available"]["tokens"] == 70
    assert status_and_code(await one.reserve(grant, "c1", tokens=31)) == (422, "idempotency_key_reused")
    for _ in range(2):
        answer = await one.write(grant, "calls/c1/settle", cost={"tokens": 20})
        assert (answer.status, answer.json()["available"]["tokens"]) == (200, 80)
    assert status_and_code(await one.write(grant, "calls/c1/settle", cost={"tokens": 21})) == (
        409,
        "call_over",
    )
    assert status_and_code(await one.write(grant, "calls/c1/release")) == (409, "call_over")
    assert (await _budget(api, task_id))["settled"]["tokens"] == 20


async def test_overspent_call_is_reported(api: RegistryApi) -> None:
    one, grant, task_id = await _claimed_task(api, tokens=10)
    await one.reserve(grant, "c1", tokens=5)
    await one.write(grant, "calls/c1/settle", cost={"tokens": 25})
    shown = await _budget(api, task_id)
    assert (shown["settled"]["tokens"], shown["overrun"]["tokens"]) == (10, 15)
    assert status_and_code(await one.reserve(grant, "c2", tokens=1)) == (402, "budget_exceeded")


@pytest.mark.both_databases
async def test_holder_continues_after_a_top_up(api: RegistryApi) -> None:
    one, grant, task_id = await _claimed_task(api, tokens=10)
    assert status_and_code(await one.reserve(grant, "c1", tokens=11)) == (402, "budget_exceeded")
    answer = await steer(api, task_id, "budget", add={"tokens": 5, "usd": 0.5})
    assert answer.json()["budget"]["envelope"] == {"tokens": 15, "usd": 0.5}
    assert (await one.reserve(grant, "c1", tokens=11)).status == 201
    (event,) = await api.events(type="task.budget_changed")
    assert event["payload"] == {"task_id": task_id, "tokens": 15, "micro_usd": 500_000}
    too_much = await steer(api, task_id, "budget", add={"tokens": 10**12})
    assert status_and_code(too_much) == (422, "invalid_request")


@pytest.mark.parametrize("most", [{"tokens": -1}, {"usd": -0.1}, {"usd": 1e300}, {"usd": 0.0000001}])
async def test_case_22_amount_out_of_range_is_refused(api: RegistryApi, most: dict[str, float]) -> None:
    one, grant, _ = await _claimed_task(api, tokens=10, usd=10)
    answer = await one.write(grant, "calls", call_id="c1", tool="fetch", most=most)
    assert status_and_code(answer) == (422, "invalid_request")


async def test_number_of_calls_and_open_calls_of_a_run_is_bounded(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charge_calls, "MAX_OPEN_CALLS", 1)
    monkeypatch.setattr(charge_calls, "MAX_CALLS", 2)
    one, grant, _ = await _claimed_task(api, tokens=10)
    await one.reserve(grant, "c1")
    assert status_and_code(await one.reserve(grant, "c2")) == (409, "too_many")
    await one.write(grant, "calls/c1/release")
    assert (await one.reserve(grant, "c2")).status == 201
    await one.write(grant, "calls/c2/release")
    assert status_and_code(await one.reserve(grant, "c3")) == (409, "too_many")
