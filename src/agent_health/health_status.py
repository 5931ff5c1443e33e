"""When does an agent call itself healthy, degraded, unhealthy, unknown? (draft 4.3)"""

from math import isclose

from agent_health.document import HealthStatus
from agent_health.outcome import Samples

MINIMUM_SAMPLES = 10
"""With fewer samples in the window nothing is known (draft 4.3)."""
HEALTHY_RATIO = 0.95
"""The lowest response ratio that is healthy."""
DEGRADED_RATIO = 0.50
"""The lowest response ratio that is degraded; below it lies unhealthy."""
SLOW_FACTOR = 3
"""A p99 latency of more than this many times the declared baseline is degraded."""


def health_status(
    samples: Samples, latency_p99_ms: float | None = None, baseline_p99_ms: float | None = None
) -> HealthStatus:
    """Judge a window (draft 4.3): too few samples, then the ratio, then the latency.

    Exactly 0.95 is healthy, exactly 0.50 degraded, exactly three times the baseline healthy.
    The latency is judged only where the operator declared a baseline. Milliseconds.
    """
    ratio = samples.response_ratio
    if ratio is None or samples.total < MINIMUM_SAMPLES:
        return HealthStatus.UNKNOWN
    if ratio < DEGRADED_RATIO:
        return HealthStatus.UNHEALTHY
    if ratio < HEALTHY_RATIO or is_slow(latency_p99_ms, baseline_p99_ms):
        return HealthStatus.DEGRADED
    return HealthStatus.HEALTHY


def is_slow(latency_p99_ms: float | None, baseline_p99_ms: float | None) -> bool:
    """Whether a p99 latency exceeds three times the declared baseline; False if either is unknown."""
    if latency_p99_ms is None or baseline_p99_ms is None:
        return False
    limit_ms = SLOW_FACTOR * baseline_p99_ms
    # Three times 0.7 is a little less than 2.1 in binary fractions; a percentile has four digits.
    return latency_p99_ms > limit_ms and not isclose(latency_p99_ms, limit_ms, rel_tol=1e-12)
