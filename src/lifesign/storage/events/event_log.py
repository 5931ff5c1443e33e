"""Append to and read the event log.

One row, the head, contains the end of the chain. An appending transaction locks it until it ends: events
become visible in the order of their sequence, without gaps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic_core import from_json, to_json
from sqlalchemy import BigInteger, Row, Select, TextClause, bindparam, delete, select, text, update
from ulid import ULID

from lifesign.domain.errors import BrokenChain
from lifesign.domain.events.chain import GENESIS, Checkpoint, Event, chain, payload_hash
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.storage.engine.table_definitions import event_log, events
from lifesign.storage.engine.transaction import Transaction

CHANNEL = "lifesign_events"
"""Channel on which PostgreSQL notifies of committed events."""
PAGE = 1_000
"""Number of events in memory at a time when all are read."""
MAX_STATEMENTS = 64
"""Maximum number of prepared statements for the last events of several types: one per number of types."""

_COLUMNS = (
    "sequence", "id", "type", "actor", "agent_id", "intent_id", "payload", "created_at", "previous_hash",
    "hash",
)  # fmt: skip
_EVENT = select(*(events.c[name] for name in _COLUMNS if name != "agent_id")).order_by(events.c.sequence)
# One statement for any number of events; SQLite then releases and acquires the interpreter's lock once.
_INSERT_SQLITE = text(f"""
    INSERT INTO events ({", ".join(_COLUMNS)})
    SELECT {", ".join(f"value ->> {place}" for place in range(len(_COLUMNS)))} FROM json_each(:rows)
""")  # noqa: S608 - constants only
# While the head is locked no other transaction appends: one round trip instead of three.
_INSERT_POSTGRESQL = text(f"""
    WITH added AS (
        INSERT INTO events ({", ".join(_COLUMNS)})
        SELECT * FROM json_to_recordset(CAST(:rows AS json))
            AS given (sequence bigint, {", ".join(f"{name} text" for name in _COLUMNS[1:])})
    ), moved AS (
        UPDATE event_log SET sequence = :to, hash = :to_hash WHERE id = 1
    )
    SELECT pg_notify('{CHANNEL}', '')
""")  # noqa: S608 - constants only
# Two processes may both find the log empty.
_BEGIN = text("""
    INSERT INTO event_log (id, sequence, hash, archived_sequence, archived_hash)
    VALUES (1, :sequence, :hash, :sequence, :hash) ON CONFLICT (id) DO NOTHING
""")
_LOCKED_HEAD = select(event_log).where(event_log.c.id == 1).with_for_update()
# Without the states of archived events, which may be long.
_LOCKED_END = (
    select(event_log.c.sequence, event_log.c.hash).where(event_log.c.id == 1).with_for_update(key_share=True)
)
_MOVE_HEAD = (
    update(event_log).where(event_log.c.id == 1).values(sequence=bindparam("to"), hash=bindparam("to_hash"))
)

_ERASE_SQLITE = text("""
    UPDATE events SET payload = given.value ->> 1, agent_id = NULL
    FROM json_each(:given) given WHERE events.sequence = given.value ->> 0
""")
_ERASE_POSTGRESQL = text("""
    UPDATE events SET payload = given.payload, agent_id = NULL
    FROM unnest(CAST(:sequence AS bigint[]), CAST(:payload AS text[])) AS given (sequence, payload)
    WHERE events.sequence = given.sequence
