"""Totals of all tables, with ages.

These are the counts and times of `/metrics`, which are read every few seconds. A count costs a walk through
its index; lists are bounded.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, text

from lifesign.domain.probing.shard_eligibility import key_of
from lifesign.domain.targets.target import SHARDS
from lifesign.domain.tasks.lease import shard_resource
from lifesign.storage.agents import dashboard_table
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.table_definitions import (
    agents,
    keys,
    leases,
    probe_results,
    probers,
    tasks,
)
from lifesign.storage.engine.table_definitions import webhooks as webhook_table
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import archive_erasures, event_log, webhooks
from lifesign.storage.probing import prober_result_counts
from lifesign.storage.probing.prober_result_counts import Reported
from lifesign.storage.probing.probers import is_living
from lifesign.storage.targets import census_counts
from lifesign.storage.tasks import leases as running_leases

_SHARDS = [shard_resource(number) for number in range(SHARDS)]
NEWEST_OF = 1_000
"""Among so many targets, the latest, the newest observation is looked for.

Each has its own moment in every interval, so that the newest of a thousand is as fresh as that of all.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownAgent:
    """An agent that is unhealthy or dead."""

    agent_id: str
    status: str
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Content of the database at one moment, `at_s` by its clock."""

    at_s: float
    agents: Mapping[tuple[str, str], int]
    """By status, and by the health to show now: unknown with old evidence."""
    down: Sequence[DownAgent]
    """The unhealthy, then the dead, the latest registered first; at most as many as requested."""
    due_at_s: float | None
    """Earliest due time of an assessment; None without one."""
    row: RegistryRow | None
    leases: int
    """Number of current leases."""
    tasks: Mapping[str, int]
    """By status."""
    oldest_handoff_s: float | None
    """Time since which the longest waiting task waits for people."""
    sequence: int
    archived_sequence: int
    archive_erasures: int
    webhooks: int
    webhooks_disabled: int
    webhook_sequence: int | None
    """Sequence up to which all enabled webhooks have received the events."""
    targets: Mapping[str | None, int]
    """Number of targets by last result; None for targets that were never probed."""
    newest_observation_s: float | None
    probers: int
    prober_shards: Mapping[str, int]
    """Shards of the workers of a key, by the key's holder name."""
    prober_results: Mapping[str, Reported]
    """About living agents, likewise."""
    keys: int
    """Number of valid keys."""
    size_bytes: int | None
    """Size of a PostgreSQL database; the file system knows that of an SQLite file."""


def totals(transaction: Transaction, *, most_down: int) -> Totals:
    """Count all that the metrics need; name at most `most_down` agents that are unhealthy or dead."""
    connection, now_s = transaction.connection, transaction.now_s
    handoffs = select(func.min(tasks.c.status_since_s)).where(tasks.c.status == "handoff")
    running = select(func.count()).where(leases.c.ended_at_s.is_(None), leases.c.expires_at_s > now_s)
    disabled = select(func.count()).where(webhook_table.c.is_disabled)
    good = select(func.count()).where(
        keys.c.revoked_at_s.is_(None), func.coalesce(keys.c.expires_at_s, now_s + 1) > now_s
    )
    living = select(func.count()).select_from(probers).where(is_living(now_s))
    return Totals(
        at_s=now_s,
        agents=dashboard_table.counts(transaction),
        down=_down(transaction, most_down),
        due_at_s=connection.scalar(select(func.min(agents.c.assess_at_s))),
        row=registry_row.find(transaction),
        leases=connection.scalar(running) or 0,
        tasks={
            str(status): count
            for status, count in connection.execute(
                select(tasks.c.status, func.count()).group_by(tasks.c.status)
            )
        },
        oldest_handoff_s=connection.scalar(handoffs),
        sequence=event_log.last_sequence(transaction),
        archived_sequence=event_log.archived_sequence(transaction),
        archive_erasures=archive_erasures.count(transaction),
        webhooks=webhooks.count(transaction),
        webhooks_disabled=connection.scalar(disabled) or 0,
        webhook_sequence=webhooks.slowest(transaction),
        targets=census_counts.results(transaction),
        newest_observation_s=_newest(transaction),
        probers=connection.scalar(living) or 0,
        prober_shards=_prober_shards(transaction),
        prober_results=prober_result_counts.by_key(transaction),
        keys=connection.scalar(good) or 0,
        size_bytes=_size(transaction),
    )


def _prober_shards(transaction: Transaction) -> dict[str, int]:
    shards: Counter[str] = Counter()
    for holder, number in running_leases.count_running(transaction, _SHARDS).items():
        shards[key_of(holder)] += number
    return dict(shards)


def _down(transaction: Transaction, most: int) -> list[DownAgent]:
    """Return the agents that are down, except those in maintenance."""
    is_maintained = func.coalesce(agents.c.maintenance_until_s, 0.0) > transaction.now_s
    found: list[DownAgent] = []
    for status in ("unhealthy", "dead"):
        wanted = (
            select(agents.c.agent_id, agents.c.status, agents.c.reason, agents.c.status_since_s)
            .where(agents.c.status == status, ~is_maintained)
            .order_by(agents.c.id.desc())
            .limit(most - len(found))
        )
        found += [
            DownAgent(agent_id=agent_id, status=status, reason=reason, since_s=since_s)
            for agent_id, status, reason, since_s in transaction.connection.execute(wanted)
        ]
    return found


def _newest(transaction: Transaction) -> float | None:
    some = (
        select(probe_results.c.observed_at_s)
        .order_by(probe_results.c.target.desc())
        .limit(NEWEST_OF)
        .subquery()
    )
    newest: float | None = transaction.connection.scalar(select(func.max(some.c.observed_at_s)))
    return newest


def _size(transaction: Transaction) -> int | None:
    if not transaction.is_postgresql:
        return None
    return int(transaction.connection.scalar(text("SELECT pg_database_size(current_database())")) or 0)
