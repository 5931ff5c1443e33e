import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.support.databases import WoundClock, empty_postgresql
from tests.support.event_logs import verify

from lifesign.domain.events.agent_payloads import DriftWarning
from lifesign.domain.events.chain import GENESIS, written_time
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.lease_payloads import StateWritten
from lifesign.domain.models.base import moment
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log


def draft(number: int = 0, agent_id: str = "agent_1") -> EventDraft:
    payload = DriftWarning(agent_id=agent_id, drift_seconds=float(number))
    return EventDraft(type=EventType.AGENT_DRIFT_WARNING, actor=agent_id, payload=payload, agent_id=agent_id)


def written(resource: str, intent_id: str) -> EventDraft:
    payload = StateWritten(resource=resource, holder="agent_1", fencing_token=1, version=1)
    return EventDraft(
        type=EventType.STATE_WRITTEN,
        actor="agent_1",
        payload=payload,
        agent_id="agent_1",
        intent_id=intent_id,
    )


def appending(*drafts: EventDraft) -> Callable[[Transaction], None]:
    return lambda transaction: event_log.append(transaction, drafts)


async def everything(database: Database) -> list[int]:
    found = await database.read(lambda transaction: event_log.after(transaction, 0, limit=10_000))
    verify(found)
    return [event.sequence for event in found]


async def test_appended_events_are_chained_and_read_unchanged(database: Database, clock: WoundClock) -> None:
    await database.write(appending(draft(1), draft(2)))
    clock.advance(1)
    await database.write(appending(draft(3, "agent_2")))
    found = await database.read(lambda transaction: event_log.after(transaction, 0, limit=10))
    head = await database.read(event_log.head)
    assert [event.payload["drift_seconds"] for event in found] == [1.0, 2.0, 3.0]
    assert found[0].previous_hash == GENESIS.hash
    assert verify(found) == head.last
    assert found[2].created_at > found[1].created_at
    assert len({event.id for event in found}) == 3


async def test_empty_log_has_sequence_zero_and_no_events(database: Database) -> None:
    assert await database.read(event_log.last_sequence) == 0
    assert (await database.read(event_log.head)).last == GENESIS
    await database.write(appending())
    assert await everything(database) == []


async def test_failed_transaction_leaves_no_gap_in_the_sequence(database: Database) -> None:
    def fail(transaction: Transaction) -> None:
        event_log.append(transaction, [draft()])
        raise LookupError

    outcomes = await asyncio.gather(
        database.write(appending(draft())),
        database.write(fail),
        database.write(appending(draft())),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], LookupError)
    assert await everything(database) == [1, 2]


async def test_several_appends_in_one_transaction_follow_one_another(database: Database) -> None:
    def function(transaction: Transaction) -> int:
        event_log.append(transaction, [draft(1)])
        event_log.append(transaction, [draft(2), draft(3)])
        return event_log.last_sequence(transaction)

    assert await database.write(function) == 3
    assert await everything(database) == [1, 2, 3]


async def test_many_writers_leave_one_chain_without_gaps(database: Database) -> None:
    await asyncio.gather(*(database.write(appending(draft(n), draft(n))) for n in range(40)))
    assert await everything(database) == list(range(1, 81))


async def test_two_processes_may_begin_the_log_at_once() -> None:
    url = empty_postgresql()
    several = [open_database(url) for _ in range(3)]
    await asyncio.gather(*(database.write(appending(draft())) for database in several for _ in range(5)))
    assert await everything(several[0]) == list(range(1, 16))
    for database in several:
        await database.close()


async def _sequences(database: Database, *, after: int = 0, limit: int = 100, **wanted: object) -> list[int]:
    found = await database.read(
        lambda transaction: event_log.after(transaction, after, limit=limit, **wanted)  # type: ignore[arg-type]
    )
    return [event.sequence for event in found]


async def test_events_are_filtered_by_position_agent_type_and_intent(database: Database) -> None:
    drafts = [draft(), draft(agent_id="agent_2"), written("intent:i1/a", "i1"), written("intent:i2/a", "i2")]
    await database.write(appending(*drafts))
    assert await _sequences(database, after=1) == [2, 3, 4]
    assert await _sequences(database, limit=2) == [1, 2]
    assert await _sequences(database, agent_id="agent_2") == [2]
    assert await _sequences(database, types=("state.written",)) == [3, 4]
    assert await _sequences(database, types=("state.written", "agent.drift_warning"), after=2) == [3, 4]
    assert await _sequences(database, intent_id="i2") == [4]
    assert await _sequences(database, agent_id="agent_2", types=("state.written",)) == []


async def test_paged_read_returns_each_event_of_a_range(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "PAGE", 3)
    await database.write(appending(*(draft(n) for n in range(10))))
    found = await database.read(lambda transaction: [*event_log.between(transaction, 2, 9)])
    assert [event.sequence for event in found] == list(range(2, 10))


async def test_the_closed_prefix_ends_before_the_first_younger_event(
    database: Database, clock: WoundClock
) -> None:
    await database.write(appending(draft(), draft()))
    clock.advance(10)
    await database.write(appending(draft()))
    # Another server's clock is late: older, and not in the closed prefix.
    clock.advance(-10)
    await database.write(appending(draft()))

    def last_before(at_s: float) -> Callable[[Transaction], int]:
        return lambda transaction: event_log.last_before(transaction, written_time(moment(at_s)))

    assert await database.read(last_before(clock.at_s)) == 0
    assert await database.read(last_before(clock.at_s + 5)) == 2
    assert await database.read(last_before(clock.at_s + 50)) == 4


async def test_thousand_simultaneous_events_keep_their_order(database: Database) -> None:
    drafts: Sequence[EventDraft] = [draft(n) for n in range(1_000)]
    await database.write(appending(draft()))
    await database.write(appending(*drafts))
    assert await database.read(event_log.last_sequence) == 1_001
