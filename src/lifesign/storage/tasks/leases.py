"""Rows of leases.

A resource has one row forever: its last lease, current or ended, and the last granted token. A lease's id
names that row, so that a late request about a replaced lease still finds its successor. On SQLite many rows
are passed as one JSON text, as in `heartbeats`.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Select, bindparam, func, select, text

from lifesign.domain.tasks.lease import Claim, EndReason, ResourceKind, ended
from lifesign.domain.tasks.lease_id import SECRET_BYTES, lease_id_of
from lifesign.domain.tasks.task_states import task_in
from lifesign.storage.engine.table_definitions import leases
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable

MAX_ATTEMPTS = 5
"""Maximum number of attempts for a resource that other callers add at the same time."""

# The members of a Claim, in its order.
_CLAIM_COLUMNS = (
    "resource", "lease_id", "holder", "holder_incarnation", "token",
    "acquired_at_s", "expires_at_s", "ended_at_s", "end_reason", "id_secret",
)  # fmt: skip
_COLUMNS = ", ".join(("number", *_CLAIM_COLUMNS))
_columns: Callable[[Claim], tuple[Any, ...]] = attrgetter(*_CLAIM_COLUMNS)


def _exact(column: str) -> str:
    """Return a time as JSON with all its digits; SQLite's own conversion has 15, which is 10 µs."""
    return f"iif({column} IS NULL, NULL, json(printf('%!.17g', {column})))"


_JSON_ROWS = (
    "SELECT json_group_array(json_array("
    + ", ".join(_exact(name) if name.endswith("_s") else name for name in ("number", *_CLAIM_COLUMNS))
    + ")) FROM"
)

_OF_RESOURCES_SQLITE = text(f"""
    {_JSON_ROWS} leases WHERE resource IN (SELECT value FROM json_each(:resources))
        OR number IN (SELECT value FROM json_each(:numbers))
""")  # noqa: S608 - constants only
_NAMED_POSTGRESQL = text(f"""
    SELECT {_COLUMNS} FROM leases WHERE resource = ANY(CAST(:resources AS text[]))
    ORDER BY number FOR NO KEY UPDATE
""")  # noqa: S608 - constants only
_OF_HOLDERS_SQLITE = text(f"""
    {_JSON_ROWS} leases WHERE holder IN (SELECT value FROM json_each(:holders)) AND ended_at_s IS NULL
""")  # noqa: S608 - constants only
_OF_HOLDERS_POSTGRESQL = text(f"""
    SELECT {_COLUMNS} FROM leases WHERE holder = ANY(CAST(:holders AS text[])) AND ended_at_s IS NULL
    ORDER BY number FOR NO KEY UPDATE
""")  # noqa: S608 - constants only
_EXPIRED_SQLITE = text(f"""
    {_JSON_ROWS} (
        SELECT {_COLUMNS} FROM leases WHERE ended_at_s IS NULL AND expires_at_s <= :at_s
        ORDER BY expires_at_s LIMIT :limit
    )
""")  # noqa: S608 - constants only
_EXPIRED_POSTGRESQL = text(f"""
    SELECT {_COLUMNS} FROM leases WHERE ended_at_s IS NULL AND expires_at_s <= :at_s
    ORDER BY expires_at_s LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
""")  # noqa: S608 - constants only

_ADD_SQLITE = text("""
    INSERT INTO leases (resource, token) SELECT value, 0 FROM json_each(:resources) WHERE true
    ON CONFLICT DO NOTHING
""")
# Existing rows come first, in the order of their numbers; then the missing ones, in one order too. If another
# transaction adds one at the same time, this one waits and skips it. The time is that of the last lock.
_LOCK_POSTGRESQL = text(f"""
    WITH locked AS (
        SELECT {_COLUMNS} FROM leases
        WHERE resource = ANY(CAST(:to_hold AS text[])) OR number = ANY(CAST(:numbers AS bigint[]))
        ORDER BY number FOR NO KEY UPDATE
    ), added AS (
        INSERT INTO leases (resource, token)
        SELECT resource, 0 FROM unnest(CAST(:to_hold AS text[])) AS asked (resource)
        WHERE NOT EXISTS (SELECT FROM locked WHERE locked.resource = asked.resource)
        ORDER BY resource
        ON CONFLICT DO NOTHING
        RETURNING {_COLUMNS}
    )
    SELECT *, CAST(extract(epoch FROM clock_timestamp()) AS double precision)
    FROM (SELECT * FROM locked UNION ALL SELECT * FROM added) held
""")  # noqa: S608 - constants only

