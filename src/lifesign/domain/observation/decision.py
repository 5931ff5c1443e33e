"""Should I call this agent? (draft, appendix A)

A healthy report is an operational signal. It never proves that the agent can be trusted (draft 7).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from lifesign.domain.common.clock_skew import MAX_AHEAD_SECONDS
from lifesign.domain.health.document import HealthDocument, HealthStatus, Trend
from lifesign.domain.health.inspection import InspectionNote, StatusRule, read_inspection
from lifesign.domain.health.status import MINIMUM_SAMPLES
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.text.counts import plural, pluralize
from lifesign.domain.text.durations import duration_text

RETRY_AFTER_SECONDS = 300
"""When to ask an unhealthy agent again (draft, appendix A); also the shortest polling interval (draft 7)."""
MAX_RETRY_AFTER_SECONDS = 86_400
"""A peer that asks for a longer wait is requested again after a day."""
STALE_AFTER_SECONDS = 900
"""A document up to this age is fresh, whatever its max-age: three polling intervals."""
MAX_COUNTED_MAX_AGE_SECONDS = 3600
"""Upper bound of a max-age that counts: a document cannot stay current by a longer one."""
FAILURE_LIFETIME_SECONDS = 30
"""Lifetime of a decision after a failed request: the next request may succeed."""


class Action(StrEnum):
    """The recommended action for a caller of an agent, such as to call or to avoid it."""

    PROCEED = "proceed"
    """Call it."""
    PROCEED_WITH_CAUTION = "proceed_with_caution"
    """Call it with shorter timeouts, simpler requests, a fallback at hand."""
    AVOID = "avoid"
    """Call another one, or this one later."""
    PROCEED_AND_MONITOR = "proceed_and_monitor"
    """There is no evidence: call the agent as usual, and watch for errors."""


ACTIONS: Mapping[HealthStatus, Action] = MappingProxyType({
    HealthStatus.HEALTHY:   Action.PROCEED,
    HealthStatus.DEGRADED:  Action.PROCEED_WITH_CAUTION,
    HealthStatus.UNHEALTHY: Action.AVOID,
    HealthStatus.UNKNOWN:   Action.PROCEED_AND_MONITOR,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decision:
    """Advice about an agent, with its reasons."""

    action: Action
    status: HealthStatus
    """Status for the caller: `unknown` also if the document is stale or could not be read."""
    reasons: tuple[str, ...]
    """The facts behind the decision, for people; never empty. They may quote the peer: escape them when you
    print them.
    """
    retry_after_seconds: int | None
    """Time before which the document should not be requested again; 0 to 86400. None if there is no need to
    wait.
    """


def age_seconds(document: HealthDocument, now: datetime) -> float:
    """Return the age of a document's state in seconds; negative if its time is in the future.

    `now` is the time of the answer by the server's clock (its `Date`), so that a difference between the
    clocks does not count; the local time if it has none.
    """
    return (now - document.timestamp).total_seconds()


def stale_after_seconds(max_age_seconds: float | None) -> float:
    """Return the age above which a document does not count: 900 s; twice a longer max-age, at most 7200 s."""
    max_age_seconds = min(max_age_seconds or 0, MAX_COUNTED_MAX_AGE_SECONDS)
    return max(STALE_AFTER_SECONDS, 2 * max_age_seconds)


def is_stale(age_seconds: float, max_age_seconds: float | None = None) -> bool:
    """Return whether a health document of this age no longer counts, given its `Cache-Control: max-age`."""
    return age_seconds > stale_after_seconds(max_age_seconds) or age_seconds < -MAX_AHEAD_SECONDS


def decide(
    result: ResultClass,
    document: HealthDocument | None = None,
    *,
    now: datetime,
    max_age_seconds: float | None = None,
    failure: str = "",
    retry_after_seconds: int | None = None,
) -> Decision:
    """Decide whether to call an agent, by its health document and by the result of the request for it.

    `now` has a zone and is the time to which `age_seconds` refers. `failure` describes the failure for
    people, `retry_after_seconds` is the wait that the peer requested; both count only if the document could
    not be read. A stale document is unknown, also if `result` is `ok`.
    """
    if document is not None and result in {ResultClass.OK, ResultClass.STALE_DOCUMENT}:
        age = age_seconds(document, now)
        if result is ResultClass.OK and not is_stale(age, max_age_seconds):
            status = document.health.status
            wait_seconds = RETRY_AFTER_SECONDS if status is HealthStatus.UNHEALTHY else None
            return Decision(ACTIONS[status], status, tuple(_reported(document, now)), wait_seconds)
        failure = stale_reason(age, max_age_seconds)
    reason = failure or f"the health document could not be read: {result.replace('_', ' ')}"
    if result is ResultClass.RATE_LIMITED and retry_after_seconds is None:
        retry_after_seconds = RETRY_AFTER_SECONDS
    if retry_after_seconds is not None:
        retry_after_seconds = min(max(retry_after_seconds, 0), MAX_RETRY_AFTER_SECONDS)
    return Decision(Action.PROCEED_AND_MONITOR, HealthStatus.UNKNOWN, (reason,), retry_after_seconds)


_PASSING_FAILURES = frozenset({
    ResultClass.REFUSED,
    ResultClass.TIMEOUT,
    ResultClass.DNS_FAILURE,
    ResultClass.TLS_FAILURE,
    ResultClass.HTTP_ERROR,
    ResultClass.INTERNAL,
})  # fmt: skip


def decision_lifetime_seconds(
    decision: Decision,
    result: ResultClass,
    *,
    age_seconds: float | None = None,
    max_age_seconds: float | None = None,
) -> float:
    """Return for how many seconds, 0 to 86400, a caller may use a decision before a new check.

    `result` is how the request for the document ended, `age_seconds` the age of the document that decided,
    and `max_age_seconds` its `Cache-Control: max-age`. A document counts for one polling interval, but no
    longer than it is fresh. Without a document, a longer wait that the agent asks for counts.
    """
    if decision.status is HealthStatus.UNKNOWN:
        default = FAILURE_LIFETIME_SECONDS if result in _PASSING_FAILURES else RETRY_AFTER_SECONDS
        # Without a requested wait, the agent is still not checked with every call.
        return max(decision.retry_after_seconds or 0, default)
    fresh_seconds = stale_after_seconds(max_age_seconds) - (age_seconds or 0)
    return min(RETRY_AFTER_SECONDS, max(fresh_seconds, 0))


def _reported(document: HealthDocument, now: datetime) -> Iterator[str]:
    """Return the facts of a fresh document that concern its status."""
    status, calibration = document.health.status, document.calibration
    yield f"the agent reports {status}"
    if calibration is not None and calibration.response_ratio is not None:
        window = duration_text(calibration.measurement_window_seconds)
        ratio = shown_ratio(calibration.response_ratio)
        yield f"response ratio {ratio} over {pluralize(calibration.sample_count, 'request')} within {window}"
    if calibration is not None and calibration.sample_count < MINIMUM_SAMPLES:
        samples = plural(calibration.sample_count, "sample is", "samples are")
        yield f"{calibration.sample_count} {samples} too few for a verdict"
    note = read_inspection(document.extensions)
    if note is not None and note.rule in _RULES_WITHOUT_INSPECTION:
        yield _not_inspected(note)
    if note is not None and note.rule is StatusRule.MOSTLY_TOOL_ERRORS:
        yield f"most of {pluralize(note.tally.max_tool_results, 'tool result')} are errors"
    trend = None if document.decay is None else document.decay.calibration_trend
    if trend is Trend.DECLINING:
        yield "worsening: the response ratio is declining"
    elif trend is Trend.IMPROVING:
        yield "recovering: the response ratio is improving"
    if status is HealthStatus.UNHEALTHY:
        yield _outage(document.health.last_healthy_at, now)


_RULES_WITHOUT_INSPECTION = frozenset({StatusRule.FAILURES_SEEN, StatusRule.MOSTLY_NOT_INSPECTED})


def _not_inspected(note: InspectionNote) -> str:
    """Say why the ratio does not decide."""
    missing = sum(note.tally.not_inspected.values())
    reasons = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in note.tally.not_inspected.items()
    )
    total = pluralize(note.tally.inspected + missing, "answer")
    return f"{missing} of {total} could not be inspected" + (f": {reasons}" if reasons else "")


def _outage(last_healthy_at: datetime | None, now: datetime) -> str:
    if last_healthy_at is None:
        return "the document does not say when the agent was last healthy"
    return f"last healthy {duration_text((now - last_healthy_at).total_seconds())} ago"


def stale_reason(age: float, max_age_seconds: float | None = None) -> str:
    """Return in words that a document of this age no longer counts, and from which age on."""
    if age < 0:
        return f"the timestamp of the health document is {duration_text(-age)} in the future"
    limit = duration_text(stale_after_seconds(max_age_seconds))
    return f"the health document is {duration_text(age)} old; the maximum is {limit}"


def shown_ratio(ratio: float) -> str:
    """Return a ratio rounded down to four decimals, so that 0.94999 does not look like a healthy 0.95."""
    # A double just below the intended value, such as 0.57, must not lose its last digit.
    return f"{math.floor(ratio * 10_000 + 1e-6) / 10_000:g}"


def age_text(seconds: float) -> str:
    """Return the age of a document for people, such as `5 min old`.

    From -2 s on, its time is in the future: `10 d in the future`.
    """
    # A `Date` has whole seconds, and servers renew theirs once a second: less than two ahead is new.
    return f"{duration_text(-seconds)} in the future" if seconds <= -2 else f"{duration_text(seconds)} old"
