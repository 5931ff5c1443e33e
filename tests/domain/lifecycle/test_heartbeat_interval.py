import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.lifecycle.heartbeat_interval import (
    EARLY_RATIO,
    MAX_RETRY_AFTER_S,
    MAX_WAIT_S,
    clock_differs_by_s,
    first_heartbeat_at_s,
    is_adrift,
    next_beat_try_at_s,
    next_claim_at_s,
    next_heartbeat_at_s,
    next_try_at_s,
)

INTERVALS = st.floats(1, 604_800)
CHANCES = st.floats(0, 1)
WAITS = st.floats(0, 1_000_000)


@given(INTERVALS, CHANCES, WAITS)
def test_heartbeat_is_due_within_its_interval_and_not_much_earlier(
    interval_s: float, chance: float, sent_at_s: float
) -> None:
    due_s = next_heartbeat_at_s(sent_at_s, sent_at_s, interval_s, chance)
    assert (1 - EARLY_RATIO) * interval_s <= due_s - sent_at_s + 1e-6
    assert due_s - sent_at_s <= interval_s + 1e-6


@given(INTERVALS, CHANCES, WAITS)
def test_late_answer_makes_the_next_heartbeat_soon_but_not_immediate(
    interval_s: float, chance: float, late_s: float
) -> None:
    due_s = next_heartbeat_at_s(0.0, late_s, interval_s, chance)
    assert late_s < due_s <= max(interval_s, late_s + 0.1 * interval_s)


@given(INTERVALS, CHANCES)
def test_first_heartbeat_is_spread_over_the_interval(interval_s: float, chance: float) -> None:
    assert 0 < first_heartbeat_at_s(0.0, interval_s, chance) <= interval_s


def test_agents_registered_together_send_heartbeats_at_different_times() -> None:
    chances = [number / 100 for number in range(100)]
    due = sorted(first_heartbeat_at_s(0.0, 30.0, chance) for chance in chances)
    assert sum(at_s < 15 for at_s in due) == 50


@given(INTERVALS, st.integers(1, 10_000), CHANCES)
def test_agents_return_to_a_registry_within_an_interval_or_a_minute(
    interval_s: float, failures: int, chance: float
) -> None:
    assert 0 < next_try_at_s(0.0, interval_s, failures, chance) <= min(interval_s, MAX_WAIT_S)


def test_waits_grow_and_are_jittered_in_full() -> None:
    assert [next_try_at_s(0.0, 30.0, failures, 1.0) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert next_try_at_s(0.0, 30.0, 7, 0.5) == 15
    assert next_try_at_s(0.0, 30.0, 7, 0.0) < 0.1


@pytest.mark.parametrize(
    ("asked_s", "waited_s"),
    [(10.0, 10.5), (1e9, MAX_RETRY_AFTER_S + 0.5), (-5.0, 0.5), (float("nan"), 0.5), (float("inf"), 0.5)],
)
def test_retry_after_of_the_registry_is_followed_within_limits(asked_s: float, waited_s: float) -> None:
    assert next_try_at_s(0.0, 30.0, 1, 0.5, retry_after_s=asked_s) == waited_s


@given(INTERVALS, CHANCES, st.one_of(st.none(), st.floats()))
def test_heartbeat_waits_at_most_half_an_interval_for_a_proxy(
    interval_s: float, chance: float, asked_s: float | None
) -> None:
    usual_s = next_try_at_s(0.0, interval_s, 1, chance)
    assert usual_s <= next_beat_try_at_s(0.0, interval_s, 1, chance, asked_s) <= usual_s + interval_s / 2


@given(st.floats(1, 604_800), CHANCES)
def test_standby_worker_checks_again_before_the_other_would_be_dead(
    dead_after_s: float, chance: float
) -> None:
    assert dead_after_s / 2 <= next_claim_at_s(0.0, dead_after_s, chance) <= dead_after_s


@pytest.mark.parametrize(
    ("server_s", "difference_s"),
    [(99.0, -1.0), (100.0, 0.0), (130.0, 0.0), (160.0, 0.0), (165.0, 5.0)],
)
def test_an_answer_that_came_late_is_no_drift(server_s: float, difference_s: float) -> None:
    assert clock_differs_by_s(100.0, 160.0, server_s) == difference_s


def test_clock_difference_above_two_intervals_is_drift() -> None:
    assert not is_adrift(60.0, 30.0)
    assert is_adrift(60.1, 30.0)
    assert is_adrift(-60.1, 30.0)
