from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.health.inspection import InspectionTally, StatusRule
from lifesign.domain.health.outcome import Samples
from lifesign.domain.health.status import WindowStatus, health_status, is_slow, window_status

SAMPLES = st.builds(Samples, st.integers(0, 10**6), st.integers(0, 10**6))
MILLISECONDS = st.decimals(Decimal("0.001"), Decimal(1_000_000), places=3)
ORDER = [HealthStatus.UNHEALTHY, HealthStatus.DEGRADED, HealthStatus.HEALTHY]


def with_ratio(ten_thousandths: int, total: int = 10_000) -> Samples:
    responses = ten_thousandths * total // 10_000
    return Samples(responses, total - responses)


@pytest.mark.parametrize("responses", range(10))
def test_nine_samples_give_unknown_whatever_their_outcome(responses: int) -> None:
    for total in range(responses, 10):
        assert health_status(Samples(responses, total - responses), 10**6, 1) is HealthStatus.UNKNOWN


@pytest.mark.parametrize(
    ("samples", "status"),
    [
        (Samples(10, 0), HealthStatus.HEALTHY),
        (Samples(9, 1), HealthStatus.DEGRADED),
        (Samples(5, 5), HealthStatus.DEGRADED),
        (Samples(4, 6), HealthStatus.UNHEALTHY),
        (Samples(0, 10), HealthStatus.UNHEALTHY),
        (Samples(19, 1), HealthStatus.HEALTHY),
        (with_ratio(10_000), HealthStatus.HEALTHY),
        (with_ratio(9500), HealthStatus.HEALTHY),
        (with_ratio(9499), HealthStatus.DEGRADED),
        (with_ratio(5000), HealthStatus.DEGRADED),
        (with_ratio(4999), HealthStatus.UNHEALTHY),
        (with_ratio(0), HealthStatus.UNHEALTHY),
    ],
    ids=str,
)
def test_ten_samples_are_classified_by_their_ratio(samples: Samples, status: HealthStatus) -> None:
    assert health_status(samples) is status
    assert health_status(samples, 10**6, None) is status
    assert health_status(samples, None, 1) is status


@given(st.integers(1, 10**12))
def test_status_thresholds_are_exact_for_any_number_of_samples(twentieth: int) -> None:
    at_95, at_50 = Samples(19 * twentieth, twentieth), Samples(10 * twentieth, 10 * twentieth)
    assert health_status(at_95) is HealthStatus.HEALTHY
    assert health_status(at_50) is HealthStatus.DEGRADED
    assert health_status(Samples(at_95.responses - 1, at_95.errors + 1)) is HealthStatus.DEGRADED
    assert health_status(Samples(at_50.responses - 1, at_50.errors + 1)) is HealthStatus.UNHEALTHY


@pytest.mark.parametrize(
    ("p99_ms", "status"),
    [(299.9, HealthStatus.HEALTHY), (300, HealthStatus.HEALTHY), (300.1, HealthStatus.DEGRADED)],
)
def test_more_than_three_times_the_baseline_is_degraded(p99_ms: float, status: HealthStatus) -> None:
    assert health_status(Samples(10, 0), p99_ms, 100) is status


@given(MILLISECONDS)
@example(Decimal("0.7"))
@example(Decimal("1.1"))
def test_exactly_three_times_any_baseline_is_not_slow(baseline_ms: Decimal) -> None:
    assert not is_slow(float(3 * baseline_ms), float(baseline_ms))
    assert is_slow(float(3 * baseline_ms + Decimal("0.001")), float(baseline_ms))


def test_latency_never_makes_an_agent_unhealthy_or_a_failing_one_better() -> None:
    assert health_status(with_ratio(9000), 10**6, 1) is HealthStatus.DEGRADED
    assert health_status(with_ratio(4000), 10**6, 1) is HealthStatus.UNHEALTHY
    assert health_status(with_ratio(4000), 1, 10**6) is HealthStatus.UNHEALTHY


def test_agent_without_both_latencies_is_not_slow() -> None:
    assert not is_slow(None, 1)
    assert not is_slow(10**6, None)
    assert not is_slow(None, None)


@given(SAMPLES, st.integers(1, 1000))
def test_more_answers_never_worsen_and_more_errors_never_improve_the_status(
    samples: Samples, more: int
) -> None:
    status = health_status(samples)
    if status is HealthStatus.UNKNOWN:
        assert samples.total < 10
        return
    better = health_status(Samples(samples.responses + more, samples.errors))
    worse = health_status(Samples(samples.responses, samples.errors + more))
    assert ORDER.index(worse) <= ORDER.index(status) <= ORDER.index(better)


# --- windows with uninspected answers ---------------------------------------------------------------------


@given(SAMPLES, st.integers(0, 10**6), st.integers(0, 10**6))
@example(Samples(20, 0), 20, 20)
@example(Samples(20, 0), 20, 21)
@example(Samples(0, 100), 0, 1900)
def test_uninspected_answers_make_no_agent_healthy(samples: Samples, inspected: int, missing: int) -> None:
    result = window_status(samples, InspectionTally(inspected, {"oversized": missing}))
    if missing <= inspected:
        assert result == WindowStatus(health_status(samples), StatusRule.RATIO, has_ratios=samples.total > 0)
        return
    assert result.status is not HealthStatus.HEALTHY
    if result.status is HealthStatus.UNKNOWN:
        assert (result.rule, result.has_ratios) == (StatusRule.MOSTLY_NOT_INSPECTED, False)
        return
    # The known failures alone decide the status, whatever the missing samples were.
    assert result.rule is StatusRule.FAILURES_SEEN
    at_best = health_status(Samples(samples.responses + missing, samples.errors))
    at_worst = health_status(Samples(samples.responses, samples.errors + missing))
    assert result.status is at_best
    assert ORDER.index(at_worst) <= ORDER.index(result.status)
    assert not result.has_ratios or health_status(samples) is result.status


@given(SAMPLES)
def test_status_follows_the_ratio_if_no_answer_needs_inspection(samples: Samples) -> None:
    result = window_status(samples, InspectionTally(), 301, 100)
    assert result.status is health_status(samples, 301, 100)
    assert result.rule is StatusRule.RATIO
