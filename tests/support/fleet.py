"""Many agents at once, without a registration of each."""

from typing import Any

from sqlalchemy import insert, select

from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.table_definitions import agents as agents_table
from lifesign.storage.engine.table_definitions import leases
from lifesign.storage.engine.transaction import Database, Transaction

LIVED_S = 3_600.0
"""How long they have been there: their silence may be ours."""


async def add_agents(database: Database, count: int, prefix: str = "agent", **columns: Any) -> list[str]:
    """Store active agents whose last heartbeat came just now; thresholds are those of RFC-0016."""
    names = [f"{prefix}-{number}" for number in range(count)]

    def add(transaction: Transaction) -> None:
        now_s = transaction.now_s
        agent_rows.add_many(transaction, [{**_columns(name, now_s), **columns} for name in names], now_s)

    await database.write(add)
    return names


async def give_lease(database: Database, holder: str, resource: str, ttl_s: float = 86_400) -> None:
    """Let an agent hold a resource."""

    def give(transaction: Transaction) -> None:
        now_s = transaction.now_s
        transaction.connection.execute(
            insert(leases).values(
                resource=resource,
                lease_id=f"lease_{resource.replace(':', '_')}",
                holder=holder,
                holder_incarnation=1,
                token=1,
                acquired_at_s=now_s,
                expires_at_s=now_s + ttl_s,
            )
        )

    await database.write(give)


async def count_by_status(database: Database) -> dict[str, int]:
    """Return how many agents there are per status."""

    def read(transaction: Transaction) -> dict[str, int]:
        counts: dict[str, int] = {}
        for status in transaction.connection.scalars(select(agents_table.c.status)):
            counts[status] = counts.get(status, 0) + 1
        return counts

    return await database.read(read)


def _columns(agent_id: str, now_s: float) -> dict[str, Any]:
    return {
        "agent_id": agent_id,
        "role_id": None,
        "name": None,
        "endpoint": None,
        "card_url": None,
        "capabilities": (),
        "max_concurrent_tasks": None,
        "metadata": {},
        "monitoring": "heartbeat",
        "interval_s": 30.0,
        "unhealthy_after_s": 90.0,
        "dead_after_s": 300.0,
        "drain_timeout_s": 120.0,
        "status": "active",
        "reason": "registered",
        "status_since_s": now_s - LIVED_S,
        "explanation": "registered",
        "health": "unknown",
        "incarnation": 1,
        "version": 1,
        "registered_at_s": now_s - LIVED_S,
        "assess_at_s": now_s + 90.0,
        "drain_deadline_s": None,
        "maintenance_until_s": None,
        "override_status": None,
        "override_until_s": None,
        "recoveries_s": (),
        "target_url": None,
    }
