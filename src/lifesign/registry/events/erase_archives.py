"""How do archived files forget an agent that was erased?

Erasing reaches the database alone. Which archived events may still tell of the agent is stored there, and
every server process looks through the files that it has: what somebody was killed over is done again, and
what is in files that are elsewhere waits until they are back.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lifesign.domain.access.actor import OwnActor
from lifesign.domain.errors import InvalidEvent
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import ArchiveErased
from lifesign.storage.engine.database import Database
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import archive_erasures, event_log
from lifesign.storage.events.archive_erasures import ArchiveErasure, Range
from lifesign.storage.events.event_archive import Archived, erase_in, files_in

PAGE = 2_000
"""Of erased agents that a file is looked through for at once."""
ARCHIVIST = OwnActor.ARCHIVIST.value
"""Who acts on files of events."""

_log = logging.getLogger("lifesign.registry")


async def erase_archives(database: Database, directory: Path) -> None:
    """Let the files in a directory forget who was erased, as far as they are there and nobody is at them."""
    last = 0
    while page := await database.read(partial(archive_erasures.after, sequence=last, limit=PAGE)):
        archived_sequence = await database.read(event_log.archived_sequence)
        # The latest first: what a kill left behind `archived_sequence` is not waited for, and yet looked at.
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
    """Return whether a file tells of none of these agents any more."""
    # Of an id that was erased twice, the later one: nothing before it is to be left.
    agents = {erasure.agent_id: erasure.sequence for erasure in erasures}
    try:
        erased = await asyncio.to_thread(erase_in, file, agents)
    except (InvalidEvent, OSError) as error:
        # The other files are no worse for it.
        _log.warning("%s may still tell of agents that were erased: %s", file.path, error)
        return False
    if erased:
        _log.info("%d events of erased agents were erased in %s", erased, file.path)
    return erased is not None


def _note(transaction: Transaction, file: Archived, sequences: Sequence[int]) -> None:
    """Store that a file was looked through, and tell of whoever is in none any more."""
    left = [
        replace(erasure, remaining=without(erasure.remaining, (file.first_sequence, file.last_sequence)))
        for erasure in archive_erasures.lock(transaction, sequences)
    ]
    archive_erasures.leave(transaction, left)
    event_log.append(transaction, [_erased(erasure) for erasure in left if not erasure.remaining])


def without(ranges: Sequence[Range], taken: Range) -> tuple[Range, ...]:
    """Return what is left of ranges of sequences when one is taken out."""
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
