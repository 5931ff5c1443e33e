"""Probers: one row for each worker, as long as it claims shards and for some time after its end."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, func, not_, select, update

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.missing_credentials import GONE_SECONDS
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.probing.shard_eligibility import HOLDER_SEPARATOR, key_of
from lifesign.domain.probing.shard_share import MAX_TTL_SECONDS
from lifesign.storage.agents.agent_rows import insert_or_replace
from lifesign.storage.engine.table_definitions import probers
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCredential:
    """State of a worker's credential, from the worker's last claim."""

    scope: CredentialScope
    state: CredentialState | None = None
    since_s: float | None = None
    """Begin of its fault, by the registry's clock."""
    detail: str | None = None
    """What is known of its fault."""
    worked_at_s: float | None = None
    """Last time at which a server accepted it, by the registry's clock."""
    refused_at_s: float | None = None
    """Last time at which it had a fault, by the registry's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProber:
    """A worker of a prober, as it last claimed shards."""

    holder: str
    """Holder of its leases: its key, a slash, and its own name."""
    joined_at_s: float
    expires_at_s: float
    interval_s: float | None = None
    reached: tuple[str, ...] | None = None
    """Network classes in which a witness answered it; None before it knows."""
    offset_s: float | None = None
    """Wall clock of the worker minus the database's; None if it does not report its time."""
    credentials: tuple[StoredCredential, ...] = ()
    """Names, places and states of its credentials."""


MAX_STEP_S = 60.0
"""A clock that was set back by less ends no worker."""

MAX_PARSED = 256
"""Number of parsed lists of credentials that are cached."""

MAX_ENDED = 16
"""Workers of one key that are remembered after their end."""

_COLUMNS = tuple(probers.c[name] for name in StoredProber.__dataclass_fields__)


def is_living(now_s: float) -> ColumnElement[bool]:
    """Return the SQL condition that a worker is alive at a time."""
    ends_s = probers.c.expires_at_s
    return (ends_s > now_s) & (ends_s <= now_s + MAX_TTL_SECONDS + MAX_STEP_S)


def lock_all(transaction: Transaction) -> None:
    """Keep workers from joining and leaving until the transaction ends."""
    if transaction.is_postgresql:
        transaction.connection.exec_driver_sql("LOCK TABLE probers IN SHARE ROW EXCLUSIVE MODE")


def running(transaction: Transaction, limit: int) -> list[StoredProber]:
    """Return the living workers, in the order of their names.

    A worker that claimed before the clock was set back would live for as long as the clock was ahead.
    """
    wanted = select(*_COLUMNS).where(is_living(transaction.now_s)).order_by(probers.c.holder)
    return [_stored(row) for row in transaction.connection.execute(wanted.limit(limit))]


def ended(transaction: Transaction) -> list[StoredProber]:
    """Return the workers with credentials that ended less than GONE_SECONDS ago, by name."""
    now_s = transaction.now_s
    wanted = select(*_COLUMNS).where(
        probers.c.expires_at_s <= now_s, _is_remembered(now_s), probers.c.credentials.is_not(None)
    )
    return [_stored(row) for row in transaction.connection.execute(wanted.order_by(probers.c.holder))]


def longest_interval_s(transaction: Transaction) -> float | None:
    """Return the longest probe interval of a living worker; None if no living worker reports one."""
    longest = select(func.max(probers.c.interval_s)).where(is_living(transaction.now_s))
    longest_s: float | None = transaction.connection.scalar(longest)
    return longest_s


def longest_intervals_s(transaction: Transaction) -> dict[str, float]:
    """Return the longest probe interval of the living workers of each prober key that reports one."""
    longest_s: dict[str, float] = {}
    wanted = select(probers.c.holder, probers.c.interval_s).where(
        is_living(transaction.now_s), probers.c.interval_s.is_not(None)
    )
    for holder, interval_s in transaction.connection.execute(wanted):
        key = key_of(holder)
        longest_s[key] = max(longest_s.get(key, 0.0), interval_s)
    return longest_s


def listing(transaction: Transaction, limit: int) -> list[tuple[str, float, float]]:
    """Return the living workers by name: holder, when it joined, and when its claim expires."""
    return [(each.holder, each.joined_at_s, each.expires_at_s) for each in running(transaction, limit)]


def store(transaction: Transaction, prober: StoredProber) -> None:
    """Store a worker that claims shards, and delete workers that ended long ago."""
    transaction.connection.execute(delete(probers).where(not_(_is_remembered(transaction.now_s))))
    _delete_surplus(transaction, key_of(prober.holder))
    row: dict[str, Any] = {column.name: getattr(prober, column.name) for column in _COLUMNS}
    row["reached"] = None if prober.reached is None else json.dumps(prober.reached)
    places = [
        (
            each.scope.name,
            each.scope.origin,
            each.scope.path,
            each.state,
            each.since_s,
            each.detail,
            each.scope.card_origins,
            each.worked_at_s,
            each.refused_at_s,
        )
        for each in prober.credentials
    ]
    row["credentials"] = json.dumps(places) if places else None
    transaction.connection.execute(insert_or_replace(transaction, probers, "holder"), row)


def end(transaction: Transaction, holder: str) -> None:
    """End a worker that leaves."""
    now_s = transaction.now_s
    is_ending = (probers.c.holder == holder) & (probers.c.expires_at_s > now_s)
    transaction.connection.execute(update(probers).where(is_ending).values(expires_at_s=now_s))


def remove_keys(transaction: Transaction, keys: Iterable[str]) -> None:
    """Delete the rows of all workers of these keys."""
    for key in sorted(keys):
        transaction.connection.execute(delete(probers).where(_is_of(key)))


def _is_of(key: str) -> ColumnElement[bool]:
    return probers.c.holder.startswith(key + HOLDER_SEPARATOR, autoescape=True)


def _is_remembered(now_s: float) -> ColumnElement[bool]:
    ends_s = probers.c.expires_at_s
    return (ends_s > now_s - GONE_SECONDS) & (ends_s <= now_s + MAX_TTL_SECONDS + MAX_STEP_S)


def _delete_surplus(transaction: Transaction, key: str) -> None:
    """Delete the workers of a key that ended before its last MAX_ENDED."""
    has_ended = _is_of(key) & (probers.c.expires_at_s <= transaction.now_s)
    newest_first = select(probers.c.holder).where(has_ended).order_by(probers.c.expires_at_s.desc())
    surplus = [*transaction.connection.scalars(newest_first.offset(MAX_ENDED))]
    if surplus:
        transaction.connection.execute(delete(probers).where(probers.c.holder.in_(surplus)))


def _stored(row: Row[Any]) -> StoredProber:
    members: dict[str, Any] = row._asdict()
    if row.reached is not None:
        members["reached"] = tuple(json.loads(row.reached))
    members["credentials"] = () if row.credentials is None else _credentials(row.credentials)
    return StoredProber(**members)


# Every claim reads the places of all living workers, and most workers have the same ones.
@lru_cache(maxsize=MAX_PARSED)
def _credentials(text: str) -> tuple[StoredCredential, ...]:
    return tuple(
        StoredCredential(
            scope=CredentialScope(name=name, origin=origin, path=path, card_origins=tuple(card_origins)),
            state=None if state is None else CredentialState(state),
            since_s=since_s,
            detail=detail,
            worked_at_s=worked_at_s,
            refused_at_s=refused_at_s,
        )
        for (
            name, origin, path, state, since_s, detail, card_origins, worked_at_s, refused_at_s
        ) in json.loads(text)
    )  # fmt: skip
