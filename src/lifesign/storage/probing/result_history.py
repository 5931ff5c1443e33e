"""History of probe results: changes per target, and counts per hour.

Both are small, and old ones are deleted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from sqlalchemy import delete, func, select, text

from lifesign.storage.engine.table_definitions import result_changes, result_sums, targets
from lifesign.storage.engine.transaction import Transaction

ALL_TARGETS = 0
"""Used in place of a directory: every target once."""
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class ResultChange:
    """A result that differs from the previous one."""

    target: int
    at_s: float
    layer: str
    previous: str
    result: str
    evidence: str | None


SumKey = tuple[int, int, str, str, int]
"""Hour since the epoch, directory, layer, result, bucket of the latency."""

SumRow = tuple[str, str, int, int]
"""Layer, result, bucket of the latency, count."""

_SUMS = ("hour", "directory", "layer", "result", "bucket", "count")
_ADD_TAIL = """
    ON CONFLICT (hour, directory, layer, result, bucket)
    DO UPDATE SET count = result_sums.count + excluded.count
"""
_ADD_SQLITE = text(f"""
    INSERT INTO result_sums ({", ".join(_SUMS)})
    SELECT {", ".join(f"value ->> {place}" for place in range(len(_SUMS)))} FROM json_each(:rows) WHERE true
    {_ADD_TAIL}
""")  # noqa: S608 - constants only
_ADD_POSTGRESQL = text(f"""
    INSERT INTO result_sums ({", ".join(_SUMS)})
    SELECT CAST(given ->> 0 AS integer), CAST(given ->> 1 AS bigint), given ->> 2, given ->> 3,
        CAST(given ->> 4 AS integer), CAST(given ->> 5 AS bigint)
    FROM json_array_elements(CAST(:rows AS json)) AS given
    {_ADD_TAIL}
""")  # noqa: S608 - constants only
_CHANGES = ("target", "at_s", "layer", "previous", "result", "evidence")
_CHANGE_SQLITE = text(f"""
    INSERT INTO result_changes ({", ".join(_CHANGES)})
    SELECT {", ".join(f"value ->> {place}" for place in range(len(_CHANGES)))} FROM json_each(:rows)
""")  # noqa: S608 - constants only
_CHANGE_POSTGRESQL = text(f"""
    INSERT INTO result_changes ({", ".join(_CHANGES)})
    SELECT CAST(given ->> 0 AS bigint), CAST(given ->> 1 AS double precision), given ->> 2, given ->> 3,
        given ->> 4, given ->> 5
    FROM json_array_elements(CAST(:rows AS json)) AS given
""")  # noqa: S608 - constants only
# The ids of one target's changes ascend with time: all but the last ones go.
_TRIM = text("""
    DELETE FROM result_changes WHERE id IN (
        SELECT id FROM (
            SELECT id, row_number() OVER (PARTITION BY target ORDER BY id DESC) AS place
            FROM result_changes WHERE target > :after AND target <= :last
        ) AS placed WHERE place > :most
    )
""")


def hour_of(at_s: float) -> int:
    """Return the hour of a time, counted from the epoch."""
    return int(at_s // SECONDS_PER_HOUR)


def add_changes(transaction: Transaction, changes: Sequence[ResultChange]) -> None:
    """Store changes in the order in which they happened."""
    if not changes:
        return
    rows = [[getattr(change, name) for name in _CHANGES] for change in changes]
    statement = _CHANGE_POSTGRESQL if transaction.is_postgresql else _CHANGE_SQLITE
    transaction.connection.execute(statement, {"rows": to_json(rows).decode()})


def add_sums(transaction: Transaction, sums: Mapping[SumKey, int]) -> None:
    """Add to the sums of results; call it last, since all transactions of an hour change the same rows."""
    if not sums:
        return
    # The same order for all transactions prevents deadlocks.
    rows = [(*key, count) for key, count in sorted(sums.items())]
    statement = _ADD_POSTGRESQL if transaction.is_postgresql else _ADD_SQLITE
    transaction.connection.execute(statement, {"rows": to_json(rows).decode()})


def sums_between(transaction: Transaction, directory: int, since_hour: int, until_hour: int) -> list[SumRow]:
    """Return the sums of results of the hours from `since_hour` to before `until_hour`."""
    wanted = (
        select(result_sums.c.layer, result_sums.c.result, result_sums.c.bucket, func.sum(result_sums.c.count))
        .where(
            result_sums.c.directory == directory,
            result_sums.c.hour >= since_hour,
            result_sums.c.hour < until_hour,
        )
        .group_by(result_sums.c.layer, result_sums.c.result, result_sums.c.bucket)
        .order_by(result_sums.c.layer, result_sums.c.result, result_sums.c.bucket)
    )
    return [
        (str(layer), str(result), int(bucket), int(count))
        for layer, result, bucket, count in transaction.connection.execute(wanted)
    ]


def changes_of(transaction: Transaction, target: int, limit: int) -> list[ResultChange]:
    """Return a target's last changes, the latest first."""
    wanted = (
        select(*(result_changes.c[name] for name in _CHANGES))
        .where(result_changes.c.target == target)
        .order_by(result_changes.c.id.desc())
        .limit(limit)
    )
    return [ResultChange(*row) for row in transaction.connection.execute(wanted)]


def forget_sums(transaction: Transaction, before_hour: int, hours: int) -> bool:
    """Delete the sums of the oldest `hours` before an hour; return whether more may remain."""
    oldest = transaction.connection.scalar(select(func.min(result_sums.c.hour)))
    if oldest is None or oldest >= before_hour:
        return False
    last = min(before_hour, oldest + hours)
    transaction.connection.execute(delete(result_sums).where(result_sums.c.hour < last))
    return bool(last < before_hour)


def forget_changes(transaction: Transaction, before_s: float, limit: int) -> bool:
    """Delete at most `limit` changes before a time, the oldest first; return whether more may remain."""
    oldest = select(result_changes.c.id, result_changes.c.at_s).order_by(result_changes.c.id).limit(limit)
    found = transaction.connection.execute(oldest).all()
    old = [row.id for row in found if row.at_s < before_s]
    if old:
        transaction.connection.execute(delete(result_changes).where(result_changes.c.id.in_(old)))
    return len(old) == limit


def trim_changes(transaction: Transaction, *, after: int, span: int, most: int) -> int | None:
    """Keep only the latest changes of the next `span` targets after `after`; return where to continue.

    None if that was the end.
    """
    last = after + span
    transaction.connection.execute(_TRIM, {"after": after, "last": last, "most": most})
    beyond: Any = select(targets.c.id).where(targets.c.id > last).limit(1)
    return None if transaction.connection.execute(beyond).first() is None else last
