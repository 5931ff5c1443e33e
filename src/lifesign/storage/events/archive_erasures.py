"""Erased agents, and which archived files may still contain events of them.

An erasure stays after the last file was checked: a restore of an older backup erases the agent again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import Row, bindparam, func, insert, select, update

from lifesign.storage.engine.table_definitions import archive_erasures
from lifesign.storage.engine.transaction import Transaction

Range = tuple[int, int]
"""The first and the last sequence of some events that follow one another."""

_RANGES: TypeAdapter[tuple[Range, ...]] = TypeAdapter(tuple[Range, ...])
_ROWS = select(archive_erasures).order_by(archive_erasures.c.sequence)
_IS_PENDING = archive_erasures.c.remaining != "[]"
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
    """Ranges whose files were not checked yet; ascending. Empty: no file contains the agent."""
    erased_at_s: float


def add(transaction: Transaction, erasure: ArchiveErasure) -> None:
    """Store that an agent was erased, and which archived ranges may still contain its events."""
    row = {
        "sequence": erasure.sequence,
        "agent_id": erasure.agent_id,
        "remaining": _written(erasure.remaining),
        "erased_at_s": erasure.erased_at_s,
    }
    transaction.connection.execute(insert(archive_erasures), row)


def after(transaction: Transaction, sequence: int, *, limit: int) -> list[ArchiveErasure]:
    """Return the next pending erasures after the sequence number `sequence`."""
    wanted = _ROWS.where(_IS_PENDING, archive_erasures.c.sequence > sequence).limit(limit)
    return [_read(row) for row in transaction.connection.execute(wanted)]


def lock(transaction: Transaction, sequences: Sequence[int]) -> list[ArchiveErasure]:
    """Return those of these erasures that are pending; no other transaction changes them meanwhile."""
    wanted = _ROWS.where(_IS_PENDING, archive_erasures.c.sequence.in_(sequences)).with_for_update()
    return [_read(row) for row in transaction.connection.execute(wanted)]


def leave(transaction: Transaction, erasures: Sequence[ArchiveErasure]) -> None:
    """Store the ranges that remain for each erasure; the caller has locked the rows."""
    left = [{"at": one.sequence, "left": _written(one.remaining)} for one in erasures]
    if left:
        transaction.connection.execute(_LEAVE, left)


def count(transaction: Transaction) -> int:
    """Return the number of pending erasures."""
    pending = select(func.count()).select_from(archive_erasures).where(_IS_PENDING)
    return transaction.connection.scalar(pending) or 0


def _written(ranges: tuple[Range, ...]) -> str:
    return _RANGES.dump_json(ranges).decode()


def _read(row: Row[tuple[object, ...]]) -> ArchiveErasure:
    return ArchiveErasure(row.sequence, row.agent_id, _RANGES.validate_json(row.remaining), row.erased_at_s)
