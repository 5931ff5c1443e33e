"""Counts of targets by kind, and results of passes over all of them.

`prober/census` interprets the counts. Former targets are counted by `targets.count_former`, and not here.

A result that is too old counts as `not_measured`. `pass_ended_s` is for a census by single passes, which is
as old as its pass: a result up to that moment does not age.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from pydantic_core import from_json, to_json
from sqlalchemy import ColumnElement, delete, func, insert, literal_column, select, text, update

from lifesign.domain.models.census import Deadlines
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import SHARDS, TargetKind
from lifesign.storage.engine.table_definitions import census_runs, probe_results, targets
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing.result_history import ALL_TARGETS, SumRow, hour_of, sums_between

ROWS_AT_ONCE = 10_000
"""Number of rows that are fetched at a time."""
ROUNDED_S = 1e-3
"""Observations come with whole milliseconds: one of the moment in which a pass began is its own."""
NEVER_PROBED = "never_probed"
"""Result of targets without a result, in stored counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPass:
    """One pass over all targets."""

    run_id: str
    name: str
    began_at_s: float
    ended_at_s: float | None
    """None: the pass is running, or was interrupted."""
    deadlines: Deadlines | None
    """Deadlines of its requests; None: unknown, or different among the participants."""
    not_read: tuple[str, ...] = ()
    """Directories that could not be read for it."""
    counts: Mapping[str | None, int]
    """Number of targets by the pass's own results, None for those never probed; empty until it has ended.
    """


NEVER_AGES: Final = inf
"""Value of `pass_ended_s` with which results count as stored, whatever their age."""
ALWAYS_AGES: Final = -inf

_IS_OLD = "(evidence_until_s < :now_s AND evidence_at_s > :pass_ended_s AND result IS NOT NULL)"
_RESULT = f"CASE WHEN {_IS_OLD} THEN 'not_measured' ELSE result END"
# A URL counts once: a registered target does not count in addition to a target at the same URL, nor does a
# target whose card is another target's.
_COUNTS = """gone_at_s IS NULL AND NOT (is_registered AND EXISTS (
        SELECT 1 FROM targets AS same
        WHERE same.host = targets.host AND same.url = targets.url AND same.gone_at_s IS NULL
            AND (NOT same.is_registered OR same.id < targets.id)
    )) AND NOT (counts_as IS NOT NULL AND EXISTS (
        SELECT 1 FROM targets AS other WHERE other.id = targets.counts_as AND other.gone_at_s IS NULL
    ))"""
