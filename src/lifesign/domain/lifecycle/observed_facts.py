"""Observed facts: the sum of many probes of one agent.

A small value that is stored beside the agent's record and updated with every observation. It contains the
facts that `verdict` uses and that views show, and the current half hour of the history (`agent_history`).
Times are seconds since the epoch by the registry's clock. The caller ensures the order of the observations
(`registry/target_results`).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from lifesign.domain.common.clock_skew import not_before
from lifesign.domain.health.document import MAX_AGENT_ID_CHARS, Count, HealthStatus, Quantity, Ratio
from lifesign.domain.lifecycle.agent_history import OpenSlot, add_observation
from lifesign.domain.observation.assertion import AssertionResult, KeptFailure
from lifesign.domain.observation.decision import is_stale, stale_after_seconds
from lifesign.domain.observation.evidence_age import (
    Evidence,
    LastInterface,
    Receipt,
    find_inconclusive_reason,
    shown_health,
    unknown_reason,
)
from lifesign.domain.observation.interface_answer import may_accept_post
from lifesign.domain.observation.login import Login
from lifesign.domain.observation.probe_memory import MAX_MOMENT_S
from lifesign.domain.observation.results import (
    INCONCLUSIVE,
    InconclusiveReason,
    LayerResult,
    Observation,
    ProbedDocument,
    ResultClass,
)
from lifesign.domain.targets.target import TargetKind

MAX_INTERACTIONS: Final = 20
"""Maximum number of measured interactions that are kept."""
MAX_FAILURES_REMEMBERED: Final = 2
"""Number of measured failures in a row that are remembered as interactions.

Later ones belong to one outage, which is assessed separately: an agent that returns from a long outage and
reports to be healthy is not contradicted by it. One that fails every other time is.
"""
FAILED_ASSERTION_PROBES: Final = 2
"""Failed assertions decide after so many probes in a row."""
MAX_IN_ROW: Final = 1000
"""Maximum of these counters: no rule needs more."""

_Moment = Annotated[float, Field(allow_inf_nan=False)]
_Row = Annotated[int, Field(ge=0, le=MAX_IN_ROW)]


class _Stored(BaseModel):
    """Model of JSON in a row of the database: immutable, without unknown members."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LastResult(_Stored):
    """Last result of a layer."""

    layer: LayerResult
    observed_at_s: _Moment


class LastDocument(_Stored):
    """The health document that was read last, and how long it counts."""

    status: HealthStatus
    timestamp_s: _Moment
    """When the agent computed it, by the agent's clock."""
    observed_at_s: _Moment
    fresh_until_s: _Moment
    """Later it is stale (`decision.is_stale`), by our clock."""
    is_stale: bool
    """Whether the document was already stale when it was read."""
    response_ratio: Ratio | None
    sample_count: Count | None
    error_ratio: Ratio | None = None
    latency_p50_ms: Quantity | None = None
    latency_p99_ms: Quantity | None


