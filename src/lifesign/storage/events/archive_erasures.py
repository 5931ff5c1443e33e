"""Erased agents of which archived files may still contain events."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import Row, bindparam, delete, func, insert, select, update

from lifesign.storage.engine.table_definitions import archive_erasures
from lifesign.storage.engine.transaction import Transaction

Range = tuple[int, int]
"""The first and the last sequence of some events that follow one another."""

_RANGES: TypeAdapter[tuple[Range, ...]] = TypeAdapter(tuple[Range, ...])
_ROWS = select(archive_erasures).order_by(archive_erasures.c.sequence)
_LEAVE = (
    update(archive_erasures)
    .where(archive_erasures.c.sequence == bindparam("at"))
    .values(remaining=bindparam("left"))
)


@dataclass(frozen=True, slots=True)
class ArchiveErasure:
    """One erased agent, some of whose events may have been archived before."""

    sequence: int
    """Sequence of the event of the erasure; earlier events are to be erased."""
    agent_id: str
    remaining: tuple[Range, ...]
    """Ranges whose files were not checked yet; ascending."""


def add(transaction: Transaction, erasure: ArchiveErasure) -> None:
    """Note that archives are to forget an agent."""
    row = {
        "sequence": erasure.sequence,
        "agent_id": erasure.agent_id,
        "remaining": _written(erasure.remaining),
    }
    transaction.connection.execute(insert(archive_erasures), row)


def after(transaction: Transaction, sequence: int, *, limit: int) -> list[ArchiveErasure]:
    """Return the next ones behind `sequence`."""
    wanted = _ROWS.where(archive_erasures.c.sequence > sequence).limit(limit)
    return [_read(row) for row in transaction.connection.execute(wanted)]


def lock(transaction: Transaction, sequences: Sequence[int]) -> list[ArchiveErasure]:
    """Return the remaining ones of these; no other transaction changes them until this one ends."""
    wanted = _ROWS.where(archive_erasures.c.sequence.in_(sequences)).with_for_update()
    return [_read(row) for row in transaction.connection.execute(wanted)]


def leave(transaction: Transaction, erasures: Sequence[ArchiveErasure]) -> None:
    """Store the remaining ranges of each; lock the rows before."""
    over = [erasure.sequence for erasure in erasures if not erasure.remaining]
    if over:
        transaction.connection.execute(delete(archive_erasures).where(archive_erasures.c.sequence.in_(over)))
    left = [{"at": one.sequence, "left": _written(one.remaining)} for one in erasures if one.remaining]
    if left:
        transaction.connection.execute(_LEAVE, left)


def count(transaction: Transaction) -> int:
    """Return the number of pending erasures."""
    return transaction.connection.scalar(select(func.count()).select_from(archive_erasures)) or 0


def _written(ranges: tuple[Range, ...]) -> str:
    return _RANGES.dump_json(ranges).decode()


def _read(row: Row[tuple[object, ...]]) -> ArchiveErasure:
    return ArchiveErasure(row.sequence, row.agent_id, _RANGES.validate_json(row.remaining))
