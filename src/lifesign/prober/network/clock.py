"""The clocks of a prober.

Three clocks: the calendar, which may be set; a monotonic one, for the waits for hosts; and one that also runs
during suspend, for ages and the ends of claims. The ledger's calendar determines the cadence.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lifesign.boot_clock import boot_s


@dataclass(frozen=True, slots=True)
class Clock:
    """All clocks that the prober uses, so that tests can replace them."""

    wall_s: Callable[[], float] = time.time
    """Seconds since the epoch."""
    monotonic_s: Callable[[], float] = time.monotonic
    """Seconds since any moment: of the machine's start, and the same for all processes on it."""
    boot_s: Callable[[], float] = boot_s
    """The same, and it runs while the machine is suspended (CLOCK_BOOTTIME)."""


SYSTEM_CLOCK: Final = Clock()


class LedgerClock:
    """The calendar time of the ledger (the store of targets and results), even if this machine's is wrong.

    Memory of a target travels between machines: a prober whose own calendar is an hour off, or jumps, plans
    the same ticks as any other. The machine's calendar is used until the ledger's time is known, and if the
    ledger is a database on this machine.
    """

    def __init__(self, machine: Clock) -> None:
        self.clock: Final = Clock(wall_s=self._wall_s, monotonic_s=machine.monotonic_s, boot_s=machine.boot_s)
        """Keeps the ledger's calendar."""
        self._machine = machine
        self._began_at_s: float | None = None
        """Start of the machine by the ledger's calendar; None if unknown."""

    @property
    def offset_s(self) -> float:
        """How many seconds this machine's clock is ahead of the ledger's; 0 if unknown."""
        return 0.0 if self._began_at_s is None else self._machine.wall_s() - self._wall_s()

    def note(self, ledger_now_s: float, requested_at_s: float, answered_at_s: float) -> None:
        """Set the ledger's time by an answer of the ledger.

        `requested_at_s` and `answered_at_s`, by `Clock.boot_s`, are moments before and after the answer. The
        known time is kept if it lies between the two: a slow answer moves no tick.
        """
        earliest_s, latest_s = ledger_now_s - answered_at_s, ledger_now_s - requested_at_s
        known_s = (earliest_s + latest_s) / 2 if self._began_at_s is None else self._began_at_s
        self._began_at_s = min(max(known_s, earliest_s), latest_s)

    def _wall_s(self) -> float:
        if self._began_at_s is None:
            return self._machine.wall_s()
        return self._began_at_s + self._machine.boot_s()
