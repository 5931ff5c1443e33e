"""Deadline of a run. Its watchers know it and kill the processes then, even if the adapter is stopped."""

from collections.abc import Callable
from typing import Final

from lifesign.boot_clock import boot_s

_NANOSECONDS: Final = 1_000_000_000


class RunDeadline:
    """Deadline of all processes of one run.

    Its clock also counts the time while the machine sleeps (CLOCK_BOOTTIME). Tool servers add their watchers
    from another thread.
    """

    def __init__(self, left_s: float) -> None:
        """Set it to so many seconds from now."""
        self._due_ns = _due_ns(left_s)
        self._watchers = set[Callable[[int], None]]()

    @property
    def due_ns(self) -> int:
        """Time of the deadline, in nanoseconds of CLOCK_BOOTTIME."""
        return self._due_ns

    @property
    def is_due(self) -> bool:
        """Whether the deadline has passed."""
        return round(boot_s() * _NANOSECONDS) >= self._due_ns

    def set(self, left_s: float) -> None:
        """Move the deadline to `left_s` seconds from now, and call all watchers."""
        self._due_ns = _due_ns(left_s)
        for tell in tuple(self._watchers):
            tell(self._due_ns)

    def add(self, watcher: Callable[[int], None]) -> None:
        """Call `watcher` with the new time, in any thread, whenever the deadline is set again."""
        self._watchers.add(watcher)

    def remove(self, watcher: Callable[[int], None]) -> None:
        """Call `watcher` no more when the deadline is set again."""
        self._watchers.discard(watcher)


def _due_ns(left_s: float) -> int:
    return round((boot_s() + left_s) * _NANOSECONDS)
