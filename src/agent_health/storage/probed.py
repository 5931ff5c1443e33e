"""What did the last probe of each target leave? Narrow rows, written with every probe.

What is not said anew stays as it was: nothing is read merely to be written again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Row, func, select, text

from agent_health.clock_ahead import MAX_AHEAD_SECONDS
from agent_health.storage.database import Transaction
from agent_health.storage.tables import probed, targets


@dataclass(slots=True)
class Subject:
    """What must be known of whom an observation concerns, before it is taken in."""

    subject_id: str
    target: int | None
    """Our number of the target; None if it is none."""
    shard: int | None
    is_gone: bool
    directories: tuple[int, ...]
    """Which list it."""
    agent: int | None
    """Our number of its record; None if it has none."""
    observed_at_s: float | None
    """The time of the last observation that counted; None before the first one."""
    result: str | None
    """Of the last that told anything."""
    layers: str | None
    """The last result of each layer; as `registry/target_results` writes it."""


@dataclass(slots=True)
class Left:
    """What probes of one target left, in the order of the columns; None: as it was."""

    target: int
    observed_at_s: float
    result: str | None = None
    result_since_s: float | None = None
    layers: str | None = None
    seen: str | None = None
    memory: str | None = None
    protocol_version: str | None = None
    """Goes with `memory`: without one it stays as it was, with one it is this."""


_JOINS = """
    LEFT JOIN targets ON targets.subject_id = asked.value
    LEFT JOIN agents ON agents.agent_id = asked.value
    LEFT JOIN probed ON probed.target = targets.id
"""
_OF_SQLITE = text(f"""
    SELECT json_group_array(json_array(
        asked.value, targets.id, targets.shard, targets.gone_at_s IS NOT NULL,
        (SELECT json_group_array(directory) FROM listings WHERE listings.target = targets.id),
        agents.id,
        iif(probed.observed_at_s IS NULL, NULL, json(printf('%!.17g', probed.observed_at_s))),
        probed.result, probed.layers
    ))
    FROM json_each(:subjects) AS asked {_JOINS}
""")  # noqa: S608 - constants only
_OF_POSTGRESQL = text(f"""
    SELECT CAST(json_agg(json_build_array(
        asked.value, targets.id, targets.shard, targets.gone_at_s IS NOT NULL,
        (SELECT json_agg(directory) FROM listings WHERE listings.target = targets.id),
        agents.id, probed.observed_at_s, probed.result, probed.layers
    )) AS text)
    FROM unnest(CAST(:subjects AS text[])) AS asked (value) {_JOINS}
""")  # noqa: S608 - constants only

_STORED = tuple(Left.__dataclass_fields__)
_STORE_TAIL = """
    ON CONFLICT (target) DO UPDATE SET
        observed_at_s = excluded.observed_at_s,
        result = coalesce(excluded.result, probed.result),
        result_since_s = coalesce(excluded.result_since_s, probed.result_since_s),
        layers = coalesce(excluded.layers, probed.layers),
        seen = coalesce(excluded.seen, probed.seen),
        memory = coalesce(excluded.memory, probed.memory),
        protocol_version = CASE
            WHEN excluded.memory IS NULL THEN probed.protocol_version ELSE excluded.protocol_version
        END
"""
_STORE_SQLITE = text(f"""
    INSERT INTO probed ({", ".join(_STORED)})
    SELECT {", ".join(f"value ->> {place}" for place in range(len(_STORED)))} FROM json_each(:rows) WHERE true
    {_STORE_TAIL}
""")  # noqa: S608 - constants only
_STORE_POSTGRESQL = text(f"""
    INSERT INTO probed ({", ".join(_STORED)})
    SELECT CAST(said ->> 0 AS bigint), CAST(said ->> 1 AS double precision), said ->> 2,
        CAST(said ->> 3 AS double precision), said ->> 4, said ->> 5, said ->> 6, said ->> 7
    FROM json_array_elements(CAST(:rows AS json)) AS said
    {_STORE_TAIL}
""")  # noqa: S608 - constants only


_LAST: tuple[Any, ...] = (probed.c.result, probed.c.result_since_s, probed.c.seen)


def lock(transaction: Transaction, subject_ids: Sequence[str]) -> None:
    """Keep others from storing results of these targets; on SQLite every write does so by itself."""
    if transaction.is_postgresql:
        wanted = select(targets.c.id).where(targets.c.subject_id.in_(subject_ids)).order_by(targets.c.id)
        transaction.connection.execute(wanted.with_for_update(key_share=True))


def find(transaction: Transaction, subject_ids: Sequence[str]) -> dict[str, Subject]:
    """Return what is known of these, each named once, also of those who are no targets."""
    if transaction.is_postgresql:
        told = transaction.connection.scalar(_OF_POSTGRESQL, {"subjects": subject_ids})
    else:
        told = transaction.connection.scalar(_OF_SQLITE, {"subjects": to_json(subject_ids).decode()})
    return {row[0]: _subject(row) for row in from_json(told or "[]")}


def store(transaction: Transaction, changed: Sequence[Left]) -> None:
    """Store what probes left of these targets, at most once of each."""
    if not changed:
        return
    rows = [
        (
            left.target, left.observed_at_s, left.result, left.result_since_s, left.layers, left.seen,
            left.memory, left.protocol_version,
        )
        for left in sorted(changed, key=lambda left: left.target)
    ]  # fmt: skip
    statement = _STORE_POSTGRESQL if transaction.is_postgresql else _STORE_SQLITE
    transaction.connection.execute(statement, {"rows": to_json(rows).decode()})


def last_of(transaction: Transaction, subject_id: str) -> Row[Any] | None:
    """Return what `_LAST` names of a target; None if it is none, or has no result."""
    wanted = select(*_LAST).join(targets, targets.c.id == probed.c.target)
    is_it = targets.c.subject_id == subject_id, targets.c.gone_at_s.is_(None), probed.c.result.is_not(None)
    return transaction.connection.execute(wanted.where(*is_it)).one_or_none()


def count_unprobed(transaction: Transaction, since_s: float) -> int:
    """Return how many targets have no result that was observed since a time; one that lies ahead is none."""
    statement = text("""
        SELECT count(*) FROM targets LEFT JOIN probed ON probed.target = targets.id
        WHERE gone_at_s IS NULL
            AND (observed_at_s IS NULL OR observed_at_s < :since_s OR observed_at_s > :ahead_s)
    """)
    asked = {"since_s": since_s, "ahead_s": transaction.now_s + MAX_AHEAD_SECONDS}
    return transaction.connection.scalar(statement, asked) or 0


def last_observed_at_s(transaction: Transaction) -> float | None:
    """Return the time of the latest observation of all, by its prober's clock; None: there was none."""
    at_s: float | None = transaction.connection.scalar(select(func.max(probed.c.observed_at_s)))
    return at_s


def _subject(row: Sequence[Any]) -> Subject:
    subject_id, target, shard, is_gone, directories, agent, observed_at_s, result, layers = row
    return Subject(
        subject_id, target, shard, bool(is_gone), tuple(directories or ()),
        agent, observed_at_s, result, layers,
    )  # fmt: skip
