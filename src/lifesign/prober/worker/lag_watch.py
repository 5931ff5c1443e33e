"""The loop that measures the lag of a prober's event loop, and reports when it is slow."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from lifesign.prober.definition.lag_limits import LAG_EVERY_SECONDS, SelfCheck
from lifesign.prober.network.clock import Clock

CHECK_SECONDS: Final = 1.0

_log = logging.getLogger("lifesign.prober")


class LagWatch:
    """Measures regularly how late a prober's event loop runs, and logs when it becomes too slow."""

    def __init__(
        self,
        check: SelfCheck,
        clock: Clock,
        *,
        turned: Callable[[str | None], None],
        each_second: Callable[[], None],
    ) -> None:
        """`turned` is called with the reason when the prober becomes slow, with None when that is over."""
        self._check = check
        self._clock = clock
        self._turned = turned
        self._each_second = each_second

    async def run(self) -> None:
        """Measure until cancelled."""
        looked_s = self._clock.monotonic_s()
        slept_s = self._clock.boot_s() - looked_s
        while True:
            await asyncio.sleep(LAG_EVERY_SECONDS)
            now_s = self._clock.monotonic_s()
            was_slept_s, slept_s = slept_s, self._clock.boot_s() - now_s
            self._check.note_woken(now_s, max(0.0, slept_s - was_slept_s))
            if now_s - looked_s >= CHECK_SECONDS:
                looked_s = now_s
                self._check_lag(now_s)
                self._each_second()

    def _check_lag(self, now_s: float) -> None:
        before = self._check.slowness
        why = self._check.assess(now_s)
        if (before is None) == (why is None):
            return
        if why is not None:
            _log.error("this prober is slow, so timeouts of targets are not measured: %s", why)
        else:
            _log.warning("this prober is no longer slow")
        self._turned(why)
