"""Rows of heartbeats, many at once.

One statement fetches the facts for a batch, and one writes the batch. On SQLite both exchange JSON: a
statement with many rows would release and acquire the interpreter's lock for each row, and wait for it each
time while the server is busy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import text, update

from lifesign.storage.agents.agent_rows import EXTENDED_COLUMNS
from lifesign.storage.engine.table_definitions import heartbeats
from lifesign.storage.engine.transaction import Transaction


class HeartbeatCaller(NamedTuple):
    """The agent of a heartbeat, and its key."""

    agent_id: str
    digest: str
    """Digest of the key, hexadecimal."""


class HeartbeatFacts(NamedTuple):
    """Facts about an agent that sent a heartbeat, and about its key."""

    position: int
    """Position in the list of callers."""
    number: int
    status: str
    incarnation: int
    interval_s: float
    tasks: str | None
    is_drifting: bool
    has_lost_tasks: bool
    """Whether the agent reported a task whose lease it had lost, when the tasks were last compared."""
    has_commands: bool
    key_id: str | None
    """None if there is no such key."""
    key_role: str | None
    key_agent_id: str | None
    key_expires_at_s: float | None
    key_revoked_at_s: float | None


class StoredHeartbeat(NamedTuple):
    """An accepted heartbeat; for None, the stored value stays."""

    number: int
    at_s: float
    current_load: int | None
    tasks: str | None
    is_drifting: bool


_FACTS = """
    a.id, a.status, a.incarnation, a.interval_s, b.tasks, b.is_drifting, b.has_lost_tasks,
    EXISTS (SELECT 1 FROM commands c WHERE c.agent = a.id),
    k.key_id, k.role, k.agent_id, k.expires_at_s, k.revoked_at_s
"""
_JOINED = """
    JOIN agents a ON a.agent_id = asked.agent_id
    JOIN heartbeats b ON b.agent = a.id
    LEFT JOIN keys k ON k.digest = asked.digest
"""
_FETCH_SQLITE = text(f"""
    SELECT json_group_array(json_array(asked.position, {_FACTS}))
    FROM (SELECT key AS position, value ->> 0 AS agent_id, value ->> 1 AS digest FROM json_each(:asked)) asked
    {_JOINED}
""")  # noqa: S608 - constants only
# The lock keeps the sweep out; it is in the order of the agents, so that two groups never wait for each
# other.
_FETCH_POSTGRESQL = text(f"""
    SELECT asked.position - 1, {_FACTS}
    FROM unnest(CAST(:ids AS text[]), CAST(:digests AS text[]))
         WITH ORDINALITY AS asked (agent_id, digest, position)
    {_JOINED}
    ORDER BY a.id
    FOR NO KEY UPDATE OF a
""")  # noqa: S608 - constants only
# A heartbeat ends the silence for which shorter thresholds did not count yet.
_NOT_EXTENDED = ", ".join(f"{name} = NULL" for name in EXTENDED_COLUMNS)
_STORE_SQLITE = text(f"""
    UPDATE heartbeats SET
        last_heartbeat_at_s = max(last_heartbeat_at_s, given.value ->> 1),
        current_load = coalesce(given.value ->> 2, current_load),
        tasks = coalesce(given.value ->> 3, tasks),
        is_drifting = given.value ->> 4,
        {_NOT_EXTENDED}
    FROM json_each(:given) given
    WHERE heartbeats.agent = given.value ->> 0
""")  # noqa: S608 - constants only
_STORE_POSTGRESQL = text(f"""
    UPDATE heartbeats SET
        last_heartbeat_at_s = greatest(last_heartbeat_at_s, given.at_s),
        current_load = coalesce(given.current_load, heartbeats.current_load),
        tasks = coalesce(given.tasks, heartbeats.tasks),
        is_drifting = given.is_drifting,
        {_NOT_EXTENDED}
    FROM unnest(
        CAST(:numbers AS bigint[]), CAST(:times AS double precision[]), CAST(:loads AS integer[]),
        CAST(:tasks AS text[]), CAST(:drifts AS boolean[])
    ) AS given (number, at_s, current_load, tasks, is_drifting)
    WHERE heartbeats.agent = given.number
