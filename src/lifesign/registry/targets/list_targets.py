"""List of targets with the results of their probes (`GET /api/v1/targets`)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError, from_json
from sqlalchemy import Row

from lifesign.domain.access.permissions import Permission, Principal, may, require
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.base import NAME_PATTERN, Body, moment
from lifesign.domain.models.directories import DIRECTORY_PATTERN
from lifesign.domain.models.targets import (
    ObservedTarget,
    ShownChange,
    TargetList,
    TargetRecord,
    TargetSummary,
)
from lifesign.domain.net.allowed_addresses import MAX_HOST_CHARACTERS, AddressRefused
from lifesign.domain.net.international_host import ascii_host
from lifesign.domain.observation.assertion import AssertionOutcome
from lifesign.domain.observation.evidence_age import Evidence, shown_health, unknown_reason
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import LayerResult, ResultClass
from lifesign.domain.observation.summary_line import combine_with_card, probe_summary
from lifesign.domain.targets.target import TargetKind
from lifesign.registry.errors import DirectoryNotFound, TargetNotFound
from lifesign.registry.request_handling.cursors import (
    Cursor,
    cursor_at,
    numbers_and_text_in,
    numbers_in,
)
from lifesign.registry.request_handling.operation import (
    SEPARATED_BY_COMMAS,
    Call,
    Operation,
    OperationReply,
)
from lifesign.registry.targets.feed_targets import recalled
from lifesign.registry.targets.target_results import STORED_LAYERS, last_of
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import result_history
from lifesign.storage.probing.result_history import ResultChange
from lifesign.storage.targets import directories, target_links, target_search
from lifesign.storage.targets.target_search import HostCursor, TargetFilter

PATH = "/api/v1/targets"
MAX_PAGE = 1_000
MAX_AGE_SECONDS = 31_622_400.0
"""A year."""
MAX_CHANGES = 50
"""Maximum of changes per target in an answer."""

COMMON = 20_000
"""Number of matches from which a walk in the order of hosts is faster than a sort of the matches."""

_LISTED = "targets"
_LISTED_BY_HOST = "targets_by_host"


class TargetOrder(StrEnum):
    """Order of the listed targets."""

    ADDED = "added"
    """Order of creation, which never changes."""
    HOST = "host"
    """Order by host, then by URL."""


def _normalized_origin(value: str) -> str:
    host = ascii_host(value)
    if isinstance(host, AddressRefused):
        raise PydanticCustomError("host", "expected a host: {reason}", {"reason": host.reason})
    return host


Host = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_HOST_CHARACTERS, to_lower=True, pattern=NAME_PATTERN),
    AfterValidator(_normalized_origin),
]
"""The host of the wanted targets; one in another alphabet as people write it, or in ASCII."""


MaxEvidenceAge = Annotated[float, Field(gt=0, le=MAX_AGE_SECONDS, allow_inf_nan=False)]


class TargetListing(Body):
    """The query of `GET /api/v1/targets`."""

    result: Annotated[tuple[ResultClass, ...], Field(max_length=len(ResultClass)), SEPARATED_BY_COMMAS] = ()
    """Results, separated by commas: only targets whose last result is one of them."""
    layer_result: Annotated[
        tuple[ResultClass, ...], Field(max_length=len(ResultClass)), SEPARATED_BY_COMMAS
    ] = ()
    """Results, separated by commas: only targets with one of them as the last result of a layer (card,
    interface, health document or message), or of a path of the definition (any result except `ok` and
    `not_measured`)."""
    failed_assertions: bool = False
    """Whether to return only targets with an assertion that failed in their last probe with a result."""
    never_probed: bool = False
    """Whether to include targets that were never probed. Without `result`: only these targets."""
    old_evidence: bool | None = None
    """true: include targets whose last measured result is too old, whatever it was; without `result`, only
    these targets. false: exclude them. Absent: the age of a result does not matter."""
    directory: Annotated[str, StringConstraints(pattern=DIRECTORY_PATTERN)] | None = None
    """Only targets that this directory lists."""
    host: Host | None = None
    """Only targets on this host, at any port. The host name may be in any alphabet."""
    include_gone: bool = False
    """Whether to include targets that are no longer probed."""
    max_evidence_age: MaxEvidenceAge | None = None
    """Only targets that a probe measured within this time, in seconds."""
    sort: TargetOrder = TargetOrder.ADDED
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | None = None
    """`cursor` of the previous page. Send it with the same query."""


def list_targets(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of the matching targets, and the number of all matches. An agent gets only itself."""
    query = call.query_as(TargetListing)
    own = None if may(call.caller, Permission.READ_TARGETS) else call.caller.agent_id
    wanted = TargetFilter(
        subject_id=own,
        results=query.result,
        layer_results=query.layer_result,
        has_failed_assertions=query.failed_assertions,
        never_probed=query.never_probed,
        old_evidence=query.old_evidence,
        directory=None if query.directory is None else _number_of(transaction, query.directory),
        host=query.host,
        include_gone=query.include_gone,
        max_evidence_age_s=query.max_evidence_age,
    )
    place, total = (None, None) if query.cursor is None else _place_in(query.cursor, query.sort)
    # Counted only for the first page: counting a million for each page would take longer than the list
    # itself.
    if total is None:
        total = target_search.count(transaction, wanted)
    limit = query.limit + 1
    if query.sort is TargetOrder.ADDED:
        after = 0 if place is None else place.id
        found = target_search.listing(transaction, wanted, after=after, limit=limit)
    else:
        is_common = total > COMMON
        found = target_search.by_host(transaction, wanted, after=place, limit=limit, is_common=is_common)
    page = found[: query.limit]
    answer = TargetList(
        targets=[TargetSummary(**_summary(row, transaction.now_s)) for row in page],
        total=total,
        cursor=_cursor_behind(page[-1], total, query.sort) if len(found) > len(page) else None,
    )
    return OperationReply(content=answer)