class Observed(_Stored):
    """What probes have observed of one agent. `Observed()`: nothing yet."""

    last_observed_at_s: _Moment | None = None
    """When the last result of any kind was observed."""
    measured_at_s: _Moment | None = None
    """When the last measured result was observed."""
    silence_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Observed silence: the sum of the gaps between consecutive measured results since the last liveness
    signal.

    A gap counts for at most two intervals, so that time without a working prober counts for little.
    """
    evidence_until_s: _Moment | None = None
    """Time until which the last measured result is valid."""
    results_until_s: _Moment | None = None
    """When the next result of any kind is due at the latest."""
    inconclusive_reason: Annotated[InconclusiveReason, Field(strict=False)] | None = None
    """Reason why the last result measured nothing; None if it measured."""
    last_liveness_signal_at_s: _Moment | None = None
    liveness_until_s: _Moment | None = None
    """Time until which the last liveness signal is valid; a failure is no evidence of health."""
    alive_since_s: _Moment | None = None
    """Time of the first liveness signal since the last measured failure; None without one."""
    failures_in_row: _Row = 0
    """Number of measured failures since the last liveness signal, up to MAX_IN_ROW."""
    excused_failures: _Row = 0
    """Failures among these that were observed before the end of a maintenance or of an override."""
    excused_silence_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Part of the observed outage before the end of a maintenance or of an override."""
    recent_interactions: Annotated[str, Field(max_length=MAX_INTERACTIONS, pattern="^[01]*$")] = ""
    """The last measured interactions, one per observation, oldest first: 1 answered, 0 failed.

    An interaction is the message where one was sent, else the request to the declared interface.
    """
    kind: Annotated[TargetKind, Field(strict=False)] | None = None
    """`mcp` if it was last asked as an MCP server; None: as an A2A agent."""
    discovery: LastResult | None = None
    transport: LastResult | None = None
    readiness: LastResult | None = None
    message: LastResult | None = None
    paths: dict[str, LastResult] | None = None
    """Last results of further requests of the definition, by path; they decide nothing."""
    document: LastDocument | None = None
    unhealthy_documents_in_row: _Row = 0
    """Consecutive documents with the status unhealthy, each `timestamp` once; up to MAX_IN_ROW."""
    last_unhealthy_timestamp_s: _Moment | None = None
    """The `timestamp` of the last one counted; None if the row is empty."""
    assertions: tuple[KeptFailure | AssertionResult, ...] = ()
    """Last result of each assertion; one that was not measured keeps the failure before it."""
    failed_assertions_in_row: _Row = 0
    """Consecutive probes with any other failed assertion than those of the next counter; up to MAX_IN_ROW."""
    failed_limits_in_row: _Row = 0
    """Probes in a row with a failed assertion of latency or certificate days; up to MAX_IN_ROW."""
    login: Login | None = None
    """What the agent asks for, as of the last probe that says; it decides nothing."""
    reported_agent_id: Annotated[str, Field(min_length=1, max_length=MAX_AGENT_ID_CHARS)] | None = None
    """Name that the agent last reported."""
    slot: OpenSlot | None = None
    """The half hour of the last observation."""

    @property
    def counted_failures(self) -> int:
        """Number of measured failures in a row, without those that maintenance or an override excuses."""
        return self.failures_in_row - self.excused_failures

    @property
    def counted_silence_s(self) -> float:
        """Seconds of observed silence, without those that maintenance or an override excuses."""
        return self.silence_s - self.excused_silence_s

    def to_json(self) -> str:
        """Return compact JSON without unknown members."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Observed":
        """Read the output of `to_json`; pydantic's ValidationError for anything else."""
        return cls.model_validate_json(text)


def expected(at_s: float, within_s: float) -> Observed:
    """Return the facts about an agent just registered for probes: nothing is observed yet.

    If no result comes within `within_s`, no prober is running.
    """
    return Observed(evidence_until_s=at_s + within_s, results_until_s=at_s + within_s)


def without_permission(observed: Observed) -> Observed:
    """Return the facts about an agent whose owner forbade probes: no further result is due."""
    update = {"inconclusive_reason": InconclusiveReason.NOT_ALLOWED, "results_until_s": MAX_MOMENT_S}
    return observed.model_copy(update=update)


def excused(observed: Observed) -> Observed:
    """Return the facts so that failures up to now no longer count against the agent.

    For an operator's maintenance or override that begins, ends or is in force. Otherwise its end would make
    an agent unhealthy because of failures of that time, although the agent may have been repaired since. Also
    for an agent that is probed at another URL from now on.
    """
    update = {"excused_failures": observed.failures_in_row, "excused_silence_s": observed.silence_s}
    return observed.model_copy(update=update)


def fold(
    observed: Observed | None,
    observation: Observation,
    receipt: Receipt,
    since_s: float,
    *,
    is_excused: bool = False,
) -> Observed:
    """Return the facts after a new observation, the latest one.

    `since_s` is since when the agent has its status: an agent that never answered is silent since then.
    A layer that was not measured keeps its last result; an observation without any measured layer is
    remembered by its time and its reason alone. `is_excused`: a maintenance or an override is in force.
    """
    observed = observed or Observed()
    # A batch that took longer on its way makes nothing look as if it had come before the last result.
    at_s = not_before(receipt.at_s, observed.last_observed_at_s)
    result = observation.result
    if result in INCONCLUSIVE:
        # An agent that was never probed has no evidence.
        measured: dict[str, Any] = {"evidence_until_s": observed.evidence_until_s or at_s}
    else:
        measured = {"measured_at_s": at_s, "evidence_until_s": receipt.evidence_until_s}
        measured |= _assertions(observed, observation.assertions or ())
        before_s = since_s if observed.measured_at_s is None else observed.measured_at_s
        gap_s = min(max(0.0, at_s - before_s), receipt.max_gap_s)
        measured |= _count_failures(observed, observation, receipt, at_s=at_s, gap_s=gap_s)
    failures_in_row = measured.get("failures_in_row", observed.failures_in_row)
    known = observed.model_copy(
        update={
            "last_observed_at_s": at_s,
            "results_until_s": receipt.results_until_s,
            "inconclusive_reason": find_inconclusive_reason(observation, result),
            "slot": add_observation(observed.slot, observation, at_s),
            **_layers(observed, observation, at_s),
            **measured,
            **_interaction(observed, observation, failures_in_row),
            **_document(observed, observation, at_s),
            "login": _login(observed, observation),
        }
    )
    return excused(known) if is_excused else known


