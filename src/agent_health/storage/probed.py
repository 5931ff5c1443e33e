"""What did the last probe of each target leave? Narrow rows, written with every probe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import select, text

from agent_health.storage.database import Transaction
from agent_health.storage.tables import targets


@dataclass(slots=True)
class Subject:
    """What must be known of whom an observation concerns, before it is taken in."""

    subject_id: str
    target: int | None
    """Our number of the target; None if it is none."""
    url: str | None
    shard: int | None
    is_gone: bool
    is_registered: bool
    directories: tuple[int, ...]
    """Which list it."""
    agent: int | None
    """Our number of its record; None if it has none."""
    observed_at_s: float | None
    """The time of the last observation that counted; None before the first one."""
    result: str | None
    result_since_s: float | None
    memory: str | None
    seen: str | None
    protocol_version: str | None


# What `store` writes, in this order.
_STORED = (
    "target", "observed_at_s", "result", "result_since_s", "memory", "seen", "protocol_version",
)  # fmt: skip
_JOINS = """
    LEFT JOIN targets ON targets.subject_id = asked.value
    LEFT JOIN agents ON agents.agent_id = asked.value
    LEFT JOIN probed ON probed.target = targets.id
"""


def _exact(column: str) -> str:
    """Return a time as JSON with all its digits: by itself SQLite writes 15, which is 10 µs."""
    return f"iif({column} IS NULL, NULL, json(printf('%!.17g', {column})))"


_OF_SQLITE = text(f"""
    SELECT json_group_array(json_array(
        asked.value, targets.id, targets.url, targets.shard, targets.gone_at_s IS NOT NULL,
        coalesce(targets.is_registered, false),
        (SELECT json_group_array(directory) FROM listings WHERE listings.target = targets.id),
        agents.id, {_exact("probed.observed_at_s")}, probed.result, {_exact("probed.result_since_s")},
        probed.memory, probed.seen, probed.protocol_version
    ))
    FROM json_each(:subjects) AS asked {_JOINS}
""")  # noqa: S608 - constants only
_OF_POSTGRESQL = text(f"""
    SELECT CAST(json_agg(json_build_array(
        asked.value, targets.id, targets.url, targets.shard, targets.gone_at_s IS NOT NULL,
        coalesce(targets.is_registered, false),
        (SELECT json_agg(directory) FROM listings WHERE listings.target = targets.id),
        agents.id, probed.observed_at_s, probed.result, probed.result_since_s,
        probed.memory, probed.seen, probed.protocol_version
    )) AS text)
    FROM unnest(CAST(:subjects AS text[])) AS asked (value) {_JOINS}
""")  # noqa: S608 - constants only
_STORE_TAIL = """
    ON CONFLICT (target) DO UPDATE SET
        observed_at_s = excluded.observed_at_s, result = excluded.result,
        result_since_s = excluded.result_since_s, memory = excluded.memory, seen = excluded.seen,
        protocol_version = excluded.protocol_version
"""
_STORE_SQLITE = text(f"""
    INSERT INTO probed ({", ".join(_STORED)})
    SELECT {", ".join(f"value ->> {place}" for place in range(len(_STORED)))} FROM json_each(:rows) WHERE true
    {_STORE_TAIL}
""")  # noqa: S608 - constants only
_STORE_POSTGRESQL = text(f"""
    INSERT INTO probed ({", ".join(_STORED)})
    SELECT CAST(said ->> 0 AS bigint), CAST(said ->> 1 AS double precision), said ->> 2,
        CAST(said ->> 3 AS double precision), said ->> 4, said ->> 5, said ->> 6
    FROM json_array_elements(CAST(:rows AS json)) AS said
    {_STORE_TAIL}
""")  # noqa: S608 - constants only


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


def store(transaction: Transaction, changed: Sequence[Subject]) -> None:
    """Store what probes left of these targets."""
    if not changed:
        return
    rows = sorted([getattr(subject, name) for name in _STORED] for subject in changed)
    statement = _STORE_POSTGRESQL if transaction.is_postgresql else _STORE_SQLITE
    transaction.connection.execute(statement, {"rows": to_json(rows).decode()})


def count_unprobed(transaction: Transaction, since_s: float) -> int:
    """Return how many targets have no result that was observed since a time."""
    statement = text("""
        SELECT count(*) FROM targets LEFT JOIN probed ON probed.target = targets.id
        WHERE gone_at_s IS NULL AND (observed_at_s IS NULL OR observed_at_s < :since_s)
    """)
    return transaction.connection.scalar(statement, {"since_s": since_s}) or 0


def _subject(row: Sequence[Any]) -> Subject:
    subject_id, target, url, shard, is_gone, is_registered, directories, *others = row
    return Subject(
        subject_id, target, url, shard, bool(is_gone), bool(is_registered), tuple(directories or ()), *others
    )
