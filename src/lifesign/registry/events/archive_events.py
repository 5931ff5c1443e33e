"""Archiving of old events in files.

A closed prefix of the log is written to a file. Then one transaction deletes it from the database, keeps its
last hash as a checkpoint, and appends an event. A process that is killed between the two steps leaves a file
that is written again: every event is always in at least one place. A file of another log, such as one that a
restore has replaced, is neither finished nor overwritten.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from lifesign.domain.errors import BrokenChain
from lifesign.domain.events.chain import Checkpoint, Event, link, time_text
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import LogArchived
from lifesign.domain.events.replay import Replay
from lifesign.errors import LifesignError
from lifesign.registry.events.erase_archives import ARCHIVIST, erase_archives
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.engine.sqlite_path import absolute_file
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import archive_erasures, event_log, webhooks
from lifesign.storage.events.event_archive import Archived, ArchiveFile, archive_lock, files_in
from lifesign.storage.events.event_log import PAGE, LogHead

MAX_EVENTS = 50_000
"""Maximum of events per file: about 30 MB."""
MAX_TRIES = 3
"""When others archive or erase the same events."""
ARCHIVE_SECONDS = 3_600.0
"""Interval of checks for old events, and for archived events of erased agents."""

_log = logging.getLogger("lifesign.registry")


class Archivist:
    """Archives events older than `event_retention_seconds`, and erases agents in archives.

    Runs in one server process or in several.
    """

    def __init__(self, database: Database, settings: RegistrySettings) -> None:
        self._database = database
        self._keep_s = settings.event_retention_seconds
        self._directory = archive_directory(database, settings)

    async def run(self) -> None:
        """Archive and erase once an hour until cancelled; without a retention, only erase."""
        while True:
            if self._keep_s is not None:
                await self._archive(self._keep_s)
            await self._erase()
            await asyncio.sleep(ARCHIVE_SECONDS)

    async def _archive(self, keep_s: float) -> None:
        try:
            now_s = await self._database.read(lambda transaction: transaction.now_s)
            while await archive(self._database, self._directory, now_s - keep_s):
                pass
        except (LifesignError, OSError):
            # Nothing is lost; a broken log or a full disk needs an operator.
            _log.exception("old events could not be archived")

    async def _erase(self) -> None:
        try:
            await erase_archives(self._database, self._directory)
            left = await self._database.read(archive_erasures.count)
        except (LifesignError, OSError):
            _log.exception("events of erased agents could not be erased from the archives")
        else:
            if left:
                _log.warning(
                    (
                        "events of %d erased agents may still be in archive files that are damaged, in "
                        "use, or not in %s"
                    ), left, self._directory.absolute(),
                )  # fmt: skip


def archive_directory(database: Database, settings: RegistrySettings) -> Path:
    """Return the directory of archived events, by default one per database.

    It is beside an SQLite file, and in the working directory for PostgreSQL.
    """
    if settings.archive_dir is not None:
        return settings.archive_dir
    file = absolute_file(database.url)
    if file is not None:
        return file.with_name(f"{file.name}.archive")
    return Path(f"{quote(database.url.database or 'lifesign', safe='')}.archive")


async def archive(database: Database, directory: Path, before_s: float) -> Archived | None:
    """Archive events created before `before_s`, `MAX_EVENTS` at most.

    None if there are none, or if another process is archiving. BrokenChain or ImpossibleEvent if the log was
    changed: then it stays in the database. OSError if the file cannot be written.
    """
    with archive_lock(directory) as is_alone:
        for _ in range(MAX_TRIES if is_alone else 0):
            with contextlib.suppress(_CameBetween):
                return await _archive(database, directory, before_s)
    return None


async def _archive(database: Database, directory: Path, before_s: float) -> Archived | None:
    head = await database.read(event_log.head)
    first = head.archived.sequence + 1
    files = [file for file in await asyncio.to_thread(files_in, directory) if file.first_sequence == first]
    last = await database.read(partial(_last_to_archive, files=files, created_at=time_text(before_s)))
    last = min(last, head.archived.sequence + MAX_EVENTS)
    if last < first:
        return None
    with await asyncio.to_thread(ArchiveFile, directory, first, last) as file:
        checkpoint, replay = await _write(database, file, head, last)
        states = replay.to_json()
        archived = await asyncio.to_thread(file.finish, checkpoint.hash)
    try:
        await database.write(_removal(head, checkpoint, states, archived.path.name))
    except _ArchivedElsewhere:
        # An erasure that finds the events in one directory does not wait for another one.
        await asyncio.to_thread(archived.path.unlink)
        raise
    return archived


def _last_to_archive(transaction: Transaction, files: Sequence[Archived], created_at: str) -> int:
    """Return up to where events are old enough, and no webhook waits for them; 0 if none are.

    `files`: those that begin with the first event. If one is of this log, its writer was killed before the
    events were deleted: it is finished as it is, when no webhook waits for any of its events.
    """
    slowest = webhooks.slowest(transaction)
    unfinished = [file.last_sequence for file in files if _is_of_log(transaction, file)]
    if unfinished:
        last = max(unfinished)
        return last if slowest is None or last <= slowest else 0
    last = event_log.last_before(transaction, created_at)
    return last if slowest is None else min(last, slowest)


def _is_of_log(transaction: Transaction, file: Archived) -> bool:
    found = event_log.hash_at(transaction, file.last_sequence)
    return found is not None and found.startswith(file.hash_start)


async def _write(
    database: Database, file: ArchiveFile, head: LogHead, last: int
) -> tuple[Checkpoint, Replay]:
    """Write the events into the file; return the checkpoint after them, and the state of a replay."""
    checkpoint, replay = head.archived, replay_from(head)
    while checkpoint.sequence < last:
        page = await database.read(_page(checkpoint.sequence, min(last, checkpoint.sequence + PAGE)))
        if not page:
            raise BrokenChain(checkpoint.sequence + 1, "it is missing")
        for event in page:
            checkpoint = link(checkpoint, event)
            replay.apply(event)
        await asyncio.to_thread(file.write, page)
    return checkpoint, replay


def _page(after: int, last: int) -> Callable[[Transaction], list[Event]]:
    return lambda transaction: [*event_log.between(transaction, after + 1, last)]


def _removal(head: LogHead, archived: Checkpoint, states: str, file: str) -> Callable[[Transaction], None]:
    """Return the function that removes the file's events from the database, unless they changed since."""

    def remove(transaction: Transaction) -> None:
        # Before the head is locked, which others wait for.
        event_log.remove_until(transaction, archived.sequence)
        current = event_log.lock(transaction)
        erased = event_log.first_of_type(transaction, EventType.AGENT_ERASED, head.last.sequence)
        if current.archived != head.archived:
            raise _ArchivedElsewhere
        if erased is not None:
            raise _CameBetween
        event_log.set_archived(transaction, archived, states)
        payload = LogArchived(
            first_sequence=head.archived.sequence + 1,
            last_sequence=archived.sequence,
            last_hash=archived.hash,
            file=file,
        )
        event_log.append(
            transaction, [EventDraft(type=EventType.LOG_ARCHIVED, actor=ARCHIVIST, payload=payload)]
        )

    return remove


def replay_from(head: LogHead) -> Replay:
    """Return a replay that begins with the state before the first event in the database."""
    return Replay() if head.archived_states is None else Replay.from_json(head.archived_states)


class _CameBetween(LifesignError):
    """The events changed since they were written into the file."""


class _ArchivedElsewhere(_CameBetween):
    """Another process has archived the same events, in another directory: this one is locked."""