def reported_health(observed: Observed | None) -> HealthStatus:
    """Return the health that the agent's last document states; `unknown` without a valid document.

    Time alone does not change it: see `current_health`.
    """
    document = None if observed is None else observed.document
    if observed is None or document is None or document.is_stale:
        return HealthStatus.UNKNOWN
    # Results that measured nothing do not end it here: an outage of the prober writes no event per agent.
    has_ended = _has_failed_since(observed) or (observed.last_observed_at_s or 0.0) > document.fresh_until_s
    return HealthStatus.UNKNOWN if has_ended else document.status


def observed_health(observed: Observed | None) -> HealthStatus:
    """Return the health at the last probe: the worse of the agent's own report and the assertions."""
    reported = reported_health(observed)
    if observed is None or reported is HealthStatus.UNHEALTHY or _has_failed_since(observed):
        return reported
    if observed.failed_assertions_in_row >= FAILED_ASSERTION_PROBES:
        return HealthStatus.UNHEALTHY
    return HealthStatus.DEGRADED if observed.failed_limits_in_row >= FAILED_ASSERTION_PROBES else reported


def _has_failed_since(observed: Observed) -> bool:
    """Return whether the last measured result was a failure after the last liveness signal."""
    return (observed.measured_at_s or 0.0) > (observed.liveness_until_s or inf)


def current_health(observed: Observed | None, now_s: float) -> HealthStatus:
    """Return the agent's health now: `unknown` if the evidence is too old."""
    return shown_health(reported_health(observed), evidence_of(observed), now_s)[0]


def is_document_current(observed: Observed | None, now_s: float) -> bool:
    """Return whether the last health document still counts, with any content."""
    evidence = evidence_of(observed)
    until_s = evidence.health_until_s
    return until_s is not None and now_s <= until_s and unknown_reason(evidence, now_s) is None


def last_interface(observed: Observed) -> LastInterface | None:
    """Return the last measured result of the agent's declared interface; None if there is none."""
    last = observed.transport
    return None if last is None else LastInterface(result=last.layer.result, at_s=last.observed_at_s)


def has_lost_document(observed: Observed) -> bool:
    """Return whether an agent answers, but its last usable health document has expired.

    It may never report that it recovered: it serves none any more, one behind a login, or one of a wrong
    clock.
    """
    document, readiness = observed.document, observed.readiness
    if document is None or readiness is None or observed.failures_in_row:
        return False
    is_renewed = document.is_stale and document.status is not HealthStatus.UNHEALTHY
    return is_renewed or readiness.observed_at_s > document.fresh_until_s


def evidence_of(observed: Observed | None) -> Evidence:
    """Return the times and reasons that show how current the evidence about an agent is."""
    if observed is None:
        return Evidence()
    document, until_s = observed.document, observed.evidence_until_s
    health_until_s = None
    if document is not None and not document.is_stale:
        ends_s = (document.fresh_until_s, observed.liveness_until_s, until_s)
        health_until_s = min(end_s for end_s in ends_s if end_s is not None)
    return Evidence(
        at_s=observed.measured_at_s,
        until_s=until_s,
        results_until_s=observed.results_until_s,
        inconclusive_reason=observed.inconclusive_reason,
        health_until_s=health_until_s,
    )


def document_age_s(document: ProbedDocument, at_s: float) -> float:
    """Return how old a health document was at `at_s`, in seconds.

    The answer's `Date` counts if there was one; below 0, the document is from the future.
    """
    return at_s - document.timestamp.timestamp() if document.age_s is None else document.age_s


