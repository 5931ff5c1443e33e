"""Search of targets in pages, and all facts about one target."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, false, func, literal, or_, select, tuple_

from lifesign.domain.observation.assertion import AssertionOutcome
from lifesign.storage.engine.table_definitions import (
    directories,
    listings,
    probe_results,
    targets,
)
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFilter:
    """Filter of targets; empty or None matches any."""

    subject_id: str | None = None
    results: Sequence[str] = ()
    layer_results: Sequence[str] = ()
    """Last results of a layer or a path, of which one is enough."""
    has_failed_assertions: bool = False
    """Only targets whose last observation has a failed assertion."""
    never_probed: bool = False
    """Also targets without a result; with no results given, only those."""
    directory: int | None = None
    host: str | None = None
    include_gone: bool = False
    max_evidence_age_s: float | None = None
    """Maximum age of the targets' last measured result; a target without one never matches."""
    old_evidence: bool | None = None
    """Targets whose last measured result is too old: False excludes them; True adds them to those with one of
    the results; None ignores the age.
    """


@dataclass(frozen=True, slots=True)
class HostCursor:
    """Last target of a page in the order of hosts."""

    id: int
    host: str


_SUMMARY: tuple[Any, ...] = (
    targets.c.id, targets.c.subject_id, targets.c.url, targets.c.host, targets.c.gone_at_s,
    targets.c.gone_reason,
    probe_results.c.result, probe_results.c.result_since_s,
    probe_results.c.observed_at_s, probe_results.c.observed,
    probe_results.c.layers, probe_results.c.evidence_at_s, probe_results.c.evidence_until_s,
    probe_results.c.results_until_s,
    probe_results.c.inconclusive_reason,
)  # fmt: skip
_ALL_COLUMNS: tuple[Any, ...] = (
    *_SUMMARY, targets.c.shard, targets.c.is_registered, targets.c.added_at_s,
    targets.c.recheck_at_s, probe_results.c.memory,
)  # fmt: skip


def listing(transaction: Transaction, wanted: TargetFilter, *, after: int, limit: int) -> list[Row[Any]]:
    """Return targets with their last results (columns `_SUMMARY`), after the row number `after`."""
    statement = _filtered(transaction, select(*_SUMMARY), wanted).where(targets.c.id > after)
    return list(transaction.connection.execute(statement.order_by(targets.c.id).limit(limit)))


def by_host(
    transaction: Transaction, wanted: TargetFilter, *, after: HostCursor | None, limit: int, is_common: bool
) -> list[Row[Any]]:
    """Return targets with their last results, ordered by host and URL, after a position.

    `is_common`: so many match that walking along the order is faster than sorting the matches.
    """
    host, url = targets.c.host, targets.c.url
    is_walk = is_common or wanted.host is not None
    statement = _filtered(
        transaction, select(*_SUMMARY), wanted, is_walk=is_walk and not transaction.is_postgresql
    )
    # No index is used for an expression: matches are found first, and then sorted.
    order = (host, url) if is_walk else (host.concat(""), url.concat(""))
    if after is not None:
        known = select(url, targets.c.id).where(targets.c.id == after.id, host == after.host)
        # After a removal, the host's page starts again at its first URL.
        after_url, after_id = transaction.connection.execute(known).one_or_none() or ("", 0)
        place = tuple_(literal(after.host), literal(after_url), literal(after_id))
        statement = statement.where(tuple_(*order, targets.c.id) > place)
    return list(transaction.connection.execute(statement.order_by(*order, targets.c.id).limit(limit)))


def count(transaction: Transaction, wanted: TargetFilter) -> int:
    """Return the number of matching targets."""
    counted = _filtered(transaction, select(func.count(targets.c.id)), wanted)
    return transaction.connection.scalar(counted) or 0


def find_target(transaction: Transaction, subject_id: str) -> Row[Any] | None:
    """Return all columns of one target; None if the id is unknown."""
    tables = targets.outerjoin(probe_results, probe_results.c.target == targets.c.id)
    statement = select(*_ALL_COLUMNS).select_from(tables).where(targets.c.subject_id == subject_id)
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


def _filtered(
    transaction: Transaction, statement: Select[Any], wanted: TargetFilter, *, is_walk: bool = False
) -> Select[Any]:
    """Return the query; `is_walk`: by reading one target after the other."""
    tables = targets.outerjoin(probe_results, probe_results.c.target == targets.c.id)
    if wanted.directory is not None and is_walk:
        is_listed = (listings.c.target == targets.c.id) & (listings.c.directory == wanted.directory)
        statement = statement.where(select(listings.c.target).where(is_listed).exists())
    elif wanted.directory is not None:
        tables = tables.join(listings, listings.c.target == targets.c.id)
        statement = statement.where(listings.c.directory == wanted.directory)
    if not wanted.include_gone:
        statement = statement.where(targets.c.gone_at_s.is_(None))
    if wanted.subject_id is not None:
        statement = statement.where(targets.c.subject_id == wanted.subject_id)
    if wanted.host is not None:
        statement = statement.where(targets.c.host == wanted.host)
    if wanted.max_evidence_age_s is not None:
        seen_from_s = transaction.now_s - wanted.max_evidence_age_s
        statement = statement.where(probe_results.c.evidence_at_s >= seen_from_s)
    result = probe_results.c.result.concat("") if is_walk else probe_results.c.result
    statement = statement.where(*_of_observations(wanted))
    was_measured = result.is_not(None) & probe_results.c.evidence_at_s.is_not(None)
    is_old = was_measured & func.coalesce(probe_results.c.evidence_until_s < transaction.now_s, false())
    if wanted.old_evidence is False:
        statement = statement.where(~is_old)
    alternatives = (
        (result.in_(wanted.results), bool(wanted.results)),
        (is_old, wanted.old_evidence is True),
        (result.is_(None), wanted.never_probed),
    )
    conditions = [condition for condition, is_asked in alternatives if is_asked]
    if conditions:
        statement = statement.where(or_(*conditions))
    return statement.select_from(tables)


def _of_observations(wanted: TargetFilter) -> Iterator[ColumnElement[bool]]:
    """Return conditions without an index: the last results of each target are read."""
    if wanted.layer_results:
        layers = literal(",").concat(probe_results.c.layers).concat(",")
        # Results of paths are in the whole observation only; those of assertions have the other names.
        of_paths = [each for each in wanted.layer_results if each not in set(AssertionOutcome)]
        yield or_(
            *(layers.contains(f",{each},", autoescape=True) for each in wanted.layer_results),
            *(_has_result(each) for each in of_paths),
        )
    if wanted.has_failed_assertions:
        yield _has_result(AssertionOutcome.ASSERTION_FAILED)


def _has_result(result: str) -> ColumnElement[bool]:
    """Return whether any part of the last measured observation has a result."""
    # Quotes in texts of peers are escaped there.
    return probe_results.c.observed.contains(f'"result":"{result}"', autoescape=True)
