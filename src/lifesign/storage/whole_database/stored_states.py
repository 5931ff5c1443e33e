"""Stored states that follow from the event log, and their removal by an erasure."""

from collections.abc import Iterator

from sqlalchemy import delete, select, update

from lifesign.domain.events.key_state import KeyState, state_of
from lifesign.domain.events.replayed_states import AgentState, LeaseState, ReplayedLink, TaskState
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.domain.tasks.lease import EndReason
from lifesign.domain.tasks.task_states import FINISHED, TaskStatus
from lifesign.storage.engine.table_definitions import (
    agents,
    keys,
    leases,
    task_budgets,
    tasks,
)
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows as stored_keys
from lifesign.storage.targets import target_links as stored_links
from lifesign.storage.tasks import task_comments, task_creations, task_runs
from lifesign.storage.tasks import task_rows as stored_tasks

PAGE = 1_000
"""Number of rows in memory at a time."""

_AGENTS = select(
    agents.c.id,
    agents.c.agent_id,
    agents.c.status,
    agents.c.reason,
    agents.c.incarnation,
    agents.c.version,
    agents.c.health,
    agents.c.maintenance_until_s,
    agents.c.override_status,
    agents.c.override_until_s,
).order_by(agents.c.id)
_LEASES = select(
    leases.c.number,
    leases.c.resource,
    leases.c.lease_id,
    leases.c.holder,
    leases.c.token,
    leases.c.end_reason,
).order_by(leases.c.number)


_PARENTS, _FIXED = tasks.alias(), tasks.alias()
_TASKS = (
    select(
        tasks.c.number,
        tasks.c.task_id,
        tasks.c.status,
        tasks.c.runs,
        tasks.c.attempts,
        tasks.c.reports,
        task_budgets.c.envelope_tokens,
        task_budgets.c.envelope_micro_usd,
        _PARENTS.c.task_id.label("parent_id"),
        _FIXED.c.task_id.label("fix_of"),
    )
    .join(task_budgets, task_budgets.c.task == tasks.c.number)
    .outerjoin(_PARENTS, _PARENTS.c.number == tasks.c.parent)
    .outerjoin(_FIXED, _FIXED.c.number == tasks.c.fix_of)
    .order_by(tasks.c.number)
)


def agent_states(transaction: Transaction) -> Iterator[AgentState]:
    """Return the stored state of every agent."""
    last = 0
    while rows := transaction.connection.execute(_AGENTS.where(agents.c.id > last).limit(PAGE)).all():
        for row in rows:
            yield AgentState(
                agent_id=row.agent_id,
                status=Status(row.status),
                reason=Reason(row.reason),
                incarnation=row.incarnation,
                version=row.version,
                health=HealthStatus(row.health),
                maintenance_until_s=row.maintenance_until_s,
                override_status=None if row.override_status is None else Status(row.override_status),
                override_until_s=row.override_until_s,
            )
        last = rows[-1].id


def lease_states(transaction: Transaction) -> Iterator[LeaseState]:
    """Return the stored state of every resource, including those that were never leased."""
    last = 0
    while rows := transaction.connection.execute(_LEASES.where(leases.c.number > last).limit(PAGE)).all():
        for row in rows:
            yield LeaseState(
                resource=row.resource,
                lease_id=row.lease_id,
                holder=row.holder,
                token=row.token,
                end_reason=None if row.end_reason is None else EndReason(row.end_reason),
            )
        last = rows[-1].number


def task_states(transaction: Transaction) -> Iterator[TaskState]:
    """Return the stored state of every task."""
    last = 0
    while rows := transaction.connection.execute(_TASKS.where(tasks.c.number > last).limit(PAGE)).all():
        for row in rows:
            yield TaskState(
                task_id=row.task_id,
                status=TaskStatus(row.status),
                parent_id=row.parent_id,
                fix_of=row.fix_of,
                tokens=row.envelope_tokens,
                micro_usd=row.envelope_micro_usd,
                runs=row.runs,
                attempts=row.attempts,
                reports=row.reports,
            )
        last = rows[-1].number


def link_states(transaction: Transaction) -> Iterator[ReplayedLink]:
    """Return the stored state of every link."""
    last = 0
    while rows := stored_links.all_links(transaction, after=last, limit=PAGE):
        for row in rows:
            yield ReplayedLink(target_id=row.subject_id, agent_id=row.agent_id)
        last = rows[-1].target


def key_states(transaction: Transaction) -> Iterator[KeyState]:
    """Return the stored state of every key."""
    last = ""
    while page := stored_keys.all_keys(transaction, after=last, limit=PAGE):
        yield from map(state_of, page)
        last = page[-1].key_id


def has_key_or_lease(transaction: Transaction, agent_id: str) -> bool:
    """Return whether the agent has a key, valid or not, or is the last holder of a lease."""
    has_key = select(keys.c.key_id).where(keys.c.agent_id == agent_id).exists()
    has_lease = select(leases.c.number).where(leases.c.holder == agent_id).exists()
    return bool(transaction.connection.scalar(select(has_key | has_lease)))


def lock_leases_of(transaction: Transaction, holder: str) -> None:
    """Lock all leases that a holder has or had, in the common order."""
    wanted = select(leases.c.number).where(leases.c.holder == holder)
    transaction.connection.execute(wanted.order_by(leases.c.number).with_for_update())


def forget_holder(transaction: Transaction, holder: str) -> None:
    """Remove a holder's name from leases, runs, comments and tasks; the granted tokens stay forever."""
    task_runs.forget_holder(transaction, holder)
    task_comments.forget_author(transaction, holder)
    task_creations.forget_creator(transaction, holder)
    stored_tasks.forget_agent(transaction, holder, FINISHED)
    transaction.connection.execute(
        update(leases)
        .where(leases.c.holder == holder)
        .values(
            lease_id=None,
            holder=None,
            holder_incarnation=None,
            acquired_at_s=None,
            expires_at_s=None,
            ended_at_s=None,
            end_reason=None,
        )
    )


def remove_keys(transaction: Transaction, agent_id: str) -> None:
    """Delete the keys that belong to an agent."""
    transaction.connection.execute(delete(keys).where(keys.c.agent_id == agent_id))


def remove_agent(transaction: Transaction, agent_id: str) -> None:
    """Delete an agent's record, all that depends on its row, and its keys."""
    remove_keys(transaction, agent_id)
    transaction.connection.execute(delete(agents).where(agents.c.agent_id == agent_id))
