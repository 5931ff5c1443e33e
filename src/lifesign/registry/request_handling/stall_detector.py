"""Detection of stalls of a server process: the earliest possible send time of an arriving request.

A process that was stopped, or got no processor time, reads requests late, and for a while afterwards it
cannot distinguish old ones from new ones. It detects this by a tick of its own that comes late.
"""

import asyncio
import time
from collections import deque
from typing import Final

INTERVAL_SECONDS: Final = 0.25
MIN_PAUSE_SECONDS: Final = 0.75
"""Minimum time between two beats that is a stall; shorter times occur in a busy process."""
SETTLE_SECONDS: Final = 10.0
"""Time after a stall in which waiting requests are read."""
MAX_STALLS: Final = 16
"""Maximum number of stalls that are kept; no more fit into the relevant time."""


class StallDetector:
    """Detects times in which the server process did not run; `run` it in parallel to the server."""

    def __init__(self) -> None:
        self._beat_at_s: float | None = None
        """The last tick; None before the first one: nothing is known then."""
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_STALLS)
        """Start of each stall, and the end of the time in which requests from it may still be read."""

    async def run(self) -> None:
        """Call `tick` regularly until cancelled."""
        while True:
            self.tick(time.monotonic())
            await asyncio.sleep(INTERVAL_SECONDS)

    def tick(self, now_s: float) -> None:
        """Record that this process is running; times are those of `time.monotonic`."""
        if self._beat_at_s is not None and now_s - self._beat_at_s > MIN_PAUSE_SECONDS:
            self._pauses.append((self._beat_at_s, now_s + SETTLE_SECONDS))
        self._beat_at_s = now_s

    def sent_after_s(self, now_s: float) -> float:
        """Return the earliest time at which a request that is read now may have been sent.

        `now_s` if it did not wait.
        """
        begun = [begin_s for begin_s, settled_s in self._pauses if now_s <= settled_s]
        if self._beat_at_s is not None and now_s - self._beat_at_s > MIN_PAUSE_SECONDS:
            begun.append(self._beat_at_s)
        return min(begun, default=now_s)
