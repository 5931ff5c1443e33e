"""Page of targets, including those without an agent record (`/targets`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request

from lifesign.dashboard.fleet_facts import SHOWN_PROBE_LABELS
from lifesign.dashboard.labels import (
    EVIDENCE_AGES_S,
    RECHECK_RESULTS,
    EvidenceAge,
    label_of_result,
    target_probe_label,
)
from lifesign.dashboard.page_handler import RequestContext, query_in
from lifesign.dashboard.pages import history
from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.models.directories import DIRECTORY_PATTERN
from lifesign.domain.observation.result_sums import layers_of
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.summary_line import layer_words
from lifesign.registry.request_handling.cursors import Cursor
from lifesign.registry.targets.list_targets import Host, TargetOrder
from lifesign.storage.events import event_log
from lifesign.storage.probing import probers

if TYPE_CHECKING:
    from lifesign.domain.models.targets import RecheckRecord, TargetList, TargetRecord

PAGE_SIZE = 50


class TargetsQuery(BaseModel):
    """The query of `/targets`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    observed: str | None = None
    """A word of `words.Sight`."""
    host: Host | None = None
    directory: Annotated[str, StringConstraints(pattern=DIRECTORY_PATTERN)] | None = None
    evidence: EvidenceAge | None = None
    """Maximum age of the last measured probe."""
    cursor: Cursor | None = None


def show_targets(context: RequestContext, request: Request) -> Mapping[str, Any]:
    """Return one page of targets."""
    query = query_in(request, TargetsQuery)
    asked: dict[str, object] = {"limit": PAGE_SIZE, "sort": TargetOrder.HOST.value}
    query_values = query.model_dump(mode="json", exclude_none=True)
    asked |= {name: value for name, value in query_values.items() if name not in {"observed", "evidence"}}
    if query.evidence is not None:
        asked["max_evidence_age"] = EVIDENCE_AGES_S[query.evidence]
    if query.observed is not None:
        asked |= _results(query.observed)
    page: TargetList = context.ask("GET", "/api/v1/targets", query=asked)
    query_values.pop("cursor", None)
    return {
        "page": page,
        "rows": [
            {"target": target, "probe_label": target_probe_label(target, context.transaction.now_s)}
            for target in page.targets
        ],
        "query": query,
        "probe_labels": SHOWN_PROBE_LABELS,
        "evidence_ages": EVIDENCE_AGES_S,
        "directories": context.ask("GET", "/api/v1/directories").directories,
        "next_page": None
        if page.cursor is None
        else "/targets?" + urlencode({**query_values, "cursor": page.cursor}),
        "first_page": "/targets?" + urlencode(query_values),
    }


def show_target(context: RequestContext, request: Request) -> Mapping[str, Any]:
    """Return all that the page of a target shows."""
    target_id = request.path_params["target_id"]
    target: TargetRecord = context.ask("GET", "/api/v1/targets/{target_id}", target_id=target_id)
    now_s = context.transaction.now_s
    seen = target.observed
    words = layer_words(None if seen is None else seen.kind)
    layers = [] if seen is None else [(words[name], layer) for name, layer in layers_of(seen)]
    paths = {} if seen is None else seen.paths or {}
    return {
        "target": target,
        "probe_label": target_probe_label(target, now_s),
        "layers": [*layers, *paths.items()],
        "layer_words": words,
        "strip": history.probe_strip(target, now_s),
        "may_recheck": target.gone_at is None and context.visitor.may(Permission.RECHECK, target_id),
        "recheck_results": RECHECK_RESULTS,
        "position": event_log.last_sequence(context.transaction),
    }


def recheck(context: RequestContext, request: Request, _form: Mapping[str, str]) -> str:
    """Request a probe of the target now."""
    return recheck_target(context, request.path_params["target_id"])


def recheck_target(context: RequestContext, target_id: str) -> str:
    """Request a probe of a target now; return the result as a code of `RECHECK_RESULTS`."""
    recheck: RecheckRecord = context.ask("POST", "/api/v1/targets/{target_id}/probe", target_id=target_id)
    if not probers.listing(context.transaction, 1):
        return "recheck_unheard"
    return "recheck" if recheck.not_before is None else "recheck_later"


def _results(word: str) -> dict[str, object]:
    """Return the query of the API for targets with this label."""
    if word not in SHOWN_PROBE_LABELS:
        expected = f"expected one of {', '.join(SHOWN_PROBE_LABELS)}"
        raise InvalidRequest([Finding("unknown_word", "/observed", expected)])
    if word == "never probed":
        return {"never_probed": True}
    # Old evidence is unknown, whatever the result was.
    return {
        "result": [result.value for result in ResultClass if label_of_result(result).word == word],
        "old_evidence": word == "unknown",
    }
