"""Feed of targets: new ones, removed ones, and rechecks.

One request to the ledger every two seconds returns the changes of all shards of the worker, so that a recheck
waits no longer than that.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lifesign.domain.common.backoff import Backoff
from lifesign.domain.common.clock_skew import is_in_future
from lifesign.domain.probing.cadence import believed
from lifesign.prober.registry_exchange.ledger import (
    Ledger,
    LedgerUnreachable,
    TargetEntry,
    TargetPage,
    outage_text,
)
from lifesign.prober.worker.shards import ApplyResult, OwnedShards, Shard

POLL_SECONDS: Final = 2.0
READ_AT_ONCE: Final = 16
"""Number of shards that are read concurrently."""

FREEZE_EVERY: Final = 50_000
"""Number of added targets after which the garbage collector ignores existing objects. It would scan
all of them again and again, and stop the process for most of a second with a million.
"""

_log = logging.getLogger("lifesign.prober")


class TargetFeed:
    """Reads changes of the targets in one worker's shards from the ledger, until it is cancelled."""

    def __init__(
        self,
        ledger: Ledger,
        holdings: OwnedShards,
        *,
        applied: Callable[[Shard, ApplyResult], None],
        note_workers: Callable[[frozenset[str] | None], None] = lambda _: None,
        chance: Callable[[], float],
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.has_polled = False
        """Whether the targets of any shard were read to the end."""
        self._ledger = ledger
        self._owned_shards = holdings
        self._applied = applied
        self._note_workers = note_workers
        self._away = Backoff(chance)
        self._wall_s = wall_s
        self._hurry = asyncio.Event()
        self._frozen = 0
        """Number of targets when the garbage collector was last frozen."""

    def hurry(self) -> None:
        """Read at once, because new shards were claimed."""
        self._hurry.set()

    async def run(self) -> None:
        """Read changes regularly until cancelled."""
        while True:
            wait_s = POLL_SECONDS
            try:
                await self.poll()
                self._away.over()
            except LedgerUnreachable as error:
                if not self._away.tries:
                    _log.warning("%s: this worker cannot read its targets (%s)", outage_text(error), error)
                wait_s = self._away.wait_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()
            except TimeoutError:
                continue
            self._hurry.clear()

    async def poll(self) -> None:
        """Read the changes since the last call, once. Raises LedgerUnreachable."""
        known = self._owned_shards.known()
        if not known.shards:
            return
        changed = set(await self._ledger.changed(known.versions))
        self._note_workers(self._ledger.living_workers)
        for shard in known.unread:
            if shard.number not in changed:
                # The shard is empty, so there is nothing to read.
                self._apply(shard, shard.token, TargetPage(entries=()))
        to_read = [known.shards[number] for number in sorted(changed & known.shards.keys())]
        for first in range(0, len(to_read), READ_AT_ONCE):
            some = to_read[first : first + READ_AT_ONCE]
            await asyncio.gather(*(self._read(shard, known.versions[shard.number]) for shard in some))
            if self._owned_shards.targets >= self._frozen + FREEZE_EVERY:
                self._frozen = self._owned_shards.targets
                gc.freeze()
        self.has_polled = True

    async def _read(self, shard: Shard, version: int) -> None:
        token = shard.token
        page = await self._ledger.targets(shard.number, version or None)
        # A shard that has become stale meanwhile is read as a whole by the next poll; this page has changes.
        if not version or shard.is_current:
            self._apply(shard, token, page)

    def _apply(self, shard: Shard, token: int | None, page: TargetPage) -> None:
        # If the shard was lost meanwhile, or lost and won again, the page is outdated.
        if token is not None and shard.token == token:
            wall_s = self._wall_s()
            entries = [_believed(entry, wall_s) for entry in page.entries]
            self._applied(shard, self._owned_shards.apply(shard, replace(page, entries=entries)))


def _believed(entry: TargetEntry, wall_s: float) -> TargetEntry:
    """Return an entry without times that were written before a clock was set back."""
    memory, recheck_at_s = believed(entry.memory, wall_s), entry.recheck_at_s
    if recheck_at_s is not None and is_in_future(recheck_at_s, wall_s):
        recheck_at_s = wall_s
    if memory is entry.memory and recheck_at_s is entry.recheck_at_s:
        return entry
    return replace(entry, memory=memory, recheck_at_s=recheck_at_s)
