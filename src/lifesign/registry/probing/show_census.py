"""Counts of targets and probes, and the results of passes (`/api/v1/census`)."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

from pydantic import StringConstraints

from lifesign.domain.access.permissions import Permission, require
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.health.document import HealthStatus, Time
from lifesign.domain.models.base import Body, moment
from lifesign.domain.models.census import (
    RUN_PATTERN,
    CensusCounts,
    CensusRun,
    DirectoryCount,
    HostCountModel,
    HostCounts,
    KindCount,
    ProbeCount,
    RunName,
    RunRequest,
    ShownCount,
    TargetCount,
)
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import ANSWERED, ResultClass
from lifesign.domain.targets.target import SHARDS, TargetKind
from lifesign.registry.probing.begin_pass import add_not_read, begin_or_join, join_pass
from lifesign.registry.request_handling.cursors import Cursor, cursor_at, numbers_in
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import probe_results, result_history
from lifesign.storage.probing.result_history import ALL_TARGETS, hour_of
from lifesign.storage.targets import census_counts, target_rows
from lifesign.storage.targets.census_counts import StoredPass

PATH = "/api/v1/census"
PERIOD_SECONDS = 86_400.0
"""Default period for the counts of probes."""
EARLIEST_S = datetime.min.replace(tzinfo=UTC).timestamp()
"""The earliest time that a query can name."""
MAX_RUNS = 100
SHARDS_AT_ONCE = 64
"""Number of shards per page of hosts."""

_LISTED = "census_hosts"


class CensusQuery(Body):
    """The query of `GET /api/v1/census`."""

    run: Annotated[str, StringConstraints(pattern=RUN_PATTERN)] | None = None
    """Count only the probes of this pass, from its beginning to its end."""

    since: Time | None = None
    """Beginning of the period in which probes are counted. Absent: a day before its end."""
    until: Time | None = None
    """End of that period. Absent: now."""
    name: RunName | None = None
    """Only passes of the probe definition with this name. Absent: all."""


class HostQuery(Body):
    """The query of `GET /api/v1/census/hosts`."""

    run: Annotated[str, StringConstraints(pattern=RUN_PATTERN)] | None = None
    """Id of a pass. Results up to the end of this pass count as current, whatever their age."""
    cursor: Cursor | None = None
    """`cursor` of the previous page. Send it with the same query."""


def show_census(transaction: Transaction, call: Call) -> OperationReply:
    """Return the numbers of targets and probes."""
    require(call.caller, Permission.READ_TARGETS)
    query, now_s = call.query_as(CensusQuery), transaction.now_s
    if query.run is None:
        until_s = now_s if query.until is None else query.until.timestamp()
        since_s = (
            max(until_s - PERIOD_SECONDS, EARLIEST_S) if query.since is None else query.since.timestamp()
        )
        sums = result_history.sums_between(transaction, ALL_TARGETS, hour_of(since_s), hour_of(until_s) + 1)
        ended_s = census_counts.ALWAYS_AGES
    else:
        run = _known_run(transaction, query.run)
        since_s, until_s = run.began_at_s, run.ended_at_s or now_s
        sums = census_counts.run_sums(transaction, run.run_id) or []
        ended_s = _aging_after_s(run)
    evidence = census_counts.evidence(transaction, pass_ended_s=ended_s)
    answer = CensusCounts(
        made_at=moment(now_s),
        since=moment(since_s),
        until=moment(until_s),
        targets=[
            TargetCount(result=_result(result), count=count)
            for result, count in census_counts.results(transaction, pass_ended_s=ended_s).items()
        ],
        directories=[
            DirectoryCount(directory=name, result=_result(result), count=count)
            for name, result, count in census_counts.directories(transaction, pass_ended_s=ended_s)
        ],
        kinds=[
            KindCount(kind=kind, result=_result(result), count=count)
            for kind, result, count in census_counts.kinds(transaction, pass_ended_s=ended_s)
        ],
        probes=[
            ProbeCount(layer=Layer(layer), result=ResultClass(result), bucket=bucket, count=count)
            for layer, result, bucket, count in sums
        ],
        health={
            HealthStatus(health): count
            for health, count in census_counts.health(transaction, pass_ended_s=ended_s).items()
        },
        shown=[
            _shown(kind, layers, count)
            for kind, layers, count in census_counts.shown(
                transaction, sorted(ANSWERED), pass_ended_s=ended_s
            )
        ],
        evidence_at=None if evidence.newest_at_s is None else moment(evidence.newest_at_s),
        old=dict(evidence.old),
        gone=dict(target_rows.count_former(transaction)),
        runs=[_run(run) for run in census_counts.runs(transaction, query.name, MAX_RUNS)],
    )
    return OperationReply(content=answer)


def list_hosts(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of hosts, with the number of targets on each."""
    require(call.caller, Permission.READ_TARGETS)
    query = call.query_as(HostQuery)
    first = 0 if query.cursor is None else numbers_in(query.cursor, _LISTED, 1)[0]
    last = min(first + SHARDS_AT_ONCE, SHARDS)
    run = None if query.run is None else _known_run(transaction, query.run)
    ended_s = census_counts.ALWAYS_AGES if run is None else _aging_after_s(run)
    rows = census_counts.hosts(transaction, sorted(ANSWERED), range(first, last), pass_ended_s=ended_s)
    answer = HostCounts(
        hosts=[
            HostCountModel(host=host, result=_result(result), protocol_version=version, count=count)
            for host, result, version, count in rows
        ],
        cursor=cursor_at(_LISTED, last) if last < SHARDS else None,
    )
    return OperationReply(content=answer)