_STORE_SQLITE = text(f"""
    UPDATE leases
    SET {", ".join(f"{name} = given.value ->> {place}" for place, name in enumerate(_CLAIM_COLUMNS) if place)}
    FROM json_each(:given) given WHERE leases.resource = given.value ->> 0
""")  # noqa: S608 - constants only
# JSON here too: the driver needs more time for the elements of arrays than the server for the text. The array
# is for the index: with only the join, all leases of some thousands are read to find thirty.
_STORE_POSTGRESQL = text(f"""
    WITH given AS (
        SELECT * FROM json_to_recordset(CAST(:given AS json)) AS given (
            resource text, lease_id text, holder text, holder_incarnation bigint, token bigint,
            acquired_at_s double precision, expires_at_s double precision, ended_at_s double precision,
            end_reason text, id_secret text
        )
    )
    UPDATE leases SET {", ".join(f"{name} = given.{name}" for name in _CLAIM_COLUMNS[1:])}
    FROM given WHERE leases.resource = given.resource
        AND leases.resource = ANY(ARRAY(SELECT resource FROM given))
""")  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFilter:
    """Filter of leases; None matches any."""

    resource: str | None = None
    resource_prefix: str | None = None
    holder: str | None = None
    running_at_s: float | None = None
    """Neither ended nor expired at this time."""


def granted(
    before: Claim,
    number: int,
    *,
    holder: str,
    holder_incarnation: int = 0,
    token: int,
    acquired_at_s: float,
    expires_at_s: float,
) -> Claim:
    """Return a new claim on a resource, for the caller to store; `before` is the last claim in its row."""
    secret = before.id_secret or secrets.token_hex(SECRET_BYTES)
    return Claim(
        resource=before.resource,
        lease_id=lease_id_of(number, token, holder, secret),
        holder=holder,
        holder_incarnation=holder_incarnation,
        token=token,
        acquired_at_s=acquired_at_s,
        expires_at_s=expires_at_s,
        id_secret=secret,
    )


def lock(
    transaction: Transaction, *, to_hold: Iterable[str] = (), numbers: Iterable[int] = ()
) -> dict[int, Claim]:
    """Lock and return the rows of these resources and of these row numbers, by row number.

    A resource that is to be leased gets a row if it has none. This may wait for other transactions. If the
    transaction's time was not read before, it is that after the wait.
    """
    resources, rows_wanted = sorted(set(to_hold)), sorted(set(numbers))
    if not resources and not rows_wanted:
        return {}
    if transaction.is_postgresql:
        return _lock_postgresql(transaction, resources, rows_wanted)
    parameters = {"resources": _json(resources), "numbers": _json(rows_wanted)}
    if resources:
        transaction.connection.execute(_ADD_SQLITE, parameters)
    found = _rows_in(transaction.connection.scalar(_OF_RESOURCES_SQLITE, parameters))
    return {row[0]: _claim(row) for row in sorted(found)}


def _lock_postgresql(
    transaction: Transaction, resources: Sequence[str], numbers: Sequence[int]
) -> dict[int, Claim]:
    found: dict[int, Claim] = {}
    missing, at_s = set(resources), 0.0
    for _ in range(MAX_ATTEMPTS):
        parameters = {"to_hold": sorted(missing), "numbers": numbers}
        for *row, observed_at_of in transaction.connection.execute(_LOCK_POSTGRESQL, parameters):
            found[row[0]], at_s = _claim(row), max(at_s, observed_at_of)
        missing -= {claim.resource for claim in found.values()}
        if not missing:
            break
    else:
        raise StoreUnavailable("other transactions keep changing the same resources")
    if at_s:
        transaction.adopt_time(at_s)
    return dict(sorted(found.items()))


