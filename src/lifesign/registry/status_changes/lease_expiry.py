"""Expiry of leases.

Leases end at their time, their tasks continue, and draining holders are assessed. The reaper runs beside the
sweep, which does the same: it depends neither on the sweep, nor on its claim of the registry's row, nor on
claims of tasks. Any number of server processes may reap: each lease is ended by one of them. Queued tasks
have no lease.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from math import inf

from lifesign.domain.tasks.lease import EndReason, ended
from lifesign.registry.status_changes import lease_events
from lifesign.registry.status_changes.agent_status import MONITOR
from lifesign.registry.status_changes.sweep_gap import Reference, gap_jump_s
from lifesign.registry.status_changes.task_status import lose_tasks
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Clock, Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log
from lifesign.storage.tasks import leases

CHUNK = 2_000
"""Number of leases that one transaction ends: about 0.1 s of work."""
MAX_CHUNKS = 1_000
"""Maximum number of chunks per run; the next run continues."""
MEND_SECONDS = 10.0
"""Time that a sweep has to correct leases after the clock was set; also after a start."""
MEND_SWEEPS = 2
"""The same in sweep periods: if sweeps are rare, the longer of both times counts."""

_log = logging.getLogger("lifesign.registry")


class Reaper:
    """Ends expired leases regularly; one per server process."""

    def __init__(self, database: Database, period_s: float, monotonic_s: Clock) -> None:
        self._database = database
        self._period_s = period_s
        self._mend_s = max(MEND_SECONDS, MEND_SWEEPS * period_s)
        self._monotonic_s = monotonic_s
        self._reference: Reference | None = None
        self._wait_until_s = inf
        """Time on this process's clock."""

    async def run(self) -> None:
        """Call `reap_once` regularly until cancelled, also after a failure."""
        is_unreachable = False
        while True:
            try:
                await self.reap_once()
                is_unreachable = False
            except StoreUnavailable as error:
                if not is_unreachable:
                    _log.warning("expired leases cannot be ended for now: %s", error)
                is_unreachable = True
            except Exception:  # noqa: BLE001 - whatever fails, leases are looked at again
                _log.exception("ending expired leases failed; it is tried again")
            await asyncio.sleep(self._period_s)

    async def reap_once(self) -> None:
        """End expired leases, unless the clock may have been set: a sweep must first extend them."""
        wall_s = await self._database.read(lambda transaction: transaction.now_s)
        before, now = self._reference, Reference(wall_s, self._monotonic_s())
        self._reference = now
        if before is None or gap_jump_s(wall_s - before.wall_s, before, now):
            self._wait_until_s = now.monotonic_s + self._mend_s
        if now.monotonic_s >= self._wait_until_s:
            await reap(self._database, wall_s)


async def reap(database: Database, until_s: float = inf) -> None:
    """End all leases that had expired by `until_s`, and still are expired. Raises StoreUnavailable.

    `until_s` is a time of the database's clock that the caller has compared with its own clock. If the
    database's clock has jumped ahead since then, leases get that time back.
    """
    if not await database.read(partial(_is_any_over, until_s=until_s)):
        return
    for _ in range(MAX_CHUNKS):
        how_many, holders = await database.write(partial(_end_expired, until_s=until_s))
        if holders:
            await database.write(partial(_make_verdicts_due, agent_ids=holders))
        if how_many < CHUNK:
            return


def _is_any_over(transaction: Transaction, until_s: float) -> bool:
    """Return whether there is a lease to end; the query blocks no writer."""
    return leases.is_any_expired(transaction, min(until_s, transaction.now_s))


def _end_expired(transaction: Transaction, until_s: float) -> tuple[int, list[str]]:
    """End some expired leases; return how many, and their holders."""
    now_s = transaction.now_s
    expired = leases.expired(transaction, min(until_s, now_s), CHUNK)
    over = [ended(claim, EndReason.EXPIRED, now_s) for claim in expired]
    leases.store(transaction, over)
    moved = lose_tasks(transaction, over, MONITOR)
    drafts = [*lease_events.leases_ended(over, MONITOR)]
    drafts += [draft for several in moved.values() for draft in several]
    event_log.append(transaction, drafts)
    return len(over), sorted({claim.holder for claim in over if claim.holder is not None})


def _make_verdicts_due(transaction: Transaction, agent_ids: Sequence[str]) -> None:
    agent_rows.make_verdicts_due(transaction, agent_ids, transaction.now_s)
