"""Histories of agents, one packed row each; `agent_history` reads them."""

from collections.abc import Mapping, Sequence

from pydantic_core import to_json
from sqlalchemy import delete, select, text

from lifesign.domain.lifecycle.agent_history import KeptHistory
from lifesign.storage.engine.table_definitions import agent_history, agents
from lifesign.storage.engine.transaction import Transaction

_STORE_TAIL = "ON CONFLICT (agent) DO UPDATE SET half_hours = excluded.half_hours, days = excluded.days"
_STORE_SQLITE = text(f"""
    INSERT INTO agent_history (agent, half_hours, days)
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows) WHERE true
    {_STORE_TAIL}
""")  # noqa: S608 - constants only
_STORE_POSTGRESQL = text(f"""
    INSERT INTO agent_history (agent, half_hours, days)
    SELECT CAST(given ->> 0 AS bigint), given ->> 1, given ->> 2
    FROM json_array_elements(CAST(:rows AS json)) AS given
    {_STORE_TAIL}
""")  # noqa: S608 - constants only


def find(transaction: Transaction, numbers: Sequence[int]) -> dict[int, KeptHistory]:
    """Return the stored histories of these agents, by row number; agents without one are absent."""
    wanted = select(agent_history).where(agent_history.c.agent.in_(numbers))
    return {
        row.agent: KeptHistory(row.half_hours, row.days) for row in transaction.connection.execute(wanted)
    }


def store(transaction: Transaction, kept: Mapping[int, KeptHistory]) -> None:
    """Store the histories of these agents, by row number."""
    rows = [(number, history.half_hours, history.days) for number, history in sorted(kept.items())]
    statement = _STORE_POSTGRESQL if transaction.is_postgresql else _STORE_SQLITE
    transaction.connection.execute(statement, {"rows": to_json(rows).decode()})


def forget(transaction: Transaction, status: str, before_s: float, limit: int) -> bool:
    """Delete at most `limit` histories of agents that have had this status since before a time.

    Return whether there may be more.
    """
    wanted = (
        select(agent_history.c.agent)
        .join(agents, agents.c.id == agent_history.c.agent)
        .where(agents.c.status == status, agents.c.status_since_s < before_s)
        .limit(limit)
    )
    old = transaction.connection.scalars(wanted).all()
    if old:
        transaction.connection.execute(delete(agent_history).where(agent_history.c.agent.in_(old)))
    return len(old) == limit
