"""Background work on old data: unfinished imports, delayed events and expired history.

An import whose client was killed is continued, as is one that an operator confirmed. Events of changed
interfaces that had to wait for a day are made. Old probe sums, changes, interfaces, finished imports, retired
targets, histories of former agents and finished tasks are deleted. All of it runs in transactions of bounded
size, in any number of server processes.

A clock that is ahead would delete data that has not expired. So nothing is pruned until the clock has run for
an hour without a jump: at the start of a machine it is often wrong for some minutes.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from math import inf

from lifesign.boot_clock import boot_s
from lifesign.domain.lifecycle.agent_history import DAYS_KEPT
from lifesign.domain.lifecycle.heartbeat_timeout import clock_jump_s
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.directories import ImportState
from lifesign.domain.published_interface.version_history import KEEP_VERSIONS_DAYS
from lifesign.domain.targets.opt_out_proof import TOKEN_TTL_SECONDS
from lifesign.domain.tasks.task_states import FINISHED
from lifesign.registry.status_changes.sweep_gap import Reference
from lifesign.registry.targets.interface_changes import make_due_events
from lifesign.registry.targets.replace_listing import finish_one
from lifesign.storage.agents import histories
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Clock, Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.probing import interface_versions, result_history
from lifesign.storage.targets import directories, opt_outs, target_rows
from lifesign.storage.tasks import finished_tasks

ROUND_SECONDS = 30.0
"""Between two rounds."""
IDLE_SECONDS = 30.0
"""An import without progress for so long is continued here."""
PRUNE_SECONDS = 3_600.0
STEADY_SECONDS = 3_600.0
"""Time without a jump of the clock after which it is trusted."""
DAY_SECONDS = 86_400.0
KEEP_SUMS_DAYS = 90
KEEP_CHANGES_DAYS = 400
KEEP_CHANGES = 100
"""Number of the latest changes that are kept per target."""
KEEP_LEFT_DAYS = 90
"""Retention of targets that no directory lists any more; their agent records stay."""
KEEP_NUMBERS_DAYS = DAYS_KEPT + 1
"""Retention of the history of deregistered agents: by then all of it has expired."""
KEEP_TASKS_DAYS = 90
"""Retention of finished tasks; a setting of the server may change it."""
KEEP_IMPORTS_DAYS = 30
"""Retention of finished imports."""
UPLOAD_DAYS = 1
"""Days after which an upload without a further page is dropped."""

CHUNK = 2_000
"""Number of rows that one transaction deletes."""
HOURS_AT_ONCE = 24
"""Number of hours of sums that one transaction deletes."""
TASKS_AT_ONCE = 200
"""Tasks per transaction, each with up to 1,000 reports and 10,000 writes."""
TARGETS_AT_ONCE = 10_000
"""Number of targets whose changes one transaction prunes."""
MAX_STEPS = 10_000
"""Maximum number of steps per run; the next run continues."""

_log = logging.getLogger("lifesign.registry")


class HistoryPruner:
    """Deletes expired data and continues stalled imports; one per server process or local crawl."""

    def __init__(
        self, database: Database, keep_tasks_days: float = KEEP_TASKS_DAYS, *, boot_clock: Clock = boot_s
    ) -> None:
        self._database = database
        self._keep_tasks_days = keep_tasks_days
        self._boot_clock = boot_clock
        self._seen: Reference | None = None
        self._steady_since_s = inf
        self._pruned_at_s = -inf

    async def run(self) -> None:
        """Call `tidy_up` regularly until cancelled, also after a failure."""
        while True:
            try:
                await self.tidy_up()
            except StoreUnavailable as error:
                _log.warning("nothing is pruned: %s", error)
            except Exception:  # noqa: BLE001 - whatever fails, the next round comes
                _log.exception("old data could not be deleted; it is tried again later")
            await asyncio.sleep(ROUND_SECONDS)

    async def tidy_up(self) -> None:
        """Continue stalled imports, create delayed events, and prune if due. Raises StoreUnavailable."""
        await finish_imports(self._database)
        await make_due_events(self._database)
        await self.prune_if_due()

    async def trust_clock(self, max_pause_s: float) -> None:
        """Trust the clock from now on if there was no sweep, or the last one at most `max_pause_s` ago."""
        now_s, swept_at_s = await self._database.read(_last_sweep)
        self._note(now_s)
        if swept_at_s is None or 0 <= now_s - swept_at_s <= max_pause_s:
            self._steady_since_s = -inf

    async def prune_if_due(self) -> None:
        """Prune if the clock is trusted, at most once an hour. Raises StoreUnavailable."""
        now = self._note(await self._database.read(lambda transaction: transaction.now_s))
        is_trusted = now.monotonic_s - self._steady_since_s >= STEADY_SECONDS
        if is_trusted and now.monotonic_s - self._pruned_at_s >= PRUNE_SECONDS:
            await prune_history(self._database, self._keep_tasks_days)
            self._pruned_at_s = now.monotonic_s

    def _note(self, wall_s: float) -> Reference:
        now, before = Reference(wall_s, self._boot_clock()), self._seen
        if before is None or clock_jump_s(now.wall_s - before.wall_s, now.monotonic_s - before.monotonic_s):
            self._steady_since_s = now.monotonic_s
        self._seen = now
        return now


def _last_sweep(transaction: Transaction) -> tuple[float, float | None]:
    row = registry_row.find(transaction)
    return transaction.now_s, None if row is None else row.swept_at_s


async def finish_imports(database: Database) -> None:
    """Continue imports that made no progress for a while. Raises StoreUnavailable."""
    states = (ImportState.ADDING, ImportState.REMOVING)
    idle = await database.read(
        lambda transaction: directories.unfinished(transaction, states, transaction.now_s - IDLE_SECONDS)
    )
    for name, import_id in idle:
        await _repeated(database, partial(finish_one, name=name, import_id=import_id))


async def prune_history(database: Database, keep_tasks_days: float = KEEP_TASKS_DAYS) -> None:
    """Delete expired data. Raises StoreUnavailable."""
    await _repeated(database, partial(_forget_tasks, keep_days=keep_tasks_days))
    await _repeated(database, _forget_sums)
    await _repeated(database, _forget_changes)
    await _repeated(database, _forget_interfaces)
    await _repeated(database, _delete_delisted)
    await _repeated(database, _forget_numbers)
    await database.write(_forget_unfinished)
    after: int | None = 0
    while after is not None:
        trim = partial(result_history.trim_changes, after=after, span=TARGETS_AT_ONCE, most=KEEP_CHANGES)
        after = await database.write(trim)


async def _repeated(database: Database, function: Callable[[Transaction], bool]) -> None:
    """Do something as long as there is more to do."""
    for _ in range(MAX_STEPS):
        if not await database.write(function):
            return


def _forget_tasks(transaction: Transaction, *, keep_days: float) -> bool:
    before_s = transaction.now_s - keep_days * DAY_SECONDS
    return finished_tasks.forget(transaction, FINISHED, before_s, TASKS_AT_ONCE)


def _forget_sums(transaction: Transaction) -> bool:
    before_hour = result_history.hour_of(transaction.now_s - KEEP_SUMS_DAYS * DAY_SECONDS)
    return result_history.forget_sums(transaction, before_hour, HOURS_AT_ONCE)


def _forget_changes(transaction: Transaction) -> bool:
    before_s = transaction.now_s - KEEP_CHANGES_DAYS * DAY_SECONDS
    return result_history.forget_changes(transaction, before_s, CHUNK)


def _forget_interfaces(transaction: Transaction) -> bool:
    before_s = transaction.now_s - KEEP_VERSIONS_DAYS * DAY_SECONDS
    return interface_versions.forget(transaction, before_s, CHUNK)


def _delete_delisted(transaction: Transaction) -> bool:
    return target_rows.delete_delisted(transaction, transaction.now_s - KEEP_LEFT_DAYS * DAY_SECONDS, CHUNK)


def _forget_numbers(transaction: Transaction) -> bool:
    before_s = transaction.now_s - KEEP_NUMBERS_DAYS * DAY_SECONDS
    return histories.forget(transaction, Status.DEREGISTERED, before_s, CHUNK)


def _forget_unfinished(transaction: Transaction) -> None:
    directories.drop_unfinished(transaction, transaction.now_s - UPLOAD_DAYS * DAY_SECONDS)
    directories.forget_imports(transaction, transaction.now_s - KEEP_IMPORTS_DAYS * DAY_SECONDS)
    opt_outs.forget_unproven(transaction, transaction.now_s - TOKEN_TTL_SECONDS)