def put_run(transaction: Transaction, call: Call) -> OperationReply:
    """Record that a pass over all targets has begun or ended. The request may be repeated.

    A pass ends once every target was probed since its start: a prober key cannot end the pass of another key
    before that. If a pass with the same name is running, no other begins, and the answer has the id of the
    running one. If the callers of one pass have different deadlines, the pass has none.
    """
    body, run_id = call.body_as(RunRequest), _run_id(call)
    run = census_counts.find_run(transaction, run_id)
    if run is None:
        begin = census_counts.begin_run if body.is_over else begin_or_join
        run = begin(transaction, run_id, body.name, body.deadlines)
    elif not body.is_over and run.ended_at_s is None:
        run = join_pass(transaction, run, body.deadlines)
    if body.not_read and run.ended_at_s is None:
        run = add_not_read(transaction, run, body.not_read)
    if body.is_over and call.prefetched is not None:
        census_counts.end_run(transaction, run_id, call.prefetched)
        run = census_counts.find_run(transaction, run_id) or run
    return OperationReply(content=_run(run))


def _count_before(transaction: Transaction, call: Call) -> Mapping[str | None, int] | None:
    """Return the counts of a pass that is over; None for a running pass, and for one that was over before.

    A pass is running while any target is left that was not probed since its start.
    """
    if not call.body_as(RunRequest).is_over:
        return None
    run = census_counts.find_run(transaction, _run_id(call))
    if run is not None and run.ended_at_s is not None:
        return None
    since_s = transaction.now_s if run is None else run.began_at_s
    if probe_results.count_unprobed(transaction, since_s):
        return None
    return census_counts.results_since(transaction, since_s)


def _run_id(call: Call) -> str:
    run_id = call.path["run_id"]
    if not re.fullmatch(RUN_PATTERN, run_id):
        raise InvalidRequest([Finding("invalid_run_id", "", f"expected a run_id like {RUN_PATTERN}")])
    return run_id


def _shown(kind: TargetKind, layers: list[str], count: int) -> ShownCount:
    names = (layer.value for layer in Layer if layer is not Layer.OVERALL)
    ended = {name: ResultClass(result) for name, result in zip(names, layers, strict=True) if result}
    return ShownCount.model_validate({
        **ended, "kind": None if kind is TargetKind.A2A else kind, "count": count,
    })  # fmt: skip


def _known_run(transaction: Transaction, run_id: str) -> StoredPass:
    run = census_counts.find_run(transaction, run_id)
    if run is None:
        raise InvalidRequest([Finding("unknown_run", "/run", "expected the run_id of a pass that has begun")])
    return run


def _aging_after_s(run: StoredPass) -> float:
    return census_counts.NEVER_AGES if run.ended_at_s is None else run.ended_at_s


def _run(run: StoredPass) -> CensusRun:
    return CensusRun(
        run_id=run.run_id,
        name=run.name,
        began_at=moment(run.began_at_s),
        ended_at=None if run.ended_at_s is None else moment(run.ended_at_s),
        deadlines=run.deadlines,
        not_read=run.not_read,
        counts=[TargetCount(result=_result(result), count=count) for result, count in run.counts.items()],
    )


def _result(stored: str | None) -> ResultClass | None:
    return None if stored is None else ResultClass(stored)


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="Count targets by their last result, and probes by their result",
        action=Permission.READ_TARGETS,
        needs_any_record=True,
        function=show_census,
        is_write=False,
        query=CensusQuery,
        answer=CensusCounts,
    ),
    Operation(
        method="GET",
        path=f"{PATH}/hosts",
        summary="Count targets by host",
        action=Permission.READ_TARGETS,
        needs_any_record=True,
        function=list_hosts,
        is_write=False,
        query=HostQuery,
        answer=HostCounts,
    ),
    Operation(
        method="PUT",
        path=f"{PATH}/runs/{{run_id}}",
        summary="Record that a pass over all targets has begun or ended",
        action=Permission.REPORT_OBSERVATIONS,
        function=put_run,
        prefetch=_count_before,
        body=RunRequest,
        example={"name": "census", "is_over": True},
        answer=CensusRun,
    ),
)
