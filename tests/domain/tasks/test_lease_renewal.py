from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.tasks.lease_renewal import (
    MAX_WAIT_S,
    MIN_WAIT_S,
    grace_left_s,
    next_try_s,
    notice_at_s,
    renewal_due_s,
    try_ends_s,
)

WINDOWS = st.floats(1, 86_400)
CHANCES = st.floats(0, 1)
TIMES = st.floats(0, 1_000_000)
GRACES = st.floats(0, 1_000_000)


@given(TIMES, WINDOWS, CHANCES)
def test_a_lease_is_renewed_at_60_percent_of_its_window_give_or_take_5(
    requested_at_s: float, window_s: float, chance: float
) -> None:
    ratio = (renewal_due_s(requested_at_s, window_s, chance) - requested_at_s) / window_s
    assert 0.549_999 <= ratio <= 0.650_001


@given(TIMES, WINDOWS)
def test_renewal_request_leaves_time_for_a_retry_before_the_deadline(now_s: float, left_s: float) -> None:
    deadline_s = now_s + left_s
    ends_s = try_ends_s(now_s, deadline_s)
    assert now_s < ends_s <= deadline_s
    assert ends_s - now_s <= max(0.26, left_s * 0.501)


@given(TIMES, WINDOWS, st.integers(1, 10_000), CHANCES, st.none() | st.floats(0, 1e9))
def test_renewal_is_retried_before_the_deadline(
    now_s: float, left_s: float, failures: int, chance: float, retry_after_s: float | None
) -> None:
    due_s = next_try_s(now_s, now_s + left_s, failures, chance, retry_after_s)
    assert MIN_WAIT_S * 0.999 <= due_s - now_s <= left_s * 0.501
    if retry_after_s is None:
        assert due_s - now_s <= MAX_WAIT_S * 1.001


def test_waits_grow_and_are_jittered_in_full() -> None:
    waits = [next_try_s(0.0, 1_000.0, failures, 1.0) for failures in range(1, 9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert next_try_s(0.0, 1_000.0, 8, 0.0) == MIN_WAIT_S


def test_retry_after_of_the_registry_delays_the_next_renewal() -> None:
    assert next_try_s(0.0, 1_000.0, 1, 1.0, 20.0) == 20.5


@given(TIMES, WINDOWS, GRACES)
def test_work_is_stopped_after_the_renewal_time_and_before_the_deadline(
    requested_at_s: float, window_s: float, grace_s: float
) -> None:
    deadline_s = requested_at_s + window_s
    notice_s = notice_at_s(deadline_s, window_s, grace_s)
    assert notice_s <= deadline_s
    # A renewal at the last moment leaves a tenth of the window for several retries.
    assert notice_s - renewal_due_s(requested_at_s, window_s, 1.0) >= window_s * 0.1
    assert notice_s + grace_left_s(notice_s, deadline_s, grace_s) <= deadline_s + 1e-6
    # If the window is long enough, the agent gets its whole grace period.
    if grace_s <= window_s * 0.2:
        assert abs(grace_left_s(notice_s, deadline_s, grace_s) - grace_s) < 1e-6


@given(TIMES, TIMES, GRACES)
def test_grace_period_ends_by_the_deadline(now_s: float, deadline_s: float, grace_s: float) -> None:
    left_s = grace_left_s(now_s, deadline_s, grace_s)
    assert 0.0 <= left_s <= grace_s
    assert left_s == 0.0 or now_s + left_s <= deadline_s + 1e-6


@given(WINDOWS, GRACES)
def test_renewal_is_retried_at_a_hanging_registry_before_work_must_end(
    window_s: float, grace_s: float
) -> None:
    now_s, tries = renewal_due_s(0.0, window_s, 1.0), 0
    notice_s = notice_at_s(window_s, window_s, grace_s)
    while now_s < notice_s:
        tries += 1
        now_s = next_try_s(try_ends_s(now_s, notice_s), notice_s, tries, 0.0)
    # A lease of 1 s leaves time for one hanging request, a longer one for two or more.
    assert tries >= (2 if window_s >= 2.5 else 1)