def with_document_age(observation: Observation, at_s: float) -> Observation:
    """Return the observation with its document marked as stale or not, by the registry's clock.

    Where the answer had no `Date`, the prober could only compare the document with its own clock.
    """
    document, readiness = observation.document, observation.readiness
    if document is None or readiness is None or document.age_s is not None:
        return observation
    stale = is_stale(document_age_s(document, at_s), document.max_age_s)
    if stale is document.is_stale:
        return observation
    result = ResultClass.STALE_DOCUMENT if stale else ResultClass.OK
    changed = {
        "document": document.model_copy(update={"is_stale": stale}),
        "readiness": readiness.model_copy(update={"result": result}),
    }
    return observation.model_copy(update=changed)


def moved_back(observed: Observed, by_s: float, now_s: float) -> Observed:
    """Return the facts after the clock was set back: future times are moved by `by_s`, below 0.

    The half hour keeps its number. It is closed by the next observation.
    """

    def moved_s(at_s: float | None) -> float | None:
        return at_s + by_s if at_s is not None and at_s > now_s else at_s

    names = ("last_observed_at_s", "measured_at_s", "last_liveness_signal_at_s", "alive_since_s")
    update: dict[str, object] = {name: moved_s(getattr(observed, name)) for name in names}
    if (observed.last_observed_at_s or 0.0) > now_s:
        # The expiry of the last result may lie in the future as well.
        for name in ("evidence_until_s", "results_until_s"):
            until_s = getattr(observed, name)
            update[name] = None if until_s is None else until_s + by_s
    if observed.liveness_until_s is not None and (observed.last_liveness_signal_at_s or 0.0) > now_s:
        update["liveness_until_s"] = observed.liveness_until_s + by_s
    document = observed.document
    if document is not None and document.observed_at_s > now_s:
        times_s = {
            "observed_at_s": document.observed_at_s + by_s,
            "fresh_until_s": document.fresh_until_s + by_s,
        }
        update["document"] = document.model_copy(update=times_s)
    return observed.model_copy(update=update)


# Each of these returns the changes by an observation, by the names of `Observed`.


def _layers(observed: Observed, observation: Observation, at_s: float) -> dict[str, Any]:
    layers = {
        "discovery": observation.discovery,
        "transport": observation.transport,
        "readiness": observation.readiness,
        "message": observation.message,
    }
    changed: dict[str, Any] = {
        name: LastResult(layer=layer, observed_at_s=at_s)
        for name, layer in layers.items()
        if layer is not None and layer.is_measured
    }
    if changed:
        changed["kind"] = observation.kind
    if observation.paths is not None or observation.is_liveness_signal:
        changed["paths"] = _paths(observed.paths or {}, observation.paths or {}, at_s)
    if observation.reported_agent_id is not None:
        changed["reported_agent_id"] = observation.reported_agent_id
    return changed


def _paths(
    known: Mapping[str, LastResult], asked: Mapping[str, LayerResult], at_s: float
) -> dict[str, LastResult] | None:
    """Return the last result of each path that is still requested; None without any."""
    now = {path: LastResult(layer=layer, observed_at_s=at_s) for path, layer in asked.items()}
    return {
        path: last if last.layer.is_measured else known.get(path, last) for path, last in now.items()
    } or None


def _count_failures(
    observed: Observed, observation: Observation, receipt: Receipt, *, at_s: float, gap_s: float
) -> dict[str, Any]:
    """Count silence and failures; `gap_s` is the counted time since the last measured result."""
    if observation.is_liveness_signal:
        began_s = observed.alive_since_s
        return {
            "last_liveness_signal_at_s": at_s,
            "liveness_until_s": receipt.evidence_until_s,
            "alive_since_s": at_s if began_s is None else began_s,
            "failures_in_row": 0,
            "silence_s": 0.0,
            "excused_failures": 0,
            "excused_silence_s": 0.0,
        }
    silent = {"silence_s": observed.silence_s + gap_s}
    if not observation.is_measured_failure:
        return silent
    counted = {"failures_in_row": observed.failures_in_row + 1}
    if observed.failures_in_row == MAX_IN_ROW:
        # The counter is at its maximum, so fewer of its failures are excused.
        counted = {"failures_in_row": MAX_IN_ROW, "excused_failures": max(0, observed.excused_failures - 1)}
    return {**silent, **counted, "alive_since_s": None}


def _login(observed: Observed, observation: Observation) -> Login | None:
    """Return the login that the agent requires; None if its interface answers without one.

    If this probe shows neither, the login of the earlier probes stays.
    """
    if observation.login is not None:
        return observation.login
    answers = (observation.transport, observation.message)
    has_ended = any(each is not None and each.result is ResultClass.OK for each in answers)
    return None if has_ended else observed.login


