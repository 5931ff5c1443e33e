"""Reporter of a worker: delivers results to the ledger completely, once, and in time.

Calls run one after the other, so that results of one target keep their order. Results of a call whose outcome
is unknown are sent again, fewer at once. A batch that the ledger cannot process is dropped and delays no
other.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from lifesign.domain.common.backoff import Backoff
from lifesign.domain.common.batch_size import BatchSize
from lifesign.prober.definition.models import FLUSH_SECONDS
from lifesign.prober.network.clock import Clock
from lifesign.prober.registry_exchange.ledger import (
    Ledger,
    LedgerUnreachable,
    Outage,
    ShardBatch,
    WitnessNews,
    outage_text,
)
from lifesign.prober.worker.outbox import Outbox, Result
from lifesign.prober.worker.pending_interfaces import PendingInterfaces
from lifesign.prober.worker.shards import Shard

MAX_BATCH: Final = 500
"""Maximum number of results in one call, of any shards."""
MAX_BAD: Final = 10
"""Maximum number of results of one call that are tested one by one; if there are more, the results are not
the cause.
"""

_log = logging.getLogger("lifesign.prober")


class Reporter:
    """Sends results to the ledger, in batches, until it is cancelled."""

    def __init__(
        self,
        ledger: Ledger,
        outbox: Outbox,
        clock: Clock,
        *,
        lose: Callable[[Collection[int]], None],
        news: Callable[[WitnessNews], None],
        interval_s: float,
        chance: Callable[[], float],
        flush_s: float = FLUSH_SECONDS,
    ) -> None:
        """`news` receives the ledger's facts about witnesses; `interval_s` is that of the crawl."""
        self.reported = 0
        """Number of results that the ledger accepted."""
        self.in_hand = 0
        """Number of results in the current call."""
        self.outage: Outage | None = None
        """Present if the ledger did not accept the last call."""
        self.interfaces = PendingInterfaces()
        """Interfaces that are delivered with the next result of their targets."""
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock
        self._lose = lose
        self._news = news
        self._interval_s = interval_s
        self._flush_s = flush_s
        self._away = Backoff(chance)
        self._size = BatchSize(MAX_BATCH)
        self._wake = asyncio.Event()
        self._is_hurrying = False
        """Whether the waiting results are to be sent at once."""

    def add(self, result: Result, *, is_urgent: bool = False) -> None:
        """Add a result to the next batch. An urgent one is sent at once."""
        self._outbox.add(result)
        if is_urgent:
            self.hurry()
        elif self._outbox.ready == MAX_BATCH:
            self._wake.set()

    def hurry(self) -> None:
        """Send all waiting results at once."""
        self._is_hurrying = True
        self._wake.set()

    async def run(self) -> None:
        """Send results regularly until cancelled."""
        while True:
            await self._until_due()
            try:
                await self.flush()
            except LedgerUnreachable as error:
                if self.outage is None:
                    self.outage = Outage(asyncio.get_running_loop().time(), str(error))
                    _log.warning(
                        "%s: %d results wait to be reported (%s)",
                        outage_text(error),
                        len(self._outbox),
                        error,
                    )
                await asyncio.sleep(self._away.wait_s())

    async def flush(self) -> None:
        """Send all results that may be sent now. Raises LedgerUnreachable."""
        self._is_hurrying = False
        try:
            while results := self._outbox.take(self._size.most, self._may_be_removed):
                self.in_hand = len(results)
                began_s = asyncio.get_running_loop().time()
                await self._hand_over(results)
                self._size.succeeded(len(results), asyncio.get_running_loop().time() - began_s)
                self._drop_old()
        except LedgerUnreachable:
            self._size.failed(self.in_hand)
            raise
        finally:
            self.in_hand = 0
            self._drop_old()

    def _drop_old(self) -> None:
        if given_up := self._outbox.give_up(self._clock.boot_s()):
            _log.warning(
                "%d results are dropped, as too many or too old: "
                "the registry or database is unreachable or slow",
                given_up,
            )

    def _may_be_removed(self, shard: Shard) -> bool:
        return shard.is_owned(self._clock.boot_s())

    async def _until_due(self) -> None:
        """Wait until there is a whole batch, or a result has waited long enough for others."""
        while (wait_s := self._due_in_s()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()

    def _due_in_s(self) -> float:
        oldest_at_s = self._outbox.oldest_at_s
        if oldest_at_s is None:
            self._is_hurrying = False
            return self._flush_s
        if self._is_hurrying or self._outbox.ready >= MAX_BATCH:
            return 0.0
        return oldest_at_s + self._flush_s - self._clock.boot_s()

    async def _hand_over(self, results: Sequence[Result]) -> None:
        groups, bad = [results], 0
        while groups:
            group = groups[0]
            try:
                await self._report(group)
                del groups[0]
            except (LedgerUnreachable, asyncio.CancelledError):
                self._outbox.put_back(result for group in groups for result in group)
                raise
            except Exception as error:  # noqa: BLE001 - one bad result must not hold up all others
                if len(group) == len(results):
                    _log.exception("a batch of results was refused, and is sent in parts")
                if len(group) > 1 and bad < MAX_BAD:
                    middle = len(group) // 2
                    groups[:1] = [group[:middle], group[middle:]]
                    continue
                bad += 1
                del groups[0]
                for result in group:
                    result.give_up()
                    _log.error(
                        "the result of %s was refused, and is dropped: %s", result.slot.subject_id, error
                    )

    async def _report(self, results: Sequence[Result]) -> None:
        by_shard: dict[int, list[Result]] = {}
        for result in results:
            by_shard.setdefault(result.slot.shard.number, []).append(result)
        interfaces = {id(result): found for result in results if (found := self.interfaces.of(result.slot))}
        batches = [
            ShardBatch(
                claim=shard_claim,
                reports=[result.report for result in of_shard],
                numbers=[result.number for result in of_shard],
                made_at_s=[result.made_at_s for result in of_shard],
                interfaces=[interfaces.get(id(result)) for result in of_shard] if interfaces else (),
            )
            for of_shard in by_shard.values()
            if (shard_claim := of_shard[0].slot.shard.claim) is not None
        ]
        taken = await self._ledger.report(batches, self._interval_s)
        lost = set(taken.lost)
        for result in results if interfaces else ():
            if (interface := interfaces.get(id(result))) is not None and result.slot.shard.number not in lost:
                self.interfaces.delivered(result.slot, interface)
        if self.outage is not None:
            _log.warning("the registry or database accepts results again")
        self.outage = None
        self._away.over()
        self._outbox.note_return()
        self.reported += sum(len(batch.reports) for batch in batches if batch.claim.shard not in lost)
        self._news(taken.news)
        if lost:
            self._lose(lost)