def _cursor_behind(row: Row[Any], total: int, order: TargetOrder) -> str:
    if order is TargetOrder.ADDED:
        return cursor_at(_LISTED, row.id, total)
    return cursor_at(_LISTED_BY_HOST, row.id, total, row.host)


def _place_in(cursor: str, order: TargetOrder) -> tuple[HostCursor, int]:
    """Return behind which target a page begins, and how many there are in all. Raises InvalidRequest."""
    if order is TargetOrder.ADDED:
        number, total = numbers_in(cursor, _LISTED, 2)
        return HostCursor(number, ""), total
    (number, total), host = numbers_and_text_in(cursor, _LISTED_BY_HOST, 2, MAX_HOST_CHARACTERS)
    return HostCursor(number, host), total


def show_target(transaction: Transaction, call: Call) -> OperationReply:
    """Return one target with its last results and changes. It may be a target that is no longer probed."""
    subject_id = call.path["target_id"]
    require_for_target(transaction, call.caller, Permission.READ_TARGETS, subject_id)
    row = target_search.find_target(transaction, subject_id)
    if row is None:
        raise TargetNotFound(subject_id)
    changes = result_history.changes_of(transaction, row.id, MAX_CHANGES)
    agent = agent_rows.find(transaction, subject_id)
    health, health_reason = (
        (None, None)
        if agent is None
        else shown_health(HealthStatus(agent.health), agent.evidence, transaction.now_s)
    )
    answer = TargetRecord(
        **_summary(row, transaction.now_s),
        host=row.host,
        shard=row.shard,
        directories=target_search.directories_of(transaction, row.id),
        is_registered=row.is_registered,
        added_at=moment(row.added_at_s),
        probed_at=None if row.observed_at_s is None else moment(row.observed_at_s),
        recheck_at=None if row.recheck_at_s is None else moment(row.recheck_at_s),
        memory=recalled(subject_id, row.memory),
        observed=None if row.observed is None else _observed_target(row.observed),
        changes=[_change(change) for change in changes],
        agent_status=None if agent is None else Status(agent.status),
        health_status=health,
        health_unknown_reason=health_reason,
    )
    return OperationReply(content=answer)


