"""Fills a registry's database with agents for a benchmark, without registering each of them."""

import asyncio
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import ColumnElement, String, cast, func, insert, literal, select

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.databases import DISPENSABLE, empty_url, postgresql_server

from lifesign.domain.access.permissions import digest_of, key_of
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.postgresql import PostgresqlDatabase
from lifesign.storage.engine.table_definitions import (
    agents,
    capabilities,
    heartbeats,
    keys,
    metadata,
)
from lifesign.storage.engine.transaction import Database, Transaction

ROWS_AT_ONCE = 5_000
CAPABILITIES = 20
"""Each agent has one of them, and all have `any`."""
LOADS = 5
"""Number of loads, 0 to 4. Agents with the same capability have the same load and the same capacity."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many agents, all alike but for their names."""

    size: int
    """How many are alive."""
    interval_s: float = 30
    unhealthy_after_s: float = 90
    dead: int = 0
    """How many more there are that are dead."""

    def agent_id(self, number: int) -> str:
        """Return the name of an agent."""
        return f"agent-{number:07}"

    def key(self, number: int) -> str:
        """Return the key of an agent."""
        return key_of(sha256(b"%d" % number).digest())


def new_url(kind: str, directory: Path) -> str:
    """Return the URL of a new database; PostgreSQL is as careful as by default, which it is not for tests."""
    url = empty_url(kind, directory)
    if kind == "postgresql":
        for setting in DISPENSABLE:
            postgresql_server().psql(f"ALTER SYSTEM RESET {setting}")
        postgresql_server().psql("SELECT pg_reload_conf()")
    return url


def fill(url: str, fleet: Fleet, *, with_keys: bool = True) -> None:
    """Make a registry of a new database, and put the fleet into it, in one go."""

    async def run() -> None:
        database = open_database(url)
        try:
            await database.write(lambda transaction: metadata.create_all(transaction.connection))
            for alike in filter(None, (range(fleet.size), range(fleet.size, fleet.size + fleet.dead))):
                first = list(alike[:ROWS_AT_ONCE])
                await database.write(lambda transaction, first=first: _add(transaction, fleet, first))  # type: ignore[misc]
                for done in range(len(first), len(alike), ROWS_AT_ONCE):
                    more = alike[done : done + ROWS_AT_ONCE]
                    await database.write(
                        lambda transaction, more=more, done=done: _copy(transaction, more, done)  # type: ignore[misc]
                    )
            if with_keys:
                for done in range(0, fleet.size + fleet.dead, ROWS_AT_ONCE):
                    some = range(done, min(done + ROWS_AT_ONCE, fleet.size + fleet.dead))
                    await database.write(lambda transaction, some=some: _add_keys(transaction, fleet, some))  # type: ignore[misc]
            await _settle(database)
        finally:
            await database.close()

    asyncio.run(run())


async def _settle(database: Database) -> None:
    """Have PostgreSQL's tables as autovacuum and checkpointer have them some minutes later."""
    if isinstance(database, PostgresqlDatabase):
        connection = await asyncpg.connect(
            database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        )
        try:
            await connection.execute("VACUUM (ANALYZE)")
            await connection.execute("CHECKPOINT")
        finally:
            await connection.close()


def _copy(transaction: Transaction, numbers: range, behind: int) -> None:
    """Let the database make agents of those whose numbers lie so far behind, which it has already."""
    for number in (agents.c.id, heartbeats.c.agent, capabilities.c.agent):
        made: dict[str, ColumnElement[Any]] = {number.name: number + behind}
        if number.table is agents:
            made["agent_id"] = literal("agent-") + func.substr(cast(number + behind + 9_999_999, String), 2)
        rows = select(*(made.get(column.name, column) for column in number.table.c)).where(
            number.between(numbers.start - behind + 1, numbers.stop - behind)
        )
        transaction.connection.execute(insert(number.table).from_select(number.table.c.keys(), rows))


def _add(transaction: Transaction, fleet: Fleet, numbers: list[int]) -> None:
    now_s = transaction.now_s
    connection = transaction.connection
    connection.execute(insert(agents), [_agent(fleet, number, now_s) for number in numbers])
    # Their heartbeats lie evenly in the interval before now.
    connection.execute(
        insert(heartbeats),
        [
            {
                "agent": number + 1,
                "last_heartbeat_at_s": now_s - fleet.interval_s * (number % 997) / 997,
                "current_load": number % LOADS,
                "max_concurrent_tasks": LOADS,
                "tasks": "[]",
            }
            for number in numbers
        ],
    )
    connection.execute(
        insert(capabilities),
        [
            {"agent": number + 1, "status": _status(fleet, number), "capability": capability}
            for number in numbers
            for capability in ("any", f"capability-{number % CAPABILITIES}")
        ],
    )


def _add_keys(transaction: Transaction, fleet: Fleet, numbers: Iterable[int]) -> None:
    rows = [
        {
            "key_id": f"key_{number}",
            "name": "",
            "role": "agent",
            "agent_id": fleet.agent_id(number),
            "digest": digest_of(fleet.key(number)).hex(),
            "created_at_s": transaction.now_s,
        }
        for number in numbers
    ]
    transaction.connection.execute(insert(keys), rows)


def _status(fleet: Fleet, number: int) -> str:
    return "active" if number < fleet.size else "dead"


def _agent(fleet: Fleet, number: int, now_s: float) -> dict[str, Any]:
    is_alive = number < fleet.size
    return {
        "id": number + 1,
        "agent_id": fleet.agent_id(number),
        "role_id": f"role-{number % 100}",
        "capabilities": ["any", f"capability-{number % CAPABILITIES}"],
        "metadata": json.loads('{"version": "1.2.0", "runtime": "python-3.11"}'),
        "monitoring": "heartbeat",
        "interval_s": fleet.interval_s,
        "unhealthy_after_s": fleet.unhealthy_after_s,
        "dead_after_s": 10 * fleet.interval_s,
        "drain_timeout_s": 120,
        "status": _status(fleet, number),
        "reason": "registered" if is_alive else "heartbeat_timeout",
        "status_since_s": now_s,
        "explanation": "",
        "health": "unknown",
        "incarnation": 1,
        "version": 1,
        "registered_at_s": now_s,
        # Evenly over the time in which their silence would be noticed.
        "assess_at_s": now_s + fleet.unhealthy_after_s * (0.5 + 0.5 * (number % 997) / 997)
        if is_alive
        else None,
        "recoveries_s": [],
    }
