"""The clocks of a prober."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.prober.network.clock import SYSTEM_CLOCK, Clock, LedgerClock

START_S = 1_763_640_000.0


class Machine:
    """A machine whose calendar may be set."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.now_s, self.ahead_s = 1_000.0, ahead_s
        self.clock = Clock(
            wall_s=lambda: START_S + self.now_s + self.ahead_s,
            monotonic_s=lambda: self.now_s,
            boot_s=lambda: self.now_s,
        )

    @property
    def true_s(self) -> float:
        return START_S + self.now_s


def read_ledger_clock(
    machine: Machine, ledger: LedgerClock, *, way_s: float = 0.1, back_s: float = 0.1
) -> None:
    """Ask the ledger what time it is."""
    requested_at_s = machine.now_s
    machine.now_s += way_s
    ledger_now_s = machine.true_s
    machine.now_s += back_s
    ledger.note(ledger_now_s, requested_at_s, machine.now_s)


def test_boot_clock_never_decreases() -> None:
    before_s = SYSTEM_CLOCK.boot_s()
    assert SYSTEM_CLOCK.boot_s() >= before_s


def test_local_clock_is_used_until_the_ledgers_time_is_known() -> None:
    machine = Machine(ahead_s=3_600.0)
    ledger = LedgerClock(machine.clock)
    assert ledger.clock.wall_s() == machine.true_s + 3_600.0
    assert ledger.offset_s == 0.0


@pytest.mark.parametrize("ahead_s", [3_600.0, -3_600.0, 0.0])
def test_wrong_wall_clock_is_detected_and_does_not_change_the_time(ahead_s: float) -> None:
    machine = Machine(ahead_s)
    ledger = LedgerClock(machine.clock)
    read_ledger_clock(machine, ledger)
    assert ledger.clock.wall_s() == pytest.approx(machine.true_s, abs=0.1)
    assert ledger.offset_s == pytest.approx(ahead_s, abs=0.1)
    # It is set while the prober runs.
    machine.ahead_s += 500.0
    machine.now_s += 60.0
    assert ledger.clock.wall_s() == pytest.approx(machine.true_s, abs=0.1)
    assert ledger.offset_s == pytest.approx(ahead_s + 500.0, abs=0.1)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20))
def test_clock_error_of_a_slow_answer_is_below_its_duration(ways_s: list[tuple[float, float]]) -> None:
    machine = Machine(ahead_s=99.0)
    ledger = LedgerClock(machine.clock)
    for way_s, back_s in ways_s:
        before_s = ledger.clock.wall_s() - machine.true_s
        read_ledger_clock(machine, ledger, way_s=way_s, back_s=back_s)
        after_s = ledger.clock.wall_s() - machine.true_s
        assert -back_s - 1e-3 <= after_s <= way_s + 1e-3
        if -back_s + 1e-3 <= before_s <= way_s - 1e-3:
            assert after_s == pytest.approx(before_s, abs=1e-3)


def test_fastest_answer_sets_the_time() -> None:
    machine = Machine()
    ledger = LedgerClock(machine.clock)
    read_ledger_clock(machine, ledger, way_s=0.01, back_s=0.01)
    read_ledger_clock(machine, ledger, way_s=9.0, back_s=0.0)
    read_ledger_clock(machine, ledger, way_s=0.0, back_s=9.0)
    assert ledger.clock.wall_s() == pytest.approx(machine.true_s, abs=0.02)


def test_changed_clock_of_the_ledger_is_followed() -> None:
    machine = Machine()
    ledger = LedgerClock(machine.clock)
    read_ledger_clock(machine, ledger)
    ledger.note(machine.true_s + 7_200.0, machine.now_s - 0.2, machine.now_s)
    assert ledger.clock.wall_s() == pytest.approx(machine.true_s + 7_200.0, abs=0.3)
