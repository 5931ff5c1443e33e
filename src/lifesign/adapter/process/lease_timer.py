"""When must nothing of a run be left, whoever still lives to see to that?

Timers of the kernel, one for each warden and its keeper, which wait for it. The adapter sets them; whichever
of the three goes on at the lease's deadline kills the processes. They count the time that a machine sleeps.
"""

import os
import time
from typing import Final

from lifesign.adapter.process import process_watcher

_NANOSECONDS: Final = 1_000_000_000


class LeaseTimer:
    """The deadline of all that works at one run, and the timers that were made for it.

    Each is its watchers' own: who has taken the one of a server's can do nothing to the agent's.
    """

    def __init__(self, left_s: float) -> None:
        """Set it to so many seconds from now."""
        self._due_ns = _due_ns(left_s)
        self._timers: set[int] = set()

    @property
    def due_ns(self) -> int:
        """When it is due, by CLOCK_BOOTTIME."""
        return self._due_ns

    @property
    def is_due(self) -> bool:
        """Whether it is time, though the loop may not have seen to it."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= self._due_ns

    def set(self, left_s: float) -> None:
        """Set it anew, for all who wait for it."""
        self._due_ns = _due_ns(left_s)
        for fd in self._timers:
            process_watcher.set_timer(fd, self._due_ns)

    def take(self, fd: int) -> None:
        """Set one more from now on, and close it with the others; OSError if it is none."""
        try:
            process_watcher.set_timer(fd, self._due_ns)
        except BaseException:
            os.close(fd)
            raise
        self._timers.add(fd)

    def drop(self, fd: int) -> None:
        """Let go of one, whose watchers are gone or keep it."""
        if fd in self._timers:
            self._timers.remove(fd)
            os.close(fd)

    def close(self) -> None:
        """Let go of all."""
        for fd in tuple(self._timers):
            self.drop(fd)


def _due_ns(left_s: float) -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + round(left_s * _NANOSECONDS)
