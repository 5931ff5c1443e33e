"""The clock of leases: it also runs while the machine sleeps (CLOCK_BOOTTIME).

The event loop's clock is CLOCK_MONOTONIC on Linux, which stands still meanwhile. A lease ends in the registry
nevertheless, so its holder must count that time.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

CHECK_SECONDS: Final = 5.0
"""Maximum time after the machine's sleep until a timeout on this clock is noticed."""


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


@asynccontextmanager
async def timeout_at(due_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block at a time of `now_s`, or up to CHECK_SECONDS after the machine woke."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    async with asyncio.timeout_at(due_s - slept_s()) as timeout:

        def check() -> None:
            nonlocal timer
            if not timeout.expired():
                timeout.reschedule(due_s - slept_s())
                timer = loop.call_later(CHECK_SECONDS, check)

        timer = loop.call_later(CHECK_SECONDS, check)
        try:
            yield
        finally:
            timer.cancel()
