"""Idempotency keys of task creations."""

from dataclasses import dataclass

from sqlalchemy import delete, select, text, update

from lifesign.storage.engine.table_definitions import task_creations
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCreation:
    """A request to create a task, and the created task."""

    creator: str
    idempotency_key: str
    digest: str
    task: int | None = None


# The second transaction waits until the first one has ended, and finds its result.
_TAKE = text("""
    INSERT INTO task_creations (creator, idempotency_key, digest)
    VALUES (:creator, :idempotency_key, :digest) ON CONFLICT DO NOTHING
""")


def take(transaction: Transaction, wanted: StoredCreation) -> StoredCreation | None:
    """Reserve an idempotency key for a new task; return its earlier use, or None."""
    named = {"creator": wanted.creator, "idempotency_key": wanted.idempotency_key}
    taken = transaction.connection.execute(_TAKE, {**named, "digest": wanted.digest})
    if taken.rowcount:
        return None
    known = transaction.connection.execute(select(task_creations).filter_by(**named)).mappings().one()
    return StoredCreation(**{str(name): value for name, value in known.items()})


def forget_creator(transaction: Transaction, creator: str) -> None:
    """Delete all idempotency keys of a creator."""
    transaction.connection.execute(delete(task_creations).filter_by(creator=creator))


def set_task(transaction: Transaction, taken: StoredCreation, task: int) -> None:
    """Store which task the request with this idempotency key created."""
    transaction.connection.execute(
        update(task_creations)
        .filter_by(creator=taken.creator, idempotency_key=taken.idempotency_key)
        .values(task=task)
    )