# Only living targets have a current card version.
_HOSTS = """
    SELECT host, shown, CASE WHEN {is_living} THEN version END, count(*) FROM (
        SELECT host, {result} AS shown, protocol_version AS version
        FROM targets LEFT JOIN probe_results ON probe_results.target = targets.id
        WHERE {counts} AND shard >= :first_shard AND shard < :end_shard
    ) AS living GROUP BY 1, 2, 3
"""
_HOSTS_SQLITE = text(
    _HOSTS.format(counts=_COUNTS, result=_RESULT, is_living="shown IN (SELECT value FROM json_each(:living))")
)
_HOSTS_POSTGRESQL = text(
    _HOSTS.format(
        counts=_COUNTS,
        result=_RESULT,
        is_living="shown = ANY(ARRAY(SELECT json_array_elements_text(CAST(:living AS json))))",
    )
)
_RUN = select(
    census_runs.c.run_id,
    census_runs.c.name,
    census_runs.c.began_at_s,
    census_runs.c.ended_at_s,
    census_runs.c.deadlines,
    census_runs.c.not_read,
    census_runs.c.counts,
)
_DIRECTORIES_OF = """
    SELECT directories.name, {result}, count(*)
    FROM listings
    JOIN directories ON directories.id = listings.directory
    JOIN targets ON targets.id = listings.target
    LEFT JOIN probe_results ON probe_results.target = listings.target
    WHERE gone_at_s IS NULL AND NOT (counts_as IS NOT NULL AND EXISTS (
        SELECT 1 FROM listings AS beside JOIN targets AS other ON other.id = beside.target
        WHERE beside.target = targets.counts_as AND beside.directory = listings.directory
            AND other.gone_at_s IS NULL
    ))
    GROUP BY 1, 2 ORDER BY directories.name
"""
_DIRECTORIES = text(_DIRECTORIES_OF.format(result=_RESULT))
# A target that the prober found to be an MCP server may be listed without a kind, or with both.
_KIND_SQLITE = "coalesce(nullif(kind, 'disputed'), observed ->> '$.kind', 'a2a')"
_KIND_POSTGRESQL = "coalesce(nullif(kind, 'disputed'), CAST(observed AS json) ->> 'kind', 'a2a')"
_KINDS_OF = """
    SELECT {kind}, {result}, count(*)
    FROM targets LEFT JOIN probe_results ON probe_results.target = targets.id
    WHERE {counts} GROUP BY 1, 2 ORDER BY 1
"""
_KINDS_SQLITE = text(_KINDS_OF.format(kind=_KIND_SQLITE, counts=_COUNTS, result=_RESULT))
_KINDS_POSTGRESQL = text(_KINDS_OF.format(kind=_KIND_POSTGRESQL, counts=_COUNTS, result=_RESULT))
_RESULTS_OF = """
    SELECT {result}, count(*) FROM targets LEFT JOIN probe_results ON probe_results.target = targets.id
    WHERE {counts} GROUP BY 1
"""
_RESULTS = text(_RESULTS_OF.format(counts=_COUNTS, result=_RESULT))
# As `evidence_age.unknown_reason`.
_OLD_OF = """
    SELECT
        CASE
            WHEN NOT {is_old} THEN NULL
            WHEN results_until_s < :now_s THEN 'no_prober'
            ELSE coalesce(inconclusive_reason, 'asked_to_wait')
        END,
        count(*), max(evidence_at_s)
    FROM targets JOIN probe_results ON probe_results.target = targets.id
    WHERE {counts} AND evidence_at_s IS NOT NULL GROUP BY 1
"""
_OLD = text(_OLD_OF.format(counts=_COUNTS, is_old=_IS_OLD))
# The last informative observation may be older than the pass.
_OF_A_RUN = """
    SELECT
        CASE WHEN result IS NOT NULL AND {observed_at_s} < :since_s
            THEN :not_measured ELSE result END, count(*)
    FROM targets LEFT JOIN probe_results ON probe_results.target = targets.id
    WHERE {counts} GROUP BY 1
"""
_OF_A_RUN_SQLITE = text(_OF_A_RUN.format(counts=_COUNTS, observed_at_s="(observed ->> '$.observed_at_s')"))
_OF_A_RUN_POSTGRESQL = text(
    _OF_A_RUN.format(
        counts=_COUNTS, observed_at_s="CAST(CAST(observed AS json) ->> 'observed_at_s' AS double precision)"
    )
)
# A linked target has the health of its registered agent.
_HEALTH = text(f"""
    SELECT
        CASE
            WHEN evidence_until_s < :now_s AND evidence_at_s > :pass_ended_s THEN 'unknown' ELSE health
        END,
        count(*)
    FROM (
        SELECT agents.id AS agent, health FROM agents JOIN targets ON targets.subject_id = agents.agent_id
        LEFT JOIN links ON links.target = targets.id
        WHERE links.target IS NULL AND {_COUNTS}
        UNION ALL
        SELECT agents.id AS agent, health FROM links JOIN agents ON agents.id = links.agent
        JOIN targets ON targets.id = links.target WHERE {_COUNTS}
    ) AS counted
    LEFT JOIN observed ON observed.agent = counted.agent
    GROUP BY 1
""")  # noqa: S608 - constants only


def hosts(
    transaction: Transaction,
    living: Sequence[str],
    shards: range = range(SHARDS),
    *,
    pass_ended_s: float = ALWAYS_AGES,
) -> Iterator[tuple[str, str | None, str | None, int]]:
    """Return host, result, protocol version and number of targets; versions only for `living` results.

    Read it to the end within the transaction: there may be a million rows. `shards`: only hosts in these.
    """
    statement = _HOSTS_POSTGRESQL if transaction.is_postgresql else _HOSTS_SQLITE
    parameters = {
        "living": to_json(list(living)).decode(),
        "first_shard": shards.start,
        "end_shard": shards.stop,
        **_ages(transaction, pass_ended_s),
    }
    few_at_once = statement.execution_options(yield_per=ROWS_AT_ONCE)
    for row in transaction.connection.execute(few_at_once, parameters):
        yield row[0], row[1], row[2], row[3]


def directories(
    transaction: Transaction, *, pass_ended_s: float = ALWAYS_AGES
) -> list[tuple[str, str | None, int]]:
    """Return directory, result and number of targets; a target in two directories counts in both."""
    rows = transaction.connection.execute(_DIRECTORIES, _ages(transaction, pass_ended_s))
    return [(name, result, count) for name, result, count in rows]


