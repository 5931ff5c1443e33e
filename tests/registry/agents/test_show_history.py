"""History of an agent over the last day and month."""

from typing import Any

import pytest
from sqlalchemy import func, select
from tests.registry.probing.test_accept_observations import CARD, document, failure, observed, outcomes
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.history import NO_ANSWER, NO_DOCUMENT, NOT_PROBED, NOT_YET
from lifesign.domain.targets.target import target_id
from lifesign.storage.engine.table_definitions import agent_history
from lifesign.storage.engine.transaction import Database

HALF_HOUR = 1_800
DAY = 86_400
PROBED = {"monitoring": "probe", "card_url": CARD}


async def history(api: RegistryApi, agent_id: str = "agent-1") -> dict[str, Any]:
    answer = await api.ask("GET", f"{AGENTS}/{agent_id}/history", key=Role.READER)
    assert answer.status == 200, answer.body
    result: dict[str, Any] = answer.json()
    return result


async def kept_rows(database: Database) -> int:
    return int(
        await database.read(
            lambda transaction: (
                transaction.connection.scalar(select(func.count()).select_from(agent_history)) or 0
            )
        )
    )


def begin_a_day(clock: WoundClock) -> None:
    """Go on to the next midnight."""
    clock.advance(DAY - clock.at_s % DAY)


def result_with_document(clock: WoundClock, answer_ms: float, **members: float) -> dict[str, Any]:
    """Return the result of a probe of an agent with a document."""
    observation = document(clock, "healthy", transport={"result": "ok", "latency_ms": answer_ms})
    observation["document"] |= members
    return observation


async def test_history_has_half_hours_and_days_of_both_tracks(api: RegistryApi, clock: WoundClock) -> None:
    begin_a_day(clock)
    await api.register("agent-1", **PROBED)
    began_s = clock.at_s
    for half_hour in range(50):
        clock.at_s = began_s + half_hour * HALF_HOUR
        for answer_ms in (100.0, 300.0):
            clock.advance(300)
            numbers = {"response_ratio": 0.75, "error_ratio": 0.25, "latency_p50_ms": 8, "latency_p99_ms": 40}
            assert await outcomes(api, result_with_document(clock, answer_ms, **numbers)) == ["accepted"]
        clock.advance(300)
        await outcomes(api, failure(clock))
    result = await history(api)
    assert result["notes"] == []
    assert len(result["half_hours"]) == 49
    last = result["half_hours"][-1]
    assert last["begins_at"].endswith("T00:30:00.000Z")
    assert (last["alive"], last["failed"], last["inconclusive"]) == (2, 1, 0)
    assert last["answer_ms"] == pytest.approx({"lowest": 100.0, "mean": 200.0, "highest": 300.0}, rel=0.005)
    assert last["response_ratio"] == {"lowest": 0.75, "mean": 0.75, "highest": 0.75}
    assert last["latency_p99_ms"]["highest"] == pytest.approx(40, rel=0.005)
    first_day, today = result["days"]
    assert (first_day["alive"], first_day["failed"]) == (96, 48)
    assert (today["alive"], today["failed"]) == (4, 2)
    assert first_day["answer_ms"]["mean"] == pytest.approx(200, rel=0.005)
    assert first_day["error_ratio"]["mean"] == 0.25
    assert first_day["latency_p50_ms"]["lowest"] == today["latency_p50_ms"]["lowest"]


async def test_history_has_gaps_and_drops_old_slots(
    api: RegistryApi, clock: WoundClock, database: Database
) -> None:
    begin_a_day(clock)
    await api.register("agent-1", **PROBED)
    await outcomes(api, observed(clock))
    assert await kept_rows(database) == 0
    clock.advance(3 * HALF_HOUR)
    await outcomes(api, failure(clock))
    assert await kept_rows(database) == 1
    result = await history(api)
    assert [(slot["alive"], slot["failed"]) for slot in result["half_hours"]] == [(1, 0), (0, 1)]
    assert result["notes"] == [NO_ANSWER, NO_DOCUMENT]
    clock.advance(2 * DAY)
    result = await history(api)
    assert result["half_hours"] == []
    assert [(day["alive"], day["failed"]) for day in result["days"]] == [(1, 1)]
    clock.advance(30 * DAY)
    result = await history(api)
    assert (result["days"], result["notes"]) == ([], [NOT_YET])


async def test_history_of_a_heartbeat_agent_is_empty_with_a_note(api: RegistryApi) -> None:
    await api.register("agent-1")
    result = await history(api)
    assert result == {"agent_id": "agent-1", "half_hours": [], "days": [], "notes": [NOT_PROBED]}
    await api.register("agent-2", **PROBED)
    assert (await history(api, "agent-2"))["notes"] == [NOT_YET]


async def test_a_target_has_a_history_from_its_first_liveness_signal(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "directory", "first", [CARD])
    await outcomes(api, failure(clock, target_url=CARD))
    clock.advance(60)
    await outcomes(api, observed(clock, target_url=CARD))
    (slot,) = (await history(api, target_id(CARD)))["half_hours"]
    assert (slot["alive"], slot["failed"]) == (1, 0)


async def test_batch_over_several_half_hours_is_stored_completely(
    api: RegistryApi, clock: WoundClock
) -> None:
    begin_a_day(clock)
    await api.register("agent-1", **PROBED)
    await outcomes(api, observed(clock))
    batch = []
    for latency_ms in (10.0, 20.0, 40.0):
        clock.advance(HALF_HOUR)
        batch.append(observed(clock, transport={"result": "ok", "latency_ms": latency_ms}))
    assert await outcomes(api, *batch) == ["accepted"] * 3
    result = (await history(api))["half_hours"]
    assert [round(slot["answer_ms"]["mean"]) for slot in result[1:]] == [10, 20, 40]


async def test_new_incarnation_keeps_the_observed_facts(api: RegistryApi, clock: WoundClock) -> None:
    begin_a_day(clock)
    await api.register("agent-1", **PROBED)
    await outcomes(api, observed(clock))
    await api.register("agent-1", **PROBED, supersede=True)
    clock.advance(60)
    await outcomes(api, failure(clock))
    (slot,) = (await history(api))["half_hours"]
    assert (slot["alive"], slot["failed"]) == (1, 1)


async def test_erasing_an_agent_removes_its_history(
    api: RegistryApi, clock: WoundClock, database: Database
) -> None:
    await api.register("agent-1", **PROBED)
    await outcomes(api, observed(clock))
    clock.advance(HALF_HOUR)
    await outcomes(api, observed(clock))
    assert await kept_rows(database) == 1
    assert (await api.ask("DELETE", f"{AGENTS}/agent-1/record")).status == 200
    assert await kept_rows(database) == 0
    assert (await api.ask("GET", f"{AGENTS}/agent-1/history")).status == 404


async def test_agents_key_reads_only_its_history(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.register("agent-2")
    assert (await api.ask("GET", f"{AGENTS}/agent-1/history", key=key)).status == 200
    assert (await api.ask("GET", f"{AGENTS}/agent-2/history", key=key)).status == 403
