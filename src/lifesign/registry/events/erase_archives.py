"""Erasure of agents in archived files.

An erasure changes only the database. The database lists the files that may still contain events of the agent,
and every server process checks its own files. A check that was interrupted is repeated; events in files on
other machines wait until those files are available.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.errors import InvalidEvent
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import ArchiveErased
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import archive_erasures, event_log
from lifesign.storage.events.archive_erasures import ArchiveErasure, Range
from lifesign.storage.events.event_archive import Archived, erase_in, files_in

PAGE = 2_000
"""Number of erased agents for which a file is searched in one pass."""
ARCHIVIST = OwnActor.ARCHIVIST.value
"""Actor of events about archived files."""

_log = logging.getLogger("lifesign.registry")


async def erase_archives(database: Database, directory: Path) -> None:
    """Erase the agents with pending erasures from the archives in a directory, except files in use."""
    last = 0
    while page := await database.read(partial(archive_erasures.after, sequence=last, limit=PAGE)):
        archived_sequence = await database.read(event_log.archived_sequence)
        # The latest first: files that a kill left after `archived_sequence` are not waited for, but checked.
        for file in reversed(await asyncio.to_thread(files_in, directory)):
            if file.first_sequence > archived_sequence:
                await _erase_in(file, page)
            elif concerned := [erasure for erasure in page if _overlaps(erasure, file)]:
                is_done = await _erase_in(file, concerned)
                if is_done:
                    sequences = [erasure.sequence for erasure in concerned]
                    await database.write(partial(_note, file=file, sequences=sequences))
        last = page[-1].sequence


async def _erase_in(file: Archived, erasures: Sequence[ArchiveErasure]) -> bool:
    """Return whether a file contains no events of these agents any more."""
    # For an id that was erased twice, the later erasure counts: it covers everything before it.
    agents = {erasure.agent_id: erasure.sequence for erasure in erasures}
    try:
        erased = await asyncio.to_thread(erase_in, file, agents)
    except (InvalidEvent, OSError) as error:
        # The other files are no worse for it.
        _log.warning("%s may still contain events of erased agents: %s", file.path, error)
        return False
    if erased:
        _log.info("%d events of erased agents were erased in %s", erased, file.path)
    return erased is not None


def _note(transaction: Transaction, file: Archived, sequences: Sequence[int]) -> None:
    """Record that a file was checked, and log agents that no file contains any more."""
    left = [
        replace(erasure, remaining=without(erasure.remaining, (file.first_sequence, file.last_sequence)))
        for erasure in archive_erasures.lock(transaction, sequences)
    ]
    archive_erasures.leave(transaction, left)
    event_log.append(transaction, [_erased(erasure) for erasure in left if not erasure.remaining])


def without(ranges: Sequence[Range], taken: Range) -> tuple[Range, ...]:
    """Return these ranges of sequence numbers after removal of the range `taken`."""
    first, last = taken
    parts = [
        part for begin, end in ranges for part in ((begin, min(end, first - 1)), (max(begin, last + 1), end))
    ]
    return tuple((begin, end) for begin, end in parts if begin <= end)


def _overlaps(erasure: ArchiveErasure, file: Archived) -> bool:
    return any(begin <= file.last_sequence and file.first_sequence <= end for begin, end in erasure.remaining)


def _erased(erasure: ArchiveErasure) -> EventDraft:
    payload = ArchiveErased(agent_id=erasure.agent_id, erased_sequence=erasure.sequence)
    return EventDraft(
        type=EventType.ARCHIVE_ERASED, actor=ARCHIVIST, payload=payload, agent_id=erasure.agent_id
    )
