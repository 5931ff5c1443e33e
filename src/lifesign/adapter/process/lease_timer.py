"""Timers that end a run at its lease's deadline, also if the adapter or its watchers are stopped.

These are kernel timers, one for each watcher and its keeper, which wait for them. The adapter sets them; any
of the three processes kills the run at the deadline of its lease. The timers include the time that a machine
sleeps.
"""

import os
import time
from typing import Final

from lifesign.adapter.process import process_watcher

_NANOSECONDS: Final = 1_000_000_000


class LeaseTimer:
    """Deadline of all processes of one run, and the timers that were created for it.

    Each timer belongs to its watchers: access to that of a tool server gives no control over the agent's.
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
        """Set the deadline again, for all timers."""
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