def require_for_target(
    transaction: Transaction, caller: Principal, action: Permission, target_id: str
) -> None:
    """Raise NotAllowed unless the caller may do this to a target; linked targets count as the agent's own."""
    agent_id = caller.agent_id
    is_own = agent_id is not None and target_links.agent_of(transaction, target_id) == agent_id
    require(caller, action, agent_id if is_own else target_id)


def _number_of(transaction: Transaction, name: str) -> int:
    directory = directories.find(transaction, name)
    if directory is None:
        raise DirectoryNotFound(name)
    return directory.id


def _summary(row: Row[Any], now_s: float) -> dict[str, Any]:
    observed = None if row.observed is None else from_json(row.observed)
    times_s = {
        "result_since": row.result_since_s,
        "observed_at": observed_at_of(observed),
        "gone_at": row.gone_at_s,
        "evidence_at": row.evidence_at_s,
    }
    evidence = Evidence(
        at_s=row.evidence_at_s,
        until_s=row.evidence_until_s,
        results_until_s=row.results_until_s,
        inconclusive_reason=row.inconclusive_reason,
    )
    return {
        "target_id": row.subject_id,
        "url": row.url,
        "result": row.result,
        "why": None if observed is None else observed_reason(observed, row.layers),
        "failed_assertions": None if observed is None else _failed_assertions(observed) or None,
        "reported_health": None if observed is None else _reported_health(observed),
        "gone_reason": row.gone_reason,
        "unknown_reason": unknown_reason(evidence, now_s) if row.gone_at_s is None else None,
        **{name: moment(at_s) for name, at_s in times_s.items() if at_s is not None},
    }


def _reported_health(observed: Mapping[str, Any]) -> HealthStatus | None:
    document = observed.get("document")
    return None if document is None or document.get("is_stale") else HealthStatus(document["status"])


def _failed_assertions(observed: Mapping[str, Any]) -> int:
    results = [each["result"] for each in observed.get("assertions", ())]
    return results.count(AssertionOutcome.ASSERTION_FAILED)


def observed_at_of(seen: Mapping[str, Any] | None) -> float | None:
    """Return the end of the last probe with a result; None: there was none.

    A probe that sent nothing does not count.
    """
    return None if seen is None else float(seen["observed_at_s"])


def observed_reason(seen: Mapping[str, Any], known: str | None) -> str | None:
    """Return the observed reason; for a living target, also about a card that was read earlier today."""
    # It was validated when it was stored; validating it again would take most of a page's time.
    layers = [
        (
            layer,
            LayerResult.model_construct(
                result=ResultClass(result["result"]), reason=result.get("reason", "")
            ),
        )
        for layer in STORED_LAYERS
        if (result := seen.get(layer.value)) is not None
    ]
    card = None if known is None else dict(last_of(known)).get(Layer.DISCOVERY)
    kind = None if (named := seen.get("kind")) is None else TargetKind(named)
    return probe_summary(combine_with_card(layers, card), kind) or None


def _observed_target(stored: str) -> ObservedTarget:
    members = from_json(stored)
    return ObservedTarget.model_validate(members | {"observed_at": moment(members["observed_at_s"])})


def _change(change: ResultChange) -> ShownChange:
    return ShownChange.model_validate({
        "at": moment(change.at_s),
        "layer": change.layer,
        "previous": change.previous,
        "result": change.result,
        "evidence": change.evidence,
    })  # fmt: skip


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="List targets by their last result, directory and host",
        action=Permission.READ_TARGETS,
        function=list_targets,
        is_write=False,
        query=TargetListing,
        answer=TargetList,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{PATH}/{{target_id}}",
        summary="Show one target with all details",
        action=Permission.READ_TARGETS,
        function=show_target,
        is_write=False,
        answer=TargetRecord,
        errors=(404,),
    ),
)
