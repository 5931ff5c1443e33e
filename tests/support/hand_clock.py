"""Clocks of a recorder that a test sets."""

from lifesign.middleware.window_storage import RecorderClock

START_NS = 1_000_000_000_000
"""The monotonic clock at the beginning: a machine that has been up for a while."""
START_WALL_NS = 1_763_640_000_000_000_000
"""2025-11-20T12:00:00Z."""


class HandClock:
    """Two clocks that stand still until the test moves them; `clock` is the function for a recorder."""

    def __init__(self) -> None:
        self._monotonic_ns = START_NS
        self._wall_ns = START_WALL_NS
        self.clock = RecorderClock(monotonic_ns=self.monotonic_ns, wall_ns=self.wall_ns)

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._monotonic_ns += round(seconds * 1e9)
        self._wall_ns += round(seconds * 1e9)

    def step_wall(self, seconds: float) -> None:
        """Set the calendar clock, as NTP or an operator does; no time passes."""
        self._wall_ns += round(seconds * 1e9)
