"""Times from the future."""

from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.common.clock_skew import (
    MAX_AHEAD_SECONDS,
    is_in_future,
    last_not_ahead,
    not_before,
)

TIMES = st.integers(0, 2_000_000_000).map(float)


@given(TIMES, TIMES)
def test_time_within_the_clock_tolerance_is_not_in_the_future(at_s: float, now_s: float) -> None:
    assert is_in_future(at_s, now_s) is (at_s > now_s + MAX_AHEAD_SECONDS)


@given(TIMES, st.none() | TIMES)
def test_time_is_not_before_the_last_one_unless_that_lies_far_ahead(
    at_s: float, last_s: float | None
) -> None:
    counts = last_s is not None and at_s < last_s <= at_s + MAX_AHEAD_SECONDS
    assert not_before(at_s, last_s) == (last_s if counts else at_s)


@given(st.lists(TIMES), TIMES)
def test_latest_time_that_is_not_in_the_future_is_preferred(times: list[float], now_s: float) -> None:
    latest_first = sorted(times, reverse=True)
    found = last_not_ahead(latest_first, float, now_s)
    believed = [at_s for at_s in times if not is_in_future(at_s, now_s)]
    assert found == (max(believed) if believed else max(times, default=None))
