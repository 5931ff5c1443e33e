"""When each server process last got an authenticated request of an agent, and last refused one."""

from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, or_, select

from lifesign.storage.agents.agent_rows import insert_or_replace
from lifesign.storage.engine.table_definitions import agent_requests
from lifesign.storage.engine.transaction import Transaction

FORGOTTEN_AFTER_S = 86_400.0
"""Retention for a process that ended: no heartbeat timeout is that long."""
MAX_STEP_S = 1.0
"""A moment further ahead was stored before the clock was set back, and does not count."""
_COLUMNS = agent_requests.c.at_s, agent_requests.c.refused_at_s
_TIMES = [func.coalesce(column, 0.0) for column in _COLUMNS]


class LastRequests(NamedTuple):
    """Times of the last requests to one server process, or to all."""

    at_s: float | None
    """Last authenticated request of an agent; None: never."""
    refused_at_s: float | None
    """Last heartbeat that could not be stored, or connection beyond the limit; None: never."""


def store(transaction: Transaction, process: str, times: LastRequests) -> None:
    """Store the times of a server process; delete all processes' times that are too old or in the future."""
    oldest_s = transaction.now_s - FORGOTTEN_AFTER_S
    is_old = and_(*(at_s < oldest_s for at_s in _TIMES))
    transaction.connection.execute(delete(agent_requests).where(is_old | _is_in_future(transaction)))
    statement = insert_or_replace(transaction, agent_requests, "process")
    transaction.connection.execute(statement, {"process": process, **times._asdict()})


def last(transaction: Transaction) -> LastRequests:
    """Return the latest times among all server processes."""
    latest = select(*(func.max(column) for column in _COLUMNS)).where(~_is_in_future(transaction))
    return LastRequests._make(transaction.connection.execute(latest).one())


def _is_in_future(transaction: Transaction) -> ColumnElement[bool]:
    return or_(*(at_s > transaction.now_s + MAX_STEP_S for at_s in _TIMES))
