"""Opted-out origins, and requests that are not proven yet."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from sqlalchemy import delete, func, insert, or_, select, update

from lifesign.domain.targets.target import host_of
from lifesign.storage.engine.table_definitions import opt_outs
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOptOut:
    """One origin's opt-out, proven or not; the members are the columns of `opt_outs`."""

    origin: str
    token: str
    requested_at_s: float
    checked_at_s: float | None
    proven_at_s: float | None


_ALL = select(*(opt_outs.c[member.name] for member in fields(StoredOptOut)))


def find(transaction: Transaction, origin: str, *, to_change: bool = False) -> StoredOptOut | None:
    """Return the opt-out of an origin, proven or not; `to_change` locks it."""
    wanted = _ALL.where(opt_outs.c.origin == origin)
    row = transaction.connection.execute(wanted.with_for_update() if to_change else wanted).one_or_none()
    return None if row is None else StoredOptOut(**row._mapping)  # noqa: SLF001 - its public name


def put(transaction: Transaction, origin: str, token: str) -> StoredOptOut:
    """Store a new token for an origin's opt-out; an earlier token is replaced."""
    remove(transaction, origin)
    given = StoredOptOut(
        origin=origin, token=token, requested_at_s=transaction.now_s, checked_at_s=None, proven_at_s=None
    )
    columns = {member.name: getattr(given, member.name) for member in fields(given)}
    transaction.connection.execute(insert(opt_outs).values(columns))
    return given


def remove(transaction: Transaction, origin: str) -> None:
    """Remove the opt-out of an origin."""
    transaction.connection.execute(delete(opt_outs).where(opt_outs.c.origin == origin))


def set_checked(transaction: Transaction, origin: str, at_s: float | None) -> None:
    """Store when an origin's token was last checked; None: check it at once."""
    transaction.connection.execute(
        update(opt_outs).where(opt_outs.c.origin == origin).values(checked_at_s=at_s)
    )


def set_proven(transaction: Transaction, origin: str) -> None:
    """Store that an origin's owner has proven the opt-out."""
    proven = {"proven_at_s": transaction.now_s, "checked_at_s": transaction.now_s}
    transaction.connection.execute(update(opt_outs).where(opt_outs.c.origin == origin).values(proven))


def unproven(
    transaction: Transaction,
    *,
    asked_after_s: float,
    checked_before_s: float,
    limit: int,
    to_change: bool = False,
) -> list[StoredOptOut]:
    """Return unproven opt-outs whose token was not checked since a time.

    `to_change` omits those that another transaction changes now.
    """
    wanted = (
        _ALL.where(
            opt_outs.c.proven_at_s.is_(None),
            opt_outs.c.requested_at_s > asked_after_s,
            or_(opt_outs.c.checked_at_s.is_(None), opt_outs.c.checked_at_s <= checked_before_s),
        )
        .order_by(opt_outs.c.requested_at_s)
        .limit(limit)
    )
    if to_change:
        wanted = wanted.with_for_update(skip_locked=True)
    rows = transaction.connection.execute(wanted)
    return [StoredOptOut(**row._mapping) for row in rows]  # noqa: SLF001 - its public name


def proven_by_host(transaction: Transaction) -> dict[str, list[str]]:
    """Return the opted-out origins, by their hosts."""
    found: dict[str, list[str]] = {}
    for origin in transaction.connection.scalars(
        select(opt_outs.c.origin).where(opt_outs.c.proven_at_s.is_not(None))
    ):
        found.setdefault(host_of(origin), []).append(origin)
    return found


def proven_among(transaction: Transaction, origins: Iterable[str]) -> list[str]:
    """Return those of these origins that have opted out."""
    wanted = select(opt_outs.c.origin).where(
        opt_outs.c.origin.in_(list(origins)), opt_outs.c.proven_at_s.is_not(None)
    )
    return list(transaction.connection.scalars(wanted))


def listing(transaction: Transaction, *, after: str, limit: int) -> list[StoredOptOut]:
    """Return opt-outs in the order of their origins, after the origin `after`."""
    wanted = _ALL.where(opt_outs.c.origin > after).order_by(opt_outs.c.origin).limit(limit)
    rows = transaction.connection.execute(wanted)
    return [StoredOptOut(**row._mapping) for row in rows]  # noqa: SLF001 - its public name


def count(transaction: Transaction) -> int:
    """Return the number of stored opt-outs, proven or not."""
    return transaction.connection.scalar(select(func.count()).select_from(opt_outs)) or 0


def forget_unproven(transaction: Transaction, asked_before_s: float) -> None:
    """Delete unproven opt-outs that were requested before a time."""
    transaction.connection.execute(
        delete(opt_outs).where(opt_outs.c.proven_at_s.is_(None), opt_outs.c.requested_at_s <= asked_before_s)
    )
