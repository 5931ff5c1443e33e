"""Which targets match, in pages, and what is all that is known of one?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, func, or_, select

from agent_health.storage.database import Transaction
from agent_health.storage.tables import agents, directories, listings, probed, targets
from agent_health.target import shard_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFilter:
    """Which targets are looked for; None and empty mean any."""

    subject_id: str | None = None
    results: Sequence[str] = ()
    never_measured: bool = False
    """Also those without a result; with no results, those alone."""
    directory: int | None = None
    host: str | None = None
    include_gone: bool = False


_SUMMARY: tuple[Any, ...] = (
    targets.c.id, targets.c.subject_id, targets.c.url, targets.c.gone_at_s, targets.c.gone_reason,
    probed.c.result, probed.c.result_since_s, probed.c.observed_at_s, probed.c.seen,
    probed.c.layers,
)  # fmt: skip
_WHOLE: tuple[Any, ...] = (
    *_SUMMARY, targets.c.host, targets.c.shard, targets.c.is_registered, targets.c.added_at_s,
    targets.c.recheck_at_s, probed.c.memory, agents.c.status, agents.c.health,
)  # fmt: skip


def listing(transaction: Transaction, wanted: TargetFilter, *, after: int, limit: int) -> list[Row[Any]]:
    """Return targets behind our number `after`, with their last results; the rows have `_SUMMARY`'s names."""
    statement = _filtered(select(*_SUMMARY), wanted).where(targets.c.id > after)
    return list(transaction.connection.execute(statement.order_by(targets.c.id).limit(limit)))


def count(transaction: Transaction, wanted: TargetFilter) -> int:
    """Return how many there are."""
    return transaction.connection.scalar(_filtered(select(func.count(targets.c.id)), wanted)) or 0


def whole(transaction: Transaction, subject_id: str) -> Row[Any] | None:
    """Return all columns that tell of one target; None if there is none of this id."""
    tables = targets.outerjoin(probed, probed.c.target == targets.c.id).outerjoin(
        agents, agents.c.agent_id == targets.c.subject_id
    )
    statement = select(*_WHOLE).select_from(tables).where(targets.c.subject_id == subject_id)
    return transaction.connection.execute(statement).one_or_none()


def directories_of(transaction: Transaction, number: int) -> list[str]:
    """Return the names of the directories that list a target."""
    statement = (
        select(directories.c.name)
        .select_from(directories.join(listings, listings.c.directory == directories.c.id))
        .where(listings.c.target == number)
        .order_by(directories.c.name)
    )
    return list(transaction.connection.scalars(statement))


def _filtered(statement: Select[Any], wanted: TargetFilter) -> Select[Any]:
    tables = targets.outerjoin(probed, probed.c.target == targets.c.id)
    if wanted.directory is not None:
        tables = tables.join(listings, listings.c.target == targets.c.id)
        statement = statement.where(listings.c.directory == wanted.directory)
    if not wanted.include_gone:
        statement = statement.where(targets.c.gone_at_s.is_(None))
    if wanted.subject_id is not None:
        statement = statement.where(targets.c.subject_id == wanted.subject_id)
    if wanted.host is not None:
        # All targets of a host lie in one shard, and an index leads there.
        statement = statement.where(targets.c.shard == shard_of(wanted.host), targets.c.host == wanted.host)
    has_result = probed.c.result.in_(wanted.results)
    if wanted.results and wanted.never_measured:
        statement = statement.where(or_(has_result, probed.c.result.is_(None)))
    elif wanted.results:
        statement = statement.where(has_result)
    elif wanted.never_measured:
        statement = statement.where(probed.c.result.is_(None))
    return statement.select_from(tables)
