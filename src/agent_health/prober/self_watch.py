"""Who looks whether this prober is well, and who is told if it is not?

Ten times a second it looks how late its event loop is, once a second it judges itself, once a minute it
asks the canaries, or at once if it has a suspicion. While it is ill, the ledger hears so again and again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from agent_health.away import Away
from agent_health.prober.clock import Clock
from agent_health.prober.ledger import Ledger, LedgerAway
from agent_health.prober.self_check import (
    LAG_EVERY_SECONDS,
    MAX_CLOCK_STEP_SECONDS,
    Doubt,
    NetworkCounts,
    SelfCheck,
)

LOOK_SECONDS: Final = 1.0
CANARY_EVERY_SECONDS: Final = 60.0
MIN_CANARY_GAP_SECONDS: Final = 10.0
"""No suspicion makes us ask them sooner after the last time."""
TELL_EVERY_SECONDS: Final = 20.0
TELL_FOR_SECONDS: Final = 60.0
"""For how long the ledger believes that we are ill, unless it hears so again."""

_log = logging.getLogger("agent_health.prober")


class SelfWatch:
    """Watches over one prober."""

    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        check: SelfCheck,
        clock: Clock,
        *,
        canaries: Sequence[str],
        reaches: Callable[[str], Awaitable[bool]] | None,
        network: Callable[[], NetworkCounts],
        turned: Callable[[Doubt | None], None],
        each_second: Callable[[], None],
        chance: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._worker = worker
        self._check = check
        self._clock = clock
        self._canaries = canaries if reaches is not None else ()
        self._reaches = reaches
        self._network = network
        self._turned = turned
        self._each_second = each_second
        self._away = Away(chance)
        self._has_turned = asyncio.Event()
        self._suspects = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._tell())
            if self._canaries:
                group.create_task(self._ask_canaries())

    async def _watch(self) -> None:
        last_s = looked_s = self._clock.monotonic_s()
        apart_s = self._clock.wall_s() - last_s
        while True:
            await asyncio.sleep(LAG_EVERY_SECONDS)
            now_s = self._clock.monotonic_s()
            self._check.note_lag(max(0.0, now_s - last_s - LAG_EVERY_SECONDS), now_s)
            last_s = now_s
            if now_s - looked_s < LOOK_SECONDS:
                continue
            looked_s = now_s
            self.look()
            self._each_second()
            was_apart_s, apart_s = apart_s, self._clock.wall_s() - now_s
            if apart_s - was_apart_s > MAX_CLOCK_STEP_SECONDS:
                # Set forward: it looks the same if the machine slept, and then nobody could answer us.
                self._check.note_lag(apart_s - was_apart_s, now_s)

    def look(self) -> None:
        """Judge now whether this prober is well."""
        now_s = self._clock.monotonic_s()
        self._check.note_counts(self._network(), now_s)
        before = self._check.doubt
        doubt = self._check.look(now_s)
        if self._check.is_suspicious:
            self._suspects.set()
        if _kind_of(before) == _kind_of(doubt):
            return
        if doubt is not None:
            _log.error("this prober is ill, what it sees is not measured: %s", doubt.why)
        else:
            _log.warning("this prober is well again")
        self._turned(doubt)
        self._has_turned.set()

    async def _tell(self) -> None:
        """Tell the ledger while we are ill, and once when we are well again."""
        has_told = False
        while True:
            wait_s, doubt = TELL_EVERY_SECONDS, self._check.doubt
            try:
                if doubt is not None:
                    await self._ledger.say_ill(self._worker, TELL_FOR_SECONDS, doubt.why)
                    has_told = True
                elif has_told:
                    await self._ledger.say_well(self._worker)
                    has_told = False
                self._away.over()
            except LedgerAway:
                # It hears so when it is back, if it still is so; the reporter says that it is away.
                wait_s = self._away.wait_s()
            except Exception:  # noqa: BLE001 - a prober that cannot tell it is still ill
                _log.exception("the ledger cannot be told how this prober is")
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_turned.wait()
            self._has_turned.clear()

    async def _ask_canaries(self) -> None:
        while True:
            reached = await asyncio.gather(*(self._reach(url) for url in self._canaries))
            lost = len(reached) - sum(reached)
            self._check.note_canaries(len(reached), lost, self._clock.monotonic_s())
            await asyncio.sleep(MIN_CANARY_GAP_SECONDS)
            self._suspects.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CANARY_EVERY_SECONDS - MIN_CANARY_GAP_SECONDS):
                    await self._suspects.wait()

    async def _reach(self, url: str) -> bool:
        if self._reaches is None:
            return True
        try:
            return await self._reaches(url)
        except Exception:  # noqa: BLE001 - a defect of ours is no reason to believe what we see
            _log.exception("the canary %s cannot be asked", url)
            return False


def _kind_of(doubt: Doubt | None) -> bool | None:
    return None if doubt is None else doubt.is_about_time