def kinds(
    transaction: Transaction, *, pass_ended_s: float = ALWAYS_AGES
) -> list[tuple[TargetKind, str | None, int]]:
    """Return kind, result and number of targets."""
    statement = _KINDS_POSTGRESQL if transaction.is_postgresql else _KINDS_SQLITE
    rows = transaction.connection.execute(statement, _ages(transaction, pass_ended_s))
    return [(TargetKind(kind), result, count) for kind, result, count in rows]


def results(transaction: Transaction, *, pass_ended_s: float = ALWAYS_AGES) -> dict[str | None, int]:
    """Return the number of targets by last result, None for those never probed."""
    return _by_result(transaction.connection.execute(_RESULTS, _ages(transaction, pass_ended_s)))


@dataclass(frozen=True, slots=True)
class EvidenceCounts:
    """Number of targets whose results are too old, and the time of the newest result."""

    old: Mapping[UnknownReason, int]
    """Number of targets whose result is too old, by reason."""
    newest_at_s: float | None
    """When a probe last measured something; None if none ever did."""


def evidence(transaction: Transaction, *, pass_ended_s: float = ALWAYS_AGES) -> EvidenceCounts:
    """Return the number of results that are too old, and when the newest of all was measured."""
    rows = list(transaction.connection.execute(_OLD, _ages(transaction, pass_ended_s)))
    return EvidenceCounts(
        old={UnknownReason(reason): int(count) for reason, count, _ in rows if reason is not None},
        newest_at_s=max((float(at_s) for _, _, at_s in rows), default=None),
    )


def _ages(transaction: Transaction, pass_ended_s: float) -> dict[str, float]:
    return {"now_s": transaction.now_s, "pass_ended_s": pass_ended_s}


def results_since(transaction: Transaction, since_s: float) -> dict[str | None, int]:
    """Return the number of targets by result in a pass that began then; without one: not measured.

    It reads the last result of each target, some seconds for a million: never call it in a write transaction.
    """
    statement = _OF_A_RUN_POSTGRESQL if transaction.is_postgresql else _OF_A_RUN_SQLITE
    parameters = {"since_s": since_s - ROUNDED_S, "not_measured": ResultClass.NOT_MEASURED.value}
    return _by_result(transaction.connection.execute(statement, parameters))


def _by_result(rows: Iterable[Any]) -> dict[str | None, int]:
    return {None if result is None else str(result): int(count) for result, count in rows}


def health(transaction: Transaction, *, pass_ended_s: float = ALWAYS_AGES) -> dict[str, int]:
    """Return the number of targets that are linked or registered agents, by reported health."""
    rows = transaction.connection.execute(_HEALTH, _ages(transaction, pass_ended_s))
    return {str(health): int(count) for health, count in rows}


def shown(
    transaction: Transaction, living: Sequence[str], *, pass_ended_s: float = ALWAYS_AGES
) -> list[tuple[TargetKind, list[str], int]]:
    """Return kind, last result of each layer and number of the targets that have one of these results.

    Layers are in the order in which they are measured; a layer without any result is empty.
    """
    kind: ColumnElement[str] = literal_column(_KIND_POSTGRESQL if transaction.is_postgresql else _KIND_SQLITE)
    statement = (
        select(kind, probe_results.c.layers, func.count())
        .select_from(targets.join(probe_results, probe_results.c.target == targets.c.id))
        .where(
            text(_COUNTS),
            probe_results.c.result.in_(living),
            probe_results.c.layers.is_not(None),
            text(f"NOT coalesce({_IS_OLD}, false)"),
        )
        .group_by(kind, probe_results.c.layers)
    )
    return [
        (TargetKind(kind), layers.split(","), int(count))
        for kind, layers, count in transaction.connection.execute(statement, _ages(transaction, pass_ended_s))
    ]


def lock_runs(transaction: Transaction) -> None:
    """Keep other passes from beginning until the transaction ends."""
    if transaction.is_postgresql:
        transaction.connection.exec_driver_sql("LOCK TABLE census_runs IN SHARE ROW EXCLUSIVE MODE")


def begin_run(
    transaction: Transaction, run_id: str, name: str, deadlines: Deadlines | None = None
) -> StoredPass:
    """Store that a pass over all targets begins now; `name` is that of the probe definition."""
    began_at_s = transaction.now_s
    before = to_json(_sums_since(transaction, began_at_s)).decode()
    stored = None if deadlines is None else deadlines.model_dump_json()
    transaction.connection.execute(
        insert(census_runs).values(
            run_id=run_id, name=name, began_at_s=began_at_s, sums=before, deadlines=stored
        )
    )
    return StoredPass(
        run_id=run_id, name=name, began_at_s=began_at_s, ended_at_s=None, deadlines=deadlines, counts={}
    )


