"""The status of an agent (healthy, degraded, unhealthy or unknown), and the rule behind it (draft 4.3)."""

from dataclasses import dataclass
from math import isclose

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.health.inspection import InspectionTally, StatusRule
from lifesign.domain.health.outcome import Samples

MINIMUM_SAMPLES = 10
"""Minimum number of samples in the window for a status other than unknown (draft 4.3)."""
HEALTHY_RATIO = 0.95
"""The lowest response ratio that is healthy."""
DEGRADED_RATIO = 0.50
"""The lowest ratio that is degraded; a lower ratio is unhealthy."""
SLOW_FACTOR = 3
"""A p99 latency of more than this many times the declared baseline is degraded."""


def health_status(
    samples: Samples, latency_p99_ms: float | None = None, baseline_p99_ms: float | None = None
) -> HealthStatus:
    """Return a window's health status (draft 4.3), by its samples, response ratio and latency.

    Exactly 0.95 is healthy, exactly 0.50 degraded, exactly three times the baseline healthy. The latency
    counts only if the operator declared a baseline. Milliseconds.
    """
    ratio = samples.response_ratio
    if ratio is None or samples.total < MINIMUM_SAMPLES:
        return HealthStatus.UNKNOWN
    if ratio < DEGRADED_RATIO:
        return HealthStatus.UNHEALTHY
    if ratio < HEALTHY_RATIO or is_slow(latency_p99_ms, baseline_p99_ms):
        return HealthStatus.DEGRADED
    return HealthStatus.HEALTHY


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """Health status of a window, and whether its measurements may be published."""

    status: HealthStatus
    rule: StatusRule
    has_ratios: bool
    """Whether the ratios are meaningful; False also without a sample."""


def window_status(
    samples: Samples,
    tally: InspectionTally,
    latency_p99_ms: float | None = None,
    baseline_p99_ms: float | None = None,
    tool_errors: int = 0,
) -> WindowStatus:
    """Return a window's health status, taking into account answers that could not be inspected.

    If more than half of the results of MCP tools are errors, the window is not healthy but unknown: SDKs turn
    the exception of a tool into such a result, so that all of them may have crashed. The ratios are left out.

    If more than half of the answers that claim JSON or an event stream were not inspected, the ratio says
    little. Then the status follows from the failures that were seen, if they put the ratio below a threshold
    even with every answer that was not inspected taken as good; else it is unknown. The ratios are left out,
    unless the status follows from them as well.
    """
    status = health_status(samples, latency_p99_ms, baseline_p99_ms)
    if status is HealthStatus.HEALTHY and 2 * tool_errors > tally.max_tool_results:
        return WindowStatus(HealthStatus.UNKNOWN, StatusRule.MOSTLY_TOOL_ERRORS, has_ratios=False)
    if not tally.is_mostly_missing:
        return WindowStatus(status, StatusRule.RATIO, has_ratios=samples.total > 0)
    if samples.total >= MINIMUM_SAMPLES:
        missing = sum(tally.not_inspected.values())
        at_best = health_status(Samples(samples.responses + missing, samples.errors))
        if at_best is not HealthStatus.HEALTHY:
            has_ratios = at_best is health_status(samples)
            return WindowStatus(at_best, StatusRule.FAILURES_SEEN, has_ratios=has_ratios)
    return WindowStatus(HealthStatus.UNKNOWN, StatusRule.MOSTLY_NOT_INSPECTED, has_ratios=False)


def is_slow(latency_p99_ms: float | None, baseline_p99_ms: float | None) -> bool:
    """Return whether a p99 latency exceeds three times the declared baseline; False if either is unknown."""
    if latency_p99_ms is None or baseline_p99_ms is None:
        return False
    limit_ms = SLOW_FACTOR * baseline_p99_ms
    # Three times 0.7 is a little less than 2.1 in binary fractions; a percentile has four digits.
    return latency_p99_ms > limit_ms and not isclose(latency_p99_ms, limit_ms, rel_tol=1e-12)
