"""How do results reach the ledger: whole, once, and not too late?

One call after the other, so that results of one target keep their order. What a call may have left behind
is handed over again as it was. A batch that the ledger cannot digest is given up, and holds up no other.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from math import inf
from typing import Final

from agent_health.away import Away
from agent_health.prober.clock import Clock
from agent_health.prober.ledger import Ledger, LedgerAway, Outage, ShardBatch
from agent_health.prober.outbox import Outbox, Result
from agent_health.prober.shards import Shard

MAX_BATCH: Final = 500
"""Results in one call, of any shards."""
MAX_BAD: Final = 10
"""Results of one call that are sought out as those that cannot be taken; then it is not they."""
FLUSH_SECONDS: Final = 5.0
"""No result waits longer for others."""
SETTLE_SECONDS: Final = 2.0
"""Each waits so long: if this prober turns out to be ill in this moment, it can still be taken back."""

_log = logging.getLogger("agent_health.prober")


class Reporter:
    """Hands results over, for ever."""

    def __init__(
        self,
        ledger: Ledger,
        outbox: Outbox,
        clock: Clock,
        *,
        lose: Callable[[Collection[int]], None],
        chance: Callable[[], float],
    ) -> None:
        self.reported = 0
        """How many results were taken by the ledger."""
        self.in_hand = 0
        """How many are being handed over: they wait no more, and are not taken yet."""
        self.outage: Outage | None = None
        """That the ledger did not take what was handed over last."""
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock
        self._lose = lose
        self._away = Away(chance)
        self._wake = asyncio.Event()
        self._urgent_at_s = inf
        """When the first result was made that somebody waits for."""
        self._settle_s = SETTLE_SECONDS

    def add(self, result: Result, *, is_urgent: bool = False) -> None:
        """Let a result wait for others, or go as soon as it has settled if somebody waits for it."""
        self._outbox.add(result)
        if is_urgent and self._urgent_at_s == inf:
            self._urgent_at_s = result.ended_at_s
            self._wake.set()
        elif self._outbox.ready == MAX_BATCH:
            self._wake.set()

    def hurry(self) -> None:
        """Hand over at once all that there is: nothing will be taken back any more."""
        self._settle_s = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Hand over what there is, in time, until cancelled."""
        while True:
            await self._until_due()
            try:
                await self.flush()
            except LedgerAway as error:
                if self.outage is None:
                    self.outage = Outage(asyncio.get_running_loop().time(), str(error))
                    _log.warning("the ledger is away: %d results are held (%s)", len(self._outbox), error)
                await asyncio.sleep(self._away.wait_s())

    async def flush(self) -> None:
        """Hand over all that has settled and may be handed over now. LedgerAway."""
        until_s = self._clock.monotonic_s() - self._settle_s
        if until_s >= self._urgent_at_s:
            self._urgent_at_s = inf
        try:
            while results := self._outbox.take(MAX_BATCH, self._may_go, until_s):
                self.in_hand = len(results)
                await self._hand_over(results)
        finally:
            self.in_hand = 0
            if given_up := self._outbox.give_up(self._clock.monotonic_s()):
                _log.warning("%d results are given up: the ledger is away for too long", given_up)

    def _may_go(self, shard: Shard) -> bool:
        return shard.is_ours(self._clock.monotonic_s())

    async def _until_due(self) -> None:
        """Wait until a whole batch has settled, or a result has waited long enough for others."""
        while True:
            now_s = self._clock.monotonic_s()
            wait_s = self._due_at_s(now_s) - now_s
            if wait_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()

    def _due_at_s(self, now_s: float) -> float:
        oldest_at_s = self._outbox.made_at_s(0)
        if oldest_at_s is None:
            self._settle_s = SETTLE_SECONDS
            return now_s + FLUSH_SECONDS
        if not self._settle_s:
            return now_s
        last_at_s = self._outbox.made_at_s(MAX_BATCH - 1)
        full_at_s = inf if last_at_s is None else last_at_s
        return min(oldest_at_s + FLUSH_SECONDS, min(full_at_s, self._urgent_at_s) + SETTLE_SECONDS)

    async def _hand_over(self, results: Sequence[Result]) -> None:
        groups, bad = [results], 0
        while groups:
            group = groups[0]
            try:
                await self._report(group)
                del groups[0]
            except (LedgerAway, asyncio.CancelledError):
                self._outbox.put_back(result for group in groups for result in group)
                raise
            except Exception as error:  # noqa: BLE001 - one bad result must not hold up all others
                if len(group) == len(results):
                    _log.exception("the ledger cannot take a batch: it is handed over in parts")
                if len(group) > 1 and bad < MAX_BAD:
                    middle = len(group) // 2
                    groups[:1] = [group[:middle], group[middle:]]
                    continue
                bad += 1
                del groups[0]
                for result in group:
                    result.give_up()
                    _log.error("the result of %s is given up: %s", result.slot.subject_id, error)

    async def _report(self, results: Sequence[Result]) -> None:
        by_shard: dict[int, list[Result]] = {}
        for result in results:
            by_shard.setdefault(result.slot.shard.number, []).append(result)
        batches = [
            ShardBatch(claim=shard_claim, reports=[result.report for result in of_shard])
            for of_shard in by_shard.values()
            if (shard_claim := of_shard[0].slot.shard.claim) is not None
        ]
        lost = set(await self._ledger.report(batches))
        if self.outage is not None:
            _log.warning("the ledger takes results again")
        self.outage = None
        self._away.over()
        self._outbox.note_return()
        self.reported += sum(len(batch.reports) for batch in batches if batch.claim.shard not in lost)
        if lost:
            self._lose(lost)
