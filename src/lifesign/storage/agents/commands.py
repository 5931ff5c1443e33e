"""Commands that wait for an agent's next heartbeat."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Integer, bindparam, delete, insert, select

from lifesign.storage.engine.table_definitions import commands
from lifesign.storage.engine.transaction import Transaction

# Created once: each sweep runs it.
_EXPIRED = (
    select(commands)
    .where(commands.c.expires_at_s <= bindparam("at_s"))
    .order_by(commands.c.id)
    .limit(bindparam("most", type_=Integer))
    .with_for_update(skip_locked=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCommand:
    """A command that is neither honoured nor expired."""

    id: str
    agent: int
    """Our number for the agent."""
    command: str
    reason: str | None
    drain_timeout_s: float | None
    created_at_s: float
    expires_at_s: float


def add(transaction: Transaction, command: StoredCommand) -> None:
    """Store a command for the agent's next heartbeat."""
    transaction.connection.execute(insert(commands).values(**asdict(command)))


def waiting(transaction: Transaction, numbers: Sequence[int]) -> list[StoredCommand]:
    """Return the commands for these agents, the oldest first, including expired ones."""
    found = transaction.connection.execute(
        select(commands).where(commands.c.agent.in_(numbers)).order_by(commands.c.created_at_s, commands.c.id)
    )
    return [StoredCommand(**row) for row in found.mappings()]


def expired(transaction: Transaction, at_s: float, limit: int) -> list[StoredCommand]:
    """Return and lock expired commands, at most `limit`."""
    found = transaction.connection.execute(_EXPIRED, {"at_s": at_s, "most": limit})
    return [StoredCommand(**row) for row in found.mappings()]


def remove(transaction: Transaction, ids: Sequence[str]) -> None:
    """Delete commands that were honoured or have expired."""
    if ids:
        transaction.connection.execute(delete(commands).where(commands.c.id.in_(ids)))
