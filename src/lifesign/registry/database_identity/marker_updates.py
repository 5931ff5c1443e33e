"""Updates of the database marker while the server runs, and detection of a replaced database.

Every process compares the database with the marker. One process of a server writes the marker, and each when
it ends. Several servers may overwrite each other's markers of one database: an older one is still true.
"""

import asyncio
import logging
import time
from math import inf

from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.errors import LifesignError
from lifesign.registry.database_identity.marker_check import (
    KnownIdentity,
    check_known,
    check_tables,
    current_marker,
)
from lifesign.registry.database_identity.marker_file import MarkerFile, state_directory
from lifesign.registry.errors import DatabaseMismatch
from lifesign.registry.request_handling.work_counts import WorkCounts
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.engine.transaction import Clock, Database, Transaction
from lifesign.storage.errors import DatabaseReplaced, StoreUnavailable
from lifesign.storage.whole_database import marker_state

TRACK_SECONDS = 2.0
"""Time between two comparisons. With their duration, a marker is written within 5 s after a commit."""
LAST_SECONDS = 2.0
"""Maximum delay of a process's start and end by the first and the last comparison."""
WARN_AGAIN_SECONDS = 60.0
"""Interval of log lines about a marker that cannot be written."""

_log = logging.getLogger("lifesign.registry")


class MarkerTracker:
    """Compares the database with this host's marker, and updates the marker; one per server process."""

    def __init__(
        self,
        database: Database,
        settings: RegistrySettings,
        counts: WorkCounts,
        monotonic_s: Clock = time.monotonic,
    ) -> None:
        self._database = database
        self._settings = settings
        self._counts = counts
        self._monotonic_s = monotonic_s
        self._warned_at_s = -inf
        self._file: MarkerFile | None = None

    async def begin(self) -> None:
        """Compare the database with its marker before the first request, within LAST_SECONDS."""
        await self._within(LAST_SECONDS)

    async def run(self) -> None:
        """Compare the database with its marker regularly until cancelled."""
        while True:
            await self.track_once()
            await asyncio.sleep(TRACK_SECONDS)

    async def end(self) -> None:
        """Write this process's last committed event into the marker, within LAST_SECONDS."""
        await self._within(LAST_SECONDS, is_last=True)

    async def track_once(self, *, is_last: bool = False) -> None:
        """Compare the database with its marker, and write the marker if it is this process's turn.

        From then on, changes are refused if the database was replaced. If the marker cannot be read or
        written, the server continues, with a warning and a metric.
        """
        try:
            await self._database.check_files()
            await self._track(is_last=is_last)
        except DatabaseReplaced as error:
            self._database.writes.failed(error)
            await self._save_lost_head(is_last=is_last)
        except StoreUnavailable:
            # The database itself logs it, once.
            pass
        except (LifesignError, OSError) as error:
            self._warn(error)
        except Exception as error:  # noqa: BLE001 - whatever fails, the next comparison follows
            self._warn(error, is_ours=True)

    async def _track(self, *, is_last: bool) -> None:
        file = self._marker_file()
        if file is None:
            return
        known = await asyncio.to_thread(KnownIdentity.read, file)
        found = await self._compare(known)
        if found is None:
            return
        if found != known.marker:
            if not (is_last or self._counts.is_first):
                return
            await self._database.check_files()
            await asyncio.to_thread(file.write, found)
        self._counts.note_marker(time.time())
        self._warned_at_s = -inf

    async def _save_lost_head(self, *, is_last: bool) -> None:
        """Write the last event of a database that was moved away or replaced, as the open files have it.

        Else an older copy in its place would be served after a restart.
        """
        file = self._marker_file()
        if file is None or not (is_last or self._counts.is_first):
            return
        try:
            known = await asyncio.to_thread(KnownIdentity.read, file)
            found = await self._database.read(lambda transaction: _compared(transaction, known))
            if found is not None and found != known.marker:
                await asyncio.to_thread(file.write, found)
        except Exception as error:  # noqa: BLE001 - whatever fails, the next comparison follows
            # The marker may already be that of a restored database, or the open files may be damaged.
            _log.debug("the marker stays at the last event before the loss: %s", error)

    def _marker_file(self) -> MarkerFile | None:
        self._file = self._file or MarkerFile.of(
            self._database.url, state_directory(self._settings.state_dir)
        )
        return self._file

    async def _compare(self, known: KnownIdentity) -> DatabaseMarker | None:
        """Return the marker of the database as it is, or None after refusing changes to another database."""
        try:
            found = await self._database.read(lambda transaction: _compared(transaction, known))
        except DatabaseMismatch:
            if self._database.writes.mismatch is None:
                # Once more where changes go: reads may reach a replica that is behind for a moment.
                await self._confirm(known)
            return None
        self._database.writes.mismatch = None
        return found if found is not None else await self._database.write(current_marker)

    async def _confirm(self, known: KnownIdentity) -> None:
        try:
            await self._database.write(lambda transaction: _compared(transaction, known))
        except DatabaseMismatch as error:
            self._database.writes.mismatch = error.mismatch
            _log.error("%s; see docs/operating.md, section 10", error)
            raise DatabaseReplaced(error.mismatch) from None

    async def _within(self, most_s: float, *, is_last: bool = False) -> None:
        try:
            async with asyncio.timeout(most_s):
                await self.track_once(is_last=is_last)
        except TimeoutError:
            _log.info("the database could not be compared with its marker file within %g s", most_s)

    def _warn(self, error: Exception, *, is_ours: bool = False) -> None:
        now_s = self._monotonic_s()
        if now_s - self._warned_at_s >= WARN_AGAIN_SECONDS:
            self._warned_at_s = now_s
            text = "the marker of the database cannot be kept up to date: %s"
            _log.warning(text, error, exc_info=error if is_ours else None)


def _compared(transaction: Transaction, known: KnownIdentity) -> DatabaseMarker | None:
    """Return the database's marker; None if it has no installation id yet. Raises DatabaseMismatch."""
    check_tables(transaction, known)
    check_known(transaction, known)
    state = marker_state.find(transaction, None)
    if state.installation_id is None:
        return None
    return DatabaseMarker(installation_id=state.installation_id, epoch=state.epoch, head=state.head)
