from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.health.document import Trend
from lifesign.domain.health.outcome import Samples
from lifesign.domain.health.trend import calibration_trend

SAMPLES = st.builds(Samples, st.integers(0, 10**6), st.integers(0, 10**6))
MIRRORED = {Trend.STABLE: Trend.STABLE, Trend.IMPROVING: Trend.DECLINING, Trend.DECLINING: Trend.IMPROVING}


def percent(ratio: int, total: int = 100) -> Samples:
    return Samples(ratio * total // 100, total - ratio * total // 100)


@pytest.mark.parametrize(
    ("before", "now", "trend"),
    [
        (90, 80, Trend.STABLE),
        (90, 79, Trend.DECLINING),
        (80, 90, Trend.STABLE),
        (79, 90, Trend.IMPROVING),
        (100, 90, Trend.STABLE),
        (100, 89, Trend.DECLINING),
        (0, 10, Trend.STABLE),
        (0, 11, Trend.IMPROVING),
        (50, 50, Trend.STABLE),
        (100, 0, Trend.DECLINING),
    ],
)
@pytest.mark.parametrize("total", [100, 1000, 10**9])
def test_a_change_of_more_than_a_tenth_is_a_trend(before: int, now: int, trend: Trend, total: int) -> None:
    assert calibration_trend(percent(now, total), percent(before, total)) is trend


def test_one_sample_beyond_the_edge_is_a_trend() -> None:
    assert calibration_trend(Samples(8 * 10**8, 2 * 10**8), percent(90, 10**9)) is Trend.STABLE
    assert calibration_trend(Samples(8 * 10**8 - 1, 2 * 10**8 + 1), percent(90, 10**9)) is Trend.DECLINING


@given(SAMPLES, SAMPLES)
@example(Samples(9, 1), Samples(8, 2))
@example(Samples(27, 3), Samples(8, 2))
def test_trend_threshold_is_exact_for_any_number_of_samples(now: Samples, before: Samples) -> None:
    trend = calibration_trend(now, before)
    if min(now.total, before.total) < 10:
        assert trend is Trend.STABLE
        return
    change = Fraction(now.responses, now.total) - Fraction(before.responses, before.total)
    assert (trend is Trend.IMPROVING) == (change > Fraction(1, 10))
    assert (trend is Trend.DECLINING) == (change < Fraction(-1, 10))


@given(SAMPLES, SAMPLES)
def test_swapping_the_windows_reverses_the_trend(one: Samples, other: Samples) -> None:
    assert calibration_trend(one, other) is MIRRORED[calibration_trend(other, one)]


@pytest.mark.parametrize("few", [Samples(), Samples(9, 0), Samples(0, 9), Samples(4, 5)])
def test_too_few_samples_in_either_window_are_stable(few: Samples) -> None:
    for many in (percent(0), percent(100)):
        assert calibration_trend(few, many) is Trend.STABLE
        assert calibration_trend(many, few) is Trend.STABLE


def test_ten_samples_in_both_windows_are_enough() -> None:
    assert calibration_trend(Samples(0, 10), Samples(10, 0)) is Trend.DECLINING