def store(transaction: Transaction, changed: Sequence[Claim]) -> None:
    """Store claims, at most one per resource. Each resource must already have a row."""
    if not changed:
        return
    if transaction.is_postgresql:
        given = [dict(zip(_CLAIM_COLUMNS, _columns(claim), strict=True)) for claim in changed]
        transaction.connection.execute(_STORE_POSTGRESQL, {"given": _json(given)})
    else:
        transaction.connection.execute(
            _STORE_SQLITE, {"given": _json([_columns(claim) for claim in changed])}
        )


def find(transaction: Transaction, resource: str, *, to_change: bool = False) -> Claim | None:
    """Return the last claim on a resource; None if it has no row."""
    wanted = _ALL.where(leases.c.resource == resource)
    if to_change:
        wanted = wanted.with_for_update(key_share=True)
    row = transaction.connection.execute(wanted).one_or_none()
    return None if row is None else _claim(row)


def find_many(transaction: Transaction, resources: Iterable[str]) -> dict[str, Claim]:
    """Return and lock the last claims on resources, by resource; those without a row are absent."""
    named = sorted(resources)
    if transaction.is_postgresql:
        found = transaction.connection.execute(_NAMED_POSTGRESQL, {"resources": named}).all()
    else:
        parameters = {"resources": _json(named), "numbers": "[]"}
        found = _rows_in(transaction.connection.scalar(_OF_RESOURCES_SQLITE, parameters))
    return {row[1]: _claim(row) for row in found}


def count_held(transaction: Transaction, holders: Sequence[str]) -> dict[str, int]:
    """Return the number of leases per holder at the transaction's time; holders without leases are absent."""
    counts = (
        select(leases.c.holder, func.count())
        .where(leases.c.holder.in_(holders), *_running(transaction.now_s))
        .group_by(leases.c.holder)
    )
    return {str(holder): int(number) for holder, number in transaction.connection.execute(counts)}


def tasks_of(transaction: Transaction, holder: str) -> set[str]:
    """Return the ids of the tasks that a holder has leased at the transaction's time."""
    resources = transaction.connection.scalars(
        select(leases.c.resource).where(leases.c.holder == holder, *_running(transaction.now_s))
    )
    return {task_id for resource in resources if (task_id := task_in(resource)) is not None}


def tasks_ever_leased(transaction: Transaction, task_ids: Iterable[str]) -> list[str]:
    """Return those of these tasks that ever had a lease, sorted."""
    prefix = f"{ResourceKind.TASK}:"
    wanted = select(leases.c.resource).where(
        leases.c.resource.in_([f"{prefix}{task_id}" for task_id in task_ids]), leases.c.lease_id.is_not(None)
    )
    return sorted(resource.removeprefix(prefix) for resource in transaction.connection.scalars(wanted))


def end_all_of(transaction: Transaction, holders: Mapping[str, EndReason]) -> dict[str, list[Claim]]:
    """End all leases of these holders, and return those that ended now, in the order of their rows.

    A lease whose time was over had already ended as `expired`, whatever the reason given here.
    """
    if not holders:
        return {}
    if transaction.is_postgresql:
        found = transaction.connection.execute(_OF_HOLDERS_POSTGRESQL, {"holders": sorted(holders)}).all()
    else:
        found = _rows_in(
            transaction.connection.scalar(_OF_HOLDERS_SQLITE, {"holders": _json(sorted(holders))})
        )
    ended_now: dict[str, list[Claim]] = {}
    for row in sorted(found):
        claim = _claim(row)
        holder = str(claim.holder)
        ended_now.setdefault(holder, []).append(ended(claim, holders[holder], transaction.now_s))
    store(transaction, [claim for claims in ended_now.values() for claim in claims])
    return ended_now


def holding(transaction: Transaction, holders: Collection[str]) -> set[str]:
    """Return those of these holders that have a lease that was not ended, even if it is overdue."""
    wanted = select(leases.c.holder).where(
        leases.c.holder.in_(sorted(holders)), leases.c.ended_at_s.is_(None)
    )
    return set(transaction.connection.scalars(wanted.distinct()))


