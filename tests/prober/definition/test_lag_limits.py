"""Slowness of a prober."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.prober.definition.lag_limits import (
    LAG_EVERY_SECONDS,
    LAG_WINDOW_SECONDS,
    MIN_LAGS,
    MIN_SLOW_SECONDS,
    LagPolicy,
    SelfCheck,
)


class Loop:
    """An event loop that wakes a prober as late as a test sets."""

    def __init__(self, policy: LagPolicy | None = None) -> None:
        self.now_s = 100.0
        self.check = SelfCheck(self.now_s, policy)

    def wake(self, times: int = 1, *, late_s: float = 0.0, suspended_s: float = 0.0) -> None:
        for _ in range(times):
            self.now_s += LAG_EVERY_SECONDS + late_s
            self.check.note_woken(self.now_s, suspended_s)

    def assess(self) -> str | None:
        return self.check.assess(self.now_s)

    def slowness_since(self, began_s: float) -> str | None:
        return self.check.slowness_since(began_s, self.now_s)


def test_prober_without_measurements_is_not_slow() -> None:
    loop = Loop()
    assert loop.assess() is None
    assert loop.slowness_since(0.0) is None
    assert loop.check.lag_p99_s() == 0.0


def test_repeatedly_late_event_loop_is_slow_and_one_delay_is_not() -> None:
    loop = Loop()
    loop.wake(50)
    loop.wake(late_s=1.5)
    loop.wake(49)
    assert loop.assess() is None
    loop.wake(2, late_s=1.2)
    assert "1.20 s" in (loop.assess() or "")
    assert loop.check.lag_p99_s() == pytest.approx(1.2)
    assert loop.slowness_since(loop.now_s - 1.0) is not None


def test_one_long_stall_makes_the_prober_slow_for_a_while() -> None:
    loop = Loop()
    loop.wake(10)
    began_s = loop.now_s
    loop.wake(late_s=60.0)
    assert "60.0 s" in (loop.assess() or "")
    assert loop.slowness_since(began_s) is not None
    ended_s = loop.now_s
    loop.wake(int(MIN_SLOW_SECONDS / LAG_EVERY_SECONDS) - 1)
    assert loop.assess() is not None
    loop.wake(2)
    assert loop.assess() is None
    # A probe that was under way then says nothing, however late it ends; one that began later does.
    assert loop.slowness_since(began_s) is not None
    assert loop.slowness_since(ended_s + 0.1) is None


def test_current_stall_counts_before_it_ends() -> None:
    loop = Loop()
    loop.wake(10)
    began_s = loop.now_s
    loop.now_s += 30.0
    assert "29.9 s" in (loop.slowness_since(began_s) or "")


def test_suspension_of_the_machine_counts_as_a_stall() -> None:
    loop = Loop()
    loop.wake(10)
    loop.wake(suspended_s=3_600.0)
    assert "3600.0 s" in (loop.assess() or "")


def test_lag_just_below_the_limits_is_not_slow() -> None:
    loop = Loop()
    loop.wake(MIN_LAGS, late_s=0.99)
    loop.wake(late_s=1.99)
    assert loop.slowness_since(0.0) is None


def test_lag_limits_can_be_configured() -> None:
    loop = Loop(LagPolicy(max_lag_s=0.01, max_standstill_s=0.05))
    loop.wake(MIN_LAGS)
    assert loop.assess() is None
    loop.wake(MIN_LAGS, late_s=0.02)
    assert loop.assess() is not None
    other = Loop(LagPolicy(max_lag_s=0.01, max_standstill_s=0.05))
    other.wake(late_s=0.06)
    assert other.assess() is not None


@given(st.lists(st.floats(0, 5), max_size=300))
def test_stored_lags_are_limited(lags_s: list[float]) -> None:
    loop = Loop()
    for late_s in lags_s:
        loop.wake(late_s=late_s)
    assert len(loop.check._lags) <= LAG_WINDOW_SECONDS / LAG_EVERY_SECONDS + 1
