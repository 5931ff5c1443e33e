"""Erasure of agents in archived files.

An erasure changes only the database. The database lists the files that may still contain events of the agent,
and every server process checks its own files. A check that was interrupted is repeated; events in files on
other machines wait until those files are available. After a restore several files may have the same sequence
numbers: these are checked together.
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
        for checked, files in reversed(overlapping(await asyncio.to_thread(files_in, directory))):
            is_archived = checked[0] <= archived_sequence
            concerned = [erasure for erasure in page if not is_archived or _overlaps(erasure, checked)]
            if not concerned:
                continue
            are_done = [await _erase_in(file, concerned) for file in files]
            if is_archived and all(are_done):
                sequences = [erasure.sequence for erasure in concerned]
                await database.write(partial(_note, checked=checked, sequences=sequences))
        last = page[-1].sequence


def overlapping(files: Sequence[Archived]) -> list[tuple[Range, list[Archived]]]:
    """Return sorted files in groups that have sequence numbers in common, with the range of each group."""
    groups: list[tuple[Range, list[Archived]]] = []
    for file in files:
        if groups and file.first_sequence <= groups[-1][0][1]:
            (first, last), group = groups[-1]
            groups[-1] = (first, max(last, file.last_sequence)), [*group, file]
        else:
            groups.append(((file.first_sequence, file.last_sequence), [file]))
    return groups


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


def _note(transaction: Transaction, checked: Range, sequences: Sequence[int]) -> None:
    """Record that the files of a range were checked, and log agents that no file contains any more."""
    left = [
        replace(erasure, remaining=without(erasure.remaining, checked))
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


def _overlaps(erasure: ArchiveErasure, checked: Range) -> bool:
    first, last = checked
    return any(begin <= last and first <= end for begin, end in erasure.remaining)


def _erased(erasure: ArchiveErasure) -> EventDraft:
    payload = ArchiveErased(agent_id=erasure.agent_id, erased_sequence=erasure.sequence)
    return EventDraft(
        type=EventType.ARCHIVE_ERASED, actor=ARCHIVIST, payload=payload, agent_id=erasure.agent_id
    )