def count_running(transaction: Transaction, resources: Collection[str]) -> dict[str, int]:
    """Return how many of these resources each holder holds now."""
    wanted = select(leases.c.holder, func.count()).where(
        leases.c.resource.in_(sorted(resources)),
        leases.c.ended_at_s.is_(None),
        leases.c.expires_at_s > transaction.now_s,
    )
    found = transaction.connection.execute(wanted.group_by(leases.c.holder))
    return {str(holder): number for holder, number in found}


def expired(transaction: Transaction, at_s: float, limit: int) -> list[Claim]:
    """Return and lock overdue claims that have not ended; the earliest first.

    Those that another transaction changes now are omitted.
    """
    parameters = {"at_s": at_s, "limit": limit}
    if transaction.is_postgresql:
        found = transaction.connection.execute(_EXPIRED_POSTGRESQL, parameters).all()
    else:
        found = _rows_in(transaction.connection.scalar(_EXPIRED_SQLITE, parameters))
    return sorted((_claim(row) for row in found), key=lambda claim: claim.expires_at_s)


def is_any_expired(transaction: Transaction, at_s: float) -> bool:
    """Return whether there is an overdue lease that was not ended yet; nothing is locked."""
    return transaction.connection.execute(_ANY_EXPIRED, {"at_s": at_s}).first() is not None


def listing(transaction: Transaction, wanted: LeaseFilter, *, after: int, limit: int) -> dict[int, Claim]:
    """Return the last lease of each resource, by row number, ascending from above `after`."""
    statement = _filtered(_ALL, wanted).where(leases.c.number > after).order_by(leases.c.number).limit(limit)
    return {row[0]: _claim(row) for row in transaction.connection.execute(statement)}


def count(transaction: Transaction, wanted: LeaseFilter) -> int:
    """Return the number of leases."""
    statement = _filtered(select(func.count()).select_from(leases), wanted)
    return transaction.connection.scalar(statement) or 0


# Created once: each sweep runs it.
_ANY_EXPIRED = (
    select(leases.c.number)
    .where(leases.c.ended_at_s.is_(None), leases.c.expires_at_s <= bindparam("at_s"))
    .limit(1)
)
_ALL = select(leases.c.number, *(leases.c[name] for name in _CLAIM_COLUMNS))


def _running(at_s: float) -> tuple[Any, Any]:
    return leases.c.ended_at_s.is_(None), leases.c.expires_at_s > at_s


def _filtered(statement: Select[Any], wanted: LeaseFilter) -> Select[Any]:
    # A row without a lease belongs to a resource that was never leased.
    statement = statement.where(leases.c.lease_id.is_not(None))
    if wanted.resource is not None:
        statement = statement.where(leases.c.resource == wanted.resource)
    if wanted.resource_prefix is not None:
        # Not LIKE, which has wildcards and ignores case on SQLite.
        length = len(wanted.resource_prefix)
        statement = statement.where(func.substr(leases.c.resource, 1, length) == wanted.resource_prefix)
    if wanted.holder is not None:
        statement = statement.where(leases.c.holder == wanted.holder)
    if wanted.running_at_s is not None:
        statement = statement.where(*_running(wanted.running_at_s))
    return statement


def _json(value: object) -> str:
    return to_json(value).decode()


def _rows_in(json: Any) -> list[Any]:
    """Return rows as SQLite gave them in one JSON text."""
    return list(from_json(json))


def _claim(row: Sequence[Any]) -> Claim:
    _, resource, lease_id, holder, incarnation, token, acquired_at_s, expires_at_s, *rest = row
    ended_at_s, reason, id_secret = rest
    return Claim(
        resource=resource,
        lease_id=lease_id,
        holder=holder,
        holder_incarnation=incarnation or 0,
        token=token,
        acquired_at_s=acquired_at_s or 0.0,
        expires_at_s=expires_at_s or 0.0,
        ended_at_s=ended_at_s,
        end_reason=None if reason is None else EndReason(reason),
        id_secret=id_secret,
    )
