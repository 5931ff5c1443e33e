"""The clock of leases: it also runs while the machine sleeps (CLOCK_BOOTTIME).

The event loop's clock is CLOCK_MONOTONIC on Linux, which stands still meanwhile. A lease ends in the registry
nevertheless, so its holder must count that time.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

CHECK_SECONDS: Final = 5.0
"""Maximum time after the machine's sleep until a timeout on this clock is noticed."""
_NOTED_SECONDS: Final = 0.01
"""Less sleep is none: two clocks are read one after the other."""


def boot_s() -> float:
    """Return seconds since the machine started, sleep included; without CLOCK_BOOTTIME the monotonic time."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def slept_s() -> float:
    """Return for how many seconds the machine has slept since it started; 0 without CLOCK_BOOTTIME."""
    return boot_s() - time.monotonic()


def now_s() -> float:
    """Return the time of the running event loop's clock plus the time of sleep: that of all lease deadlines.

    If this function is stopped between its readings, its result is still a moment within the call.
    """
    asleep_s = slept_s()
    return asyncio.get_running_loop().time() + asleep_s


class _OpenTimeouts:
    """The timeouts of one event loop, which move by the time that the machine sleeps.

    One timer checks all of them, since a process may hold thousands of leases.
    """

    def __init__(self) -> None:
        self._due_s: dict[asyncio.Timeout, float] = {}
        self._slept_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, timeout: asyncio.Timeout, due_s: float) -> None:
        if self._timer is None:
            self._slept_s = slept_s()
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)
        self._due_s[timeout] = due_s

    def remove(self, timeout: asyncio.Timeout) -> None:
        del self._due_s[timeout]
        if self._timer is not None and not self._due_s:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)
        asleep_s = slept_s()
        if abs(asleep_s - self._slept_s) < _NOTED_SECONDS:
            return
        self._slept_s = asleep_s
        for timeout, due_s in self._due_s.items():
            if not timeout.expired():
                timeout.reschedule(due_s - asleep_s)


_open_timeouts: WeakKeyDictionary[asyncio.AbstractEventLoop, _OpenTimeouts] = WeakKeyDictionary()


@asynccontextmanager
async def timeout_at(due_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block at a time of `now_s`, or up to CHECK_SECONDS after the machine woke."""
    loop = asyncio.get_running_loop()
    timeouts = _open_timeouts.get(loop)
    if timeouts is None:
        timeouts = _open_timeouts[loop] = _OpenTimeouts()
    async with asyncio.timeout_at(due_s - slept_s()) as timeout:
        timeouts.add(timeout, due_s)
        try:
            yield
        finally:
            timeouts.remove(timeout)