def _assertions(observed: Observed, assertions: tuple[AssertionResult, ...]) -> dict[str, Any]:
    """Count probes with failed assertions. A target without assertions has none that failed."""
    failed = {_key(each): each for each in observed.assertions if each.has_failed}
    # What failed has failed until it passes: an answer that did not come proves nothing.
    known = tuple(
        each if each.is_measured or before is None else _kept(before, each.reason, observed.measured_at_s)
        for each in assertions
        for before in (failed.get(_key(each)),)
    )
    rows = {"failed_assertions_in_row": False, "failed_limits_in_row": True}
    return {"assertions": known} | {
        name: _failed_in_row(
            getattr(observed, name),
            has_failed=any(each.has_failed for each in assertions if each.is_gradual is is_gradual),
            has_passed=not any(each.has_failed for each in known if each.is_gradual is is_gradual),
        )
        for name, is_gradual in rows.items()
    }


def _kept(before: AssertionResult, why: str | None, measured_at_s: float | None) -> KeptFailure:
    """Return a failure that the last probe did not measure again. `why`: the reason, if it is known."""
    if isinstance(before, KeptFailure):
        return before.model_copy(update={"unmeasured_reason": why})
    at = datetime.fromtimestamp(measured_at_s or 0.0, UTC)
    return KeptFailure.model_validate({**before.model_dump(), "measured_at": at, "unmeasured_reason": why})


def _key(each: AssertionResult) -> tuple[str, str]:
    return each.name, each.expected


def _failed_in_row(row: int, *, has_failed: bool, has_passed: bool) -> int:
    if has_failed:
        return min(row + 1, MAX_IN_ROW)
    return 0 if has_passed else row


def _interaction(observed: Observed, observation: Observation, failures_in_row: int) -> dict[str, Any]:
    """Remember the message if one was sent, even if it was not measured, else the transport."""
    layer = observation.transport if observation.message is None else observation.message
    is_one_silence = failures_in_row > MAX_FAILURES_REMEMBERED
    if layer is None or not layer.is_measured or is_one_silence:
        return {}
    if observation.message is None and _may_accept_only_post(observation, layer):
        return {}
    recent = observed.recent_interactions + ("1" if layer.has_answered else "0")
    return {"recent_interactions": recent[-MAX_INTERACTIONS:]}


def _may_accept_only_post(observation: Observation, transport: LayerResult) -> bool:
    """Return whether an interface that has nothing for a GET may work nevertheless.

    Many routers answer 404 to a GET at a path that accepts only POST. An MCP server gets a real POST.
    """
    is_server = observation.kind is TargetKind.MCP
    return not (is_server or transport.has_answered) and may_accept_post(transport.status_code)


def _document(observed: Observed, observation: Observation, at_s: float) -> dict[str, Any]:
    """Hold the document, and count it if it is fresh: a stale one never adds to a row, or ends it."""
    document = observation.document
    if document is None:
        return {}
    changed: dict[str, Any] = {"document": _last_document(document, at_s)}
    timestamp_s = document.timestamp.timestamp()
    if not document.is_stale and document.status is not HealthStatus.UNHEALTHY:
        changed |= {"unhealthy_documents_in_row": 0, "last_unhealthy_timestamp_s": None}
    elif not document.is_stale and timestamp_s != observed.last_unhealthy_timestamp_s:
        row = min(observed.unhealthy_documents_in_row + 1, MAX_IN_ROW)
        changed |= {"unhealthy_documents_in_row": row, "last_unhealthy_timestamp_s": timestamp_s}
    return changed


def _last_document(document: ProbedDocument, at_s: float) -> LastDocument:
    # A document from the near future counts as computed now, so that it is not valid for longer.
    computed_at_s = at_s - max(0.0, document_age_s(document, at_s))
    return LastDocument(
        status=document.status,
        timestamp_s=document.timestamp.timestamp(),
        observed_at_s=at_s,
        fresh_until_s=computed_at_s + stale_after_seconds(document.max_age_s),
        is_stale=document.is_stale,
        response_ratio=document.response_ratio,
        sample_count=document.sample_count,
        error_ratio=document.error_ratio,
        latency_p50_ms=document.latency_p50_ms,
        latency_p99_ms=document.latency_p99_ms,
    )
