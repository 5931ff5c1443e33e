"""When, at the earliest, was sent what arrives now?

A process that stood still, or was kept from its work, reads late what waited for it meanwhile, and for a
while after that nobody knows what is old and what is new. It notices by a beat of its own that comes late.
"""

import asyncio
import time
from collections import deque
from typing import Final

INTERVAL_SECONDS: Final = 0.25
MIN_PAUSE_SECONDS: Final = 0.75
"""Between two beats; less is how a busy process goes on."""
SETTLE_SECONDS: Final = 10.0
"""After a pause, in which what waited is read."""
MAX_STALLS: Final = 16
"""That are remembered: no more fit into the time in which they matter."""


class StallDetector:
    """Those of one server process; `run` it beside what it serves."""

    def __init__(self) -> None:
        self._beat_at_s: float | None = None
        """The last beat; None before the first one: nothing is known then."""
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_STALLS)
        """When each began, and until when what was sent in it may still be read."""

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.tick(time.monotonic())
            await asyncio.sleep(INTERVAL_SECONDS)

    def tick(self, now_s: float) -> None:
        """Take note that this process is at work; times are those of `time.monotonic`."""
        if self._beat_at_s is not None and now_s - self._beat_at_s > MIN_PAUSE_SECONDS:
            self._pauses.append((self._beat_at_s, now_s + SETTLE_SECONDS))
        self._beat_at_s = now_s

    def sent_after_s(self, now_s: float) -> float:
        """Return when, at the earliest, something was sent that is read now; `now_s` if it did not wait."""
        begun = [begin_s for begin_s, settled_s in self._pauses if now_s <= settled_s]
        if self._beat_at_s is not None and now_s - self._beat_at_s > MIN_PAUSE_SECONDS:
            begun.append(self._beat_at_s)
        return min(begun, default=now_s)
