"""Progress of an agent's process, as far as its adapter sees it: output, and calls at the tool proxy.

A process that hangs shows neither. A model that thinks for a long time shows neither as well, so only the
operator knows after which time a process counts as hung.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LATE_SECONDS: Final = 1.0
"""If the adapter wakes so much later than planned, it stood still itself and missed what happened."""


class ProgressWatch:
    """Records when an agent last made progress, to detect that it hangs. Any thread may report progress."""

    def __init__(self) -> None:
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._lock = threading.Lock()
        self._last_s = self._clock()
        self._under_way = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count the time within the block as progress, for example while a tool call runs."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last_s = self._clock()

    async def wait_stalled(self, timeout_s: float) -> None:
        """Wait until the agent has made no progress for `timeout_s`."""
        while (left_s := self._left_s(timeout_s)) > 0:
            due_s = self._clock() + left_s
            await asyncio.sleep(left_s)
            if self._clock() - due_s > LATE_SECONDS:
                with self._lock:
                    self._last_s = self._clock()

    def _left_s(self, timeout_s: float) -> float:
        with self._lock:
            now_s = self._clock()
            return timeout_s if self._under_way else self._last_s + timeout_s - now_s
