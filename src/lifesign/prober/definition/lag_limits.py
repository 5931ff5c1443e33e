"""Event loop lag of a prober, and whether it makes the prober slow.

A probe that a late event loop or a stopped process delays seems to end in a timeout. Slowness makes
timeouts `not_measured`, and nothing else: witnesses decide whether anything could be reached. Times are
seconds of the monotonic clock.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

LAG_EVERY_SECONDS: Final = 0.1
"""Interval at which a prober checks whether its event loop wakes it in time."""
LAG_WINDOW_SECONDS: Final = 10.0
MIN_LAGS: Final = 20
"""Fewer lags give no percentile."""
MIN_SLOW_SECONDS: Final = 10.0
"""Time for which a prober still counts as slow after the last sign of slowness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagPolicy:
    """Lag of the event loop, in seconds, from which on a prober counts as slow."""

    max_lag_s: float = 1.0
    """The 99th percentile over 10 s. Above it, timeouts of seconds depend as much on the prober as on a
    target.
    """
    max_standstill_s: float = 2.0
    """One lag of this size is enough."""


class SelfCheck:
    """Measures how late a prober's event loop runs, and decides whether the prober is too slow to measure."""

    def __init__(self, now_s: float, policy: LagPolicy | None = None) -> None:
        self.slowness: str | None = None
        """Reason why the prober is slow, for people; None while it is not slow. Set by `assess`."""
        self._policy = policy or LagPolicy()
        self._lags: deque[tuple[float, float]] = deque()
        self._woken_at_s = now_s
        self._slow_at_s = -math.inf
        """The last sign of slowness."""
        self._why = ""

    def note_woken(self, now_s: float, suspended_s: float = 0.0) -> None:
        """Record that the event loop called us, which should be LAG_EVERY_SECONDS after the last call.

        `suspended_s`: how long the machine slept meanwhile, which the monotonic clock does not count.
        """
        lag_s = self._lag_s(now_s) + suspended_s
        self._woken_at_s = now_s
        self._lags.append((now_s, lag_s))
        while self._lags[0][0] < now_s - LAG_WINDOW_SECONDS:
            self._lags.popleft()
        if lag_s >= self._policy.max_standstill_s:
            self._note_standstill(lag_s, now_s)

    def lag_p99_s(self) -> float:
        """Return the 99th percentile of how late the event loop was, over the last 10 s."""
        if len(self._lags) < MIN_LAGS:
            return 0.0
        lags = sorted(lag_s for _, lag_s in self._lags)
        # Rounded down: a single late wake-up is none of 99 in 100, also if it left fewer than 100 of them.
        return lags[int(0.99 * len(lags)) - 1]

    def assess(self, now_s: float) -> str | None:
        """Return why the prober is too slow now, and store it in `slowness`; None if it is not."""
        if (lag_s := self.lag_p99_s()) > self._policy.max_lag_s:
            self._slow_at_s = now_s
            self._why = f"the event loop is {lag_s:.2f} s late"
        self.slowness = self._why if now_s - self._slow_at_s < MIN_SLOW_SECONDS else None
        return self.slowness

    def slowness_since(self, began_s: float, now_s: float) -> str | None:
        """Return why the prober was slow at some time since `began_s`; None if it was not.

        A standstill of the process counts at once: requests that ended with it may be handled before the lag
        is noted.
        """
        if (lag_s := self._lag_s(now_s)) >= self._policy.max_standstill_s:
            self._note_standstill(lag_s, now_s)
        return self._why if self._slow_at_s >= began_s else None

    def _lag_s(self, now_s: float) -> float:
        return max(0.0, now_s - self._woken_at_s - LAG_EVERY_SECONDS)

    def _note_standstill(self, lag_s: float, now_s: float) -> None:
        self._slow_at_s = now_s
        self._why = f"the process stood still for {lag_s:.1f} s"
