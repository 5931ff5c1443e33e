"""Continuous check of the hash chain of the event log.

The whole chain is read again in each round, slowly and page by page: a manipulation is found within a round,
without a call of `lifesign events verify`. One process of a server does this for all. Only that command
checks whether stored states follow from the log.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from lifesign.domain.errors import BrokenChain
from lifesign.domain.events.chain import Checkpoint, link_stored
from lifesign.registry.request_handling.work_counts import LogState, WorkCounts
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log

ROUND_SECONDS = 3_600.0
"""Between two rounds."""
RETRY_SECONDS = 60.0
"""Wait until the next round if the database is unreachable, or another process of this server runs one."""
PAUSE_RATIO = 20.0
"""Pause after a page as a multiple of its duration: a check takes a twentieth of a core."""
MIN_PAUSE_SECONDS = 0.01

_log = logging.getLogger("lifesign.registry")


class LogWatch:
    """Checks the event log's hash chain; the server's counters contain the result of the last check."""

    def __init__(self, database: Database, counts: WorkCounts) -> None:
        self._database = database
        self._counts = counts

    async def run(self) -> None:
        """Check the log regularly until cancelled."""
        while True:
            wait_s = RETRY_SECONDS
            try:
                if self._counts.is_first:
                    await self.check_once()
                    wait_s = ROUND_SECONDS
            except StoreUnavailable as error:
                _log.warning("the event log is not checked: %s", error)
            except Exception:  # noqa: BLE001 - whatever fails, the next round comes
                _log.exception("the event log could not be checked")
            await asyncio.sleep(wait_s)

    async def check_once(self) -> LogState:
        """Check the whole log once, and record the result. Raises StoreUnavailable."""
        checkpoint: Checkpoint | None = None
        is_sound, is_over = True, False
        while not is_over:
            began_s = time.monotonic()
            try:
                checkpoint, is_over = await self._database.read(_page(checkpoint))
            except BrokenChain as fault:
                _log.error("the event log was changed: %s", fault)
                is_sound, is_over = False, True
            else:
                await asyncio.sleep(max(MIN_PAUSE_SECONDS, PAUSE_RATIO * (time.monotonic() - began_s)))
        state = LogState(
            checked_at_s=time.time(),
            is_sound=is_sound,
            sequence=0 if checkpoint is None else checkpoint.sequence,
        )
        self._counts.note_log(state)
        return state


def _page(after: Checkpoint | None) -> Callable[[Transaction], tuple[Checkpoint, bool]]:
    """Return the function that checks the next page; the first one begins where the database's events do."""

    def check(transaction: Transaction) -> tuple[Checkpoint, bool]:
        checkpoint = after
        if checkpoint is None or checkpoint.sequence < event_log.archived_sequence(transaction):
            # Or the next events were archived meanwhile, which checks them too.
            checkpoint = event_log.head(transaction).archived
        page = event_log.with_agents(transaction, checkpoint.sequence, limit=event_log.PAGE)
        for event, agent_id in page:
            checkpoint = link_stored(checkpoint, event, agent_id)
        is_over = len(page) < event_log.PAGE
        if is_over and checkpoint != event_log.head(transaction).last:
            raise BrokenChain(checkpoint.sequence + 1, "the log ends before the end that its head records")
        return checkpoint, is_over

    return check
