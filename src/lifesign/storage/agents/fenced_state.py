"""States that the holders of resources wrote last."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select, update

from lifesign.storage.agents.agent_rows import insert_or_replace
from lifesign.storage.engine.table_definitions import fenced_states
from lifesign.storage.engine.transaction import Transaction

_ERASED = ""
"""Replaces the name of an erased holder; no holder has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The state that was stored for a resource, with its writer and fencing token."""

    resource: str
    state: Mapping[str, Any]
    version: int
    """Version, from 1; each write increments it."""
    token: int
    holder: str | None
    """None if the writer was erased: the state belongs to the intent and stays."""
    written_at_s: float


def find(transaction: Transaction, resource: str) -> StoredState | None:
    """Return the state of a resource; None if there is none."""
    row = transaction.connection.execute(
        select(fenced_states).where(fenced_states.c.resource == resource)
    ).mappings()
    found = row.one_or_none()
    return None if found is None else StoredState(**{**found, "holder": found["holder"] or None})


def write(transaction: Transaction, state: StoredState) -> None:
    """Store a state in place of the previous one; the caller has locked the resource's lease."""
    transaction.connection.execute(insert_or_replace(transaction, fenced_states, "resource"), asdict(state))


def forget_holder(transaction: Transaction, holder: str) -> None:
    """Remove a holder's name from all states of which it is the last writer."""
    transaction.connection.execute(
        update(fenced_states).where(fenced_states.c.holder == holder).values(holder=_ERASED)
    )