def forget_deadlines(transaction: Transaction, run_id: str) -> None:
    """Store that a pass has no common deadlines."""
    of_run = census_runs.c.run_id == run_id
    transaction.connection.execute(update(census_runs).where(of_run).values(deadlines=None))


def note_not_read(transaction: Transaction, run_id: str, names: Sequence[str]) -> None:
    """Store the directories that could not be read for a pass; earlier names are replaced."""
    of_run = census_runs.c.run_id == run_id
    stored = to_json(list(names)).decode() if names else None
    changed = of_run, census_runs.c.not_read.is_distinct_from(stored)
    transaction.connection.execute(update(census_runs).where(*changed).values(not_read=stored))


def end_run(transaction: Transaction, run_id: str, counts: Mapping[str | None, int]) -> None:
    """Store the end of a pass, the results of its probes, and its counts of targets (`results_since`).

    A repeated call changes nothing.
    """
    run = find_run(transaction, run_id)
    if run is None or run.ended_at_s is not None:
        return
    count_by_result = {NEVER_PROBED if result is None else result: count for result, count in counts.items()}
    sums = run_sums(transaction, run_id)
    transaction.connection.execute(
        update(census_runs)
        .where(census_runs.c.run_id == run_id, census_runs.c.ended_at_s.is_(None))
        .values(
            ended_at_s=transaction.now_s,
            counts=to_json(count_by_result).decode(),
            sums=None if sums is None else to_json(sums).decode(),
        )
    )


def run_sums(transaction: Transaction, run_id: str) -> list[SumRow] | None:
    """Return the number of results that were reported from the start of a pass to its end, or until now.

    None if there is no such pass, or it began before its sums were stored.
    """
    row = transaction.connection.execute(
        select(census_runs.c.began_at_s, census_runs.c.ended_at_s, census_runs.c.sums).where(
            census_runs.c.run_id == run_id
        )
    ).one_or_none()
    if row is None or row.sums is None:
        return None
    stored: list[SumRow] = [tuple(kept) for kept in from_json(row.sums)]
    if row.ended_at_s is not None:
        return stored
    # Sums are kept by the hour: those of the first hour do not all belong to the pass.
    before = {kept[:3]: kept[3] for kept in stored}
    known = _sums_since(transaction, row.began_at_s)
    left = ((*kept[:3], kept[3] - before.get(kept[:3], 0)) for kept in known)
    return [kept for kept in left if kept[3] > 0]


def _sums_since(transaction: Transaction, since_s: float) -> list[SumRow]:
    """Return the sums of the hour of a time, and of all later hours."""
    until_hour = hour_of(transaction.now_s) + 1
    return sums_between(transaction, ALL_TARGETS, hour_of(since_s), until_hour)


def drop_run(transaction: Transaction, run_id: str) -> None:
    """Delete a pass that has not ended."""
    is_open = census_runs.c.run_id == run_id, census_runs.c.ended_at_s.is_(None)
    transaction.connection.execute(delete(census_runs).where(*is_open))


def find_run(transaction: Transaction, run_id: str) -> StoredPass | None:
    """Return a pass by its id; None if it never began."""
    row = transaction.connection.execute(_RUN.where(census_runs.c.run_id == run_id)).one_or_none()
    return None if row is None else _run(row)


def runs(transaction: Transaction, name: str | None, limit: int) -> list[StoredPass]:
    """Return the last passes of this name, or of any, the latest first."""
    wanted = _RUN.order_by(census_runs.c.began_at_s.desc(), census_runs.c.run_id.desc())
    if name is not None:
        wanted = wanted.where(census_runs.c.name == name)
    return [_run(row) for row in transaction.connection.execute(wanted.limit(limit))]


def _run(row: Sequence[Any]) -> StoredPass:
    run_id, name, began_at_s, ended_at_s, deadlines, not_read, counts = row
    return StoredPass(
        run_id=run_id,
        name=name,
        began_at_s=began_at_s,
        ended_at_s=ended_at_s,
        deadlines=None if deadlines is None else Deadlines.model_validate_json(deadlines),
        not_read=tuple(from_json(not_read or "[]")),
        counts=_counts(counts),
    )


def _counts(stored: str | None) -> dict[str | None, int]:
    counts: dict[str, int] = from_json(stored or "{}")
    return {None if result == NEVER_PROBED else result: count for result, count in counts.items()}
