"""What time is it, for a prober?

Two clocks: the calendar's, by which cadence is kept over restarts and machines and which may be set, and
one that never goes back, by which claims end and hosts are left alone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of one process; tests wind their own."""

    wall_s: Callable[[], float] = time.time
    """Seconds since the epoch."""
    monotonic_s: Callable[[], float] = time.monotonic
    """Seconds since any moment: of the machine's start, and the same for all processes on it."""


SYSTEM_CLOCK: Final = Clock()