""")  # noqa: S608 - constants only


# Whatever else makes an agent unhealthy, its heartbeats arrive. Agents with an operator's override may be
# silent on purpose. Integer division replaces `floor`, which SQLite need not have.
_OVERDUE = """
    WITH overdue AS (
        SELECT a.id, b.last_heartbeat_at_s + {interval_s} * {whole_intervals} AS due_s,
            b.last_heartbeat_at_s + {interval_s} AS missed_s
        FROM heartbeats b JOIN agents a ON a.id = b.agent
        WHERE (
                a.status IN ('active', 'draining')
                OR a.status = 'unhealthy' AND a.reason <> 'heartbeat_timeout'
            )
            AND a.monitoring <> 'probe'
            AND :now_s - b.last_heartbeat_at_s >= {interval_s}
            AND b.last_heartbeat_at_s - a.registered_at_s >= :proven_s
            AND coalesce(a.maintenance_until_s, 0) <= :now_s AND coalesce(a.override_until_s, 0) <= :now_s
    )
    SELECT * FROM (SELECT * FROM overdue ORDER BY due_s DESC LIMIT :limit) AS last_due
    UNION SELECT * FROM (
        SELECT * FROM overdue WHERE missed_s <= :silent_s ORDER BY missed_s DESC LIMIT :limit
    ) AS last_missed
"""
_INTERVAL_S = "coalesce(b.extended_interval_s, a.interval_s)"
_INTERVALS = f"(:now_s - b.last_heartbeat_at_s) / {_INTERVAL_S}"
_OVERDUE_SQLITE, _OVERDUE_POSTGRESQL = (
    text(_OVERDUE.format(interval_s=_INTERVAL_S, whole_intervals=whole_intervals))
    for whole_intervals in (f"CAST({_INTERVALS} AS INTEGER)", f"floor({_INTERVALS})")
)


class OverdueHeartbeat(NamedTuple):
    """An agent whose heartbeat is overdue."""

    agent: int
    due_s: float
    """When its last heartbeat was due."""
    missed_s: float
    """When the first one that it missed was due."""


def latest_overdue(
    transaction: Transaction, proven_s: float, silent_s: float, limit: int
) -> list[OverdueHeartbeat]:
    """Return the agents whose last heartbeat was due latest, and those that fell silent last by `silent_s`.

    Only those that sent heartbeats for `proven_s` since their registration.
    """
    statement = _OVERDUE_POSTGRESQL if transaction.is_postgresql else _OVERDUE_SQLITE
    parameters = {
        "now_s": transaction.now_s,
        "proven_s": proven_s,
        "silent_s": silent_s,
        "limit": limit,
    }
    return [
        OverdueHeartbeat(int(agent), float(due_s), float(missed_s))
        for agent, due_s, missed_s in transaction.connection.execute(statement, parameters)
    ]


def facts_of(transaction: Transaction, callers: Sequence[HeartbeatCaller]) -> dict[int, HeartbeatFacts]:
    """Return the facts by the caller's position in `callers`; callers that are not registered are absent.

    Until the transaction ends, no other one changes these agents.
    """
    rows: Any
    if transaction.is_postgresql:
        rows = transaction.connection.execute(
            _FETCH_POSTGRESQL,
            {
                "ids": [caller.agent_id for caller in callers],
                "digests": [caller.digest for caller in callers],
            },
        )
    else:
        rows = from_json(transaction.connection.scalar(_FETCH_SQLITE, {"asked": to_json(callers).decode()}))
    return {row[0]: HeartbeatFacts(*row) for row in rows}


def store(transaction: Transaction, given: Sequence[StoredHeartbeat]) -> None:
    """Store heartbeats, at most one per agent; the stored time of the last heartbeat never decreases."""
    if not given:
        return
    if transaction.is_postgresql:
        numbers, times, loads, tasks, drifts = (list(column) for column in zip(*given, strict=True))
        transaction.connection.execute(
            _STORE_POSTGRESQL,
            {"numbers": numbers, "times": times, "loads": loads, "tasks": tasks, "drifts": drifts},
        )
    else:
        transaction.connection.execute(_STORE_SQLITE, {"given": to_json(given).decode()})


def set_lost_tasks(transaction: Transaction, number: int, *, has_lost_tasks: bool) -> None:
    """Store whether an agent reports a task whose lease it has lost."""
    transaction.connection.execute(
        update(heartbeats).where(heartbeats.c.agent == number).values(has_lost_tasks=has_lost_tasks)
    )