""")


@dataclass(frozen=True, slots=True)
class LogHead:
    """Start and end of the log."""

    last: Checkpoint
    archived: Checkpoint
    """Up to here the events have left the database; `GENESIS` if none has."""
    archived_states: str | None
    """States that a replay had reached there, as JSON."""


def append(transaction: Transaction, drafts: Sequence[EventDraft]) -> None:
    """Append events to the log, in their order.

    On PostgreSQL no other transaction appends until this one ends: append last.
    """
    if not drafts:
        return
    now_s = transaction.now_s
    locked = transaction.connection.execute(_LOCKED_END).one_or_none()
    checkpoint = lock(transaction).last if locked is None else Checkpoint(*locked)
    rows: list[tuple[object, ...]] = []
    for draft in drafts:
        event = chain(checkpoint, f"evt_{str(ULID()).lower()}", draft, now_s)
        checkpoint = event.checkpoint
        payload = to_json(event.payload).decode()
        rows.append((
            event.sequence, event.id, event.type.value, event.actor, draft.agent_id, event.intent_id, payload,
            event.created_at, event.previous_hash, event.hash,
        ))  # fmt: skip
    connection = transaction.connection
    end = {"to": checkpoint.sequence, "to_hash": checkpoint.hash}
    if transaction.is_postgresql:
        columns = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        connection.execute(_INSERT_POSTGRESQL, {**end, "rows": to_json(columns).decode()})
    else:
        connection.execute(_INSERT_SQLITE, {"rows": to_json(rows).decode()})
        connection.execute(_MOVE_HEAD, end)
    transaction.appended.extend(drafts)


def lock(transaction: Transaction) -> LogHead:
    """Return the head of the log, locked: no other transaction appends until this one ends."""
    row = transaction.connection.execute(_LOCKED_HEAD).one_or_none()
    if row is None:
        transaction.connection.execute(_BEGIN, {"sequence": GENESIS.sequence, "hash": GENESIS.hash})
        row = transaction.connection.execute(_LOCKED_HEAD).one()
    return _head(row)


def head(transaction: Transaction) -> LogHead:
    """Return the first and the last checkpoint of the log."""
    row = transaction.connection.execute(select(event_log).where(event_log.c.id == 1)).one_or_none()
    return LogHead(GENESIS, GENESIS, None) if row is None else _head(row)


def last_sequence(transaction: Transaction) -> int:
    """Return the sequence of the last event; 0 if there is none."""
    return transaction.connection.scalar(select(event_log.c.sequence).where(event_log.c.id == 1)) or 0


def archived_sequence(transaction: Transaction) -> int:
    """Return the sequence number up to which events were archived and removed; 0 if none was."""
    wanted = select(event_log.c.archived_sequence).where(event_log.c.id == 1)
    return transaction.connection.scalar(wanted) or 0


def contains(transaction: Transaction, place: Checkpoint) -> bool:
    """Return whether the log contains the event of a checkpoint; assumed if the event was archived."""
    at_place = hash_at(transaction, place.sequence)
    return _has_archived(transaction, place) if at_place is None else at_place == place.hash


def hash_at(transaction: Transaction, sequence: int) -> str | None:
    """Return the hash of an event; None if the database has no such event."""
    return transaction.connection.scalar(select(events.c.hash).where(events.c.sequence == sequence))


def behind(
    transaction: Transaction, place: Checkpoint, *, limit: int
) -> list[tuple[Event, str | None]] | None:
    """Return the next events after a checkpoint, each with the agent that it concerns.

    None if the log does not contain the checkpoint, as `contains` decides.
    """
    found = with_agents(transaction, place.sequence - 1, limit=limit + 1)
    if found and found[0][0].sequence == place.sequence:
        return found[1:] if found[0][0].hash == place.hash else None
    return found[:limit] if _has_archived(transaction, place) else None


def after(
    transaction: Transaction,
    sequence: int,
    *,
    limit: int,
    types: Sequence[str] = (),
    agent_id: str | None = None,
    intent_id: str | None = None,
) -> list[Event]:
    """Return the next events after `sequence` that match the given filters, at most `limit`."""
    wanted = _filtered(_EVENT, types, agent_id, intent_id).where(events.c.sequence > sequence)
    return [_event(row) for row in transaction.connection.execute(wanted.limit(limit))]


def latest(
    transaction: Transaction,
    *,
    limit: int,
    before: int | None = None,
    types: Sequence[str] = (),
    agent_id: str | None = None,
) -> list[Event]:
    """Return the last events, those before `before` if it is given, the latest first.

    `types`: without duplicates.
    """
    connection = transaction.connection
    if agent_id is None and len(types) > 1:
        values: dict[str, object] = {f"type_{place}": str(one) for place, one in enumerate(types)}
        if before is not None:
            values["before"] = before
        of_types = _latest_of_types(len(types), limit, is_continued=before is not None)
        return [_event(row) for row in connection.execute(of_types, values)]
    wanted = _filtered(_EVENT.order_by(None).order_by(events.c.sequence.desc()), types, agent_id, None)
    if before is not None:
        wanted = wanted.where(events.c.sequence < before)
    return [_event(row) for row in connection.execute(wanted.limit(limit))]


@lru_cache(MAX_STATEMENTS)
def _latest_of_types(how_many: int, limit: int, *, is_continued: bool) -> TextClause:
    """Return the statement that finds the last events of so many types, without duplicates.

    Within one type its index leads from the end of the log backwards. The statement is cached, and written as
    text: as an expression of forty parts it created six thousand objects each time for the garbage collector,
    and took 60 ms to compile.
    """
    earlier = "sequence < :before AND " if is_continued else ""
    last = f"ORDER BY sequence DESC LIMIT {limit:d}"
    parts = (
        f"SELECT * FROM (SELECT sequence FROM events WHERE {earlier}type = :type_{place} {last}) AS p{place}"  # noqa: S608 - names of ours, and numbers
        for place in range(how_many)
    )
    columns = ", ".join(f"events.{name}" for name in _COLUMNS if name != "agent_id")
    statement = text(f"""
        SELECT {columns}
        FROM (SELECT sequence FROM ({" UNION ALL ".join(parts)}) AS of_each {last}) AS found
        JOIN events ON events.sequence = found.sequence ORDER BY events.sequence DESC
    """)  # noqa: S608 - names of ours, and numbers
    return statement.bindparams(bindparam("before", type_=BigInteger)) if is_continued else statement


def with_agents(transaction: Transaction, sequence: int, *, limit: int) -> list[tuple[Event, str | None]]:
    """Return the next events after `sequence`, each with the id of the agent that it concerns."""
    wanted = _EVENT.add_columns(events.c.agent_id).where(events.c.sequence > sequence).limit(limit)
    return [(_event(row), row.agent_id) for row in transaction.connection.execute(wanted)]


def between(transaction: Transaction, first: int, last: int) -> Iterator[Event]:
    """Read the events from `first` to `last`, including both, a page at a time."""
    for event, _ in between_with_agents(transaction, first, last):
        yield event


def between_with_agents(
    transaction: Transaction, first: int, last: int
) -> Iterator[tuple[Event, str | None]]:
    """Read the same events as `between`, each with the agent that it concerns (not part of its hash)."""
    while first <= last:
        page = with_agents(transaction, first - 1, limit=min(PAGE, last - first + 1))
        if not page:
            return
        yield from page
        first = page[-1][0].sequence + 1


def last_before(transaction: Transaction, created_at: str) -> int:
    """Return the last sequence number up to which all events were created before a time; 0 if none.

    Times may decrease a little if several servers append: the prefix ends before the first event that is
    younger.
    """
    younger = select(events.c.sequence).where(events.c.created_at >= created_at)
    # Walks through older events and stops there.
    first_younger = transaction.connection.scalar(younger.order_by(events.c.sequence).limit(1))
    return last_sequence(transaction) if first_younger is None else first_younger - 1


def first_of_type(transaction: Transaction, kind: EventType, sequence: int) -> int | None:
    """Return the sequence number of the first event of a type after `sequence`; None if there is none."""
    wanted = select(events.c.sequence).where(events.c.type == kind.value, events.c.sequence > sequence)
    return transaction.connection.scalar(wanted.order_by(events.c.sequence).limit(1))


def remove_until(transaction: Transaction, sequence: int) -> None:
    """Remove the events up to `sequence`, which must be stored elsewhere."""
    transaction.connection.execute(delete(events).where(events.c.sequence <= sequence))


def set_archived(transaction: Transaction, archived: Checkpoint, states: str | None) -> None:
    """Store where the remaining events begin, and the state of a replay there; `lock` first."""
    transaction.connection.execute(
        update(event_log)
        .where(event_log.c.id == 1)
        .values(archived_sequence=archived.sequence, archived_hash=archived.hash, archived_states=states)
    )


def erase_of(transaction: Transaction, agent_id: str) -> int:
    """Replace the payloads of an agent's events by their hashes; return the number of events.

    The events have no agent from then on.
    """
    of_agent = select(events.c.sequence, events.c.payload).where(events.c.agent_id == agent_id).limit(PAGE)
    erased = 0
    while rows := transaction.connection.execute(of_agent).all():
        payloads = {
            row.sequence: to_json({"erased": payload_hash(from_json(row.payload))}).decode() for row in rows
        }
        if transaction.is_postgresql:
            values = {"sequence": list(payloads.keys()), "payload": list(payloads.values())}
            transaction.connection.execute(_ERASE_POSTGRESQL, values)
        else:
            changed = to_json(list(payloads.items())).decode()
            transaction.connection.execute(_ERASE_SQLITE, {"given": changed})
        erased += len(rows)
    return erased


def _has_archived(transaction: Transaction, place: Checkpoint) -> bool:
    """Return whether the log, which has no event at this position, is archived up to it or beyond."""
    # Without the states of archived events, which may be long.
    wanted = select(event_log.c.archived_sequence, event_log.c.archived_hash).where(event_log.c.id == 1)
    row = transaction.connection.execute(wanted).one_or_none()
    archived = GENESIS if row is None else Checkpoint(*row)
    return archived.sequence > place.sequence or archived == place


def _filtered(
    wanted: Select[tuple[object, ...]], types: Sequence[str], agent_id: str | None, intent_id: str | None
) -> Select[tuple[object, ...]]:
    if types:
        wanted = wanted.where(events.c.type.in_([str(one) for one in types]))
    if agent_id is not None:
        wanted = wanted.where(events.c.agent_id == agent_id)
    if intent_id is not None:
        wanted = wanted.where(events.c.intent_id == intent_id)
    return wanted


def _head(row: Row[tuple[object, ...]]) -> LogHead:
    return LogHead(
        Checkpoint(row.sequence, row.hash),
        Checkpoint(row.archived_sequence, row.archived_hash),
        row.archived_states,
    )


def _event(row: Row[tuple[object, ...]]) -> Event:
    """Return a row as an event; BrokenChain if it is invalid, because this program did not write it."""
    try:
        return _read(row)
    except ValueError as error:
        raise BrokenChain(row.sequence, "it is no event") from error


def _read(row: Row[tuple[object, ...]]) -> Event:
    return Event(
        sequence=row.sequence,
        id=row.id,
        type=EventType(row.type),
        actor=row.actor,
        intent_id=row.intent_id,
        payload=from_json(row.payload),
        created_at=row.created_at,
        previous_hash=row.previous_hash,
        hash=row.hash,
    )
