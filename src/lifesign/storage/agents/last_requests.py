"""Requests of agents: when each server process last got an authenticated one."""

from sqlalchemy import ColumnElement, delete, func, select

from lifesign.storage.agents.agent_rows import insert_or_replace
from lifesign.storage.engine.table_definitions import agent_requests
from lifesign.storage.engine.transaction import Transaction

FORGOTTEN_AFTER_S = 86_400.0
"""Retention for a process that ended: no heartbeat timeout is that long."""
MAX_STEP_S = 1.0
"""A moment further ahead was stored before the clock was set back, and does not count."""


def store(transaction: Transaction, process: str, at_s: float) -> None:
    """Store when a process last got a request; old times and future times are deleted."""
    is_old = agent_requests.c.at_s < transaction.now_s - FORGOTTEN_AFTER_S
    transaction.connection.execute(delete(agent_requests).where(is_old | _is_in_future(transaction)))
    statement = insert_or_replace(transaction, agent_requests, "process")
    transaction.connection.execute(statement, {"process": process, "at_s": at_s})


def last_at_s(transaction: Transaction) -> float | None:
    """Return when any process last got a request; None: never."""
    last = select(func.max(agent_requests.c.at_s)).where(~_is_in_future(transaction))
    at_s: float | None = transaction.connection.scalar(last)
    return at_s


def _is_in_future(transaction: Transaction) -> ColumnElement[bool]:
    return agent_requests.c.at_s > transaction.now_s + MAX_STEP_S
