"""Rows of tasks.

A task's number is that of its lease's row. A transaction that changes a task has locked that row
(`leases.lock`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, bindparam, func, insert, select, update

from lifesign.storage.engine.table_definitions import (
    leases,
    task_needs,
    task_runs,
    tasks,
)
from lifesign.storage.engine.transaction import Transaction

ERASED: Final = ""
"""Name in place of an erased creator of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """The stored record of one task without its runs, reports and budget; the members are the columns."""

    number: int
    task_id: str
    title: str
    status: str
    status_since_s: float
    explanation: str | None
    agent_id: str | None
    role_id: str | None
    capabilities: Sequence[str]
    input: str
    output: str | None
    lease_s: float
    max_attempts: int
    backoff_s: float
    attempts: int
    lost_runs: int
    runs: int
    reports: int
    writes: int
    not_before_s: float | None
    progress_at_s: float | None
    parent: int | None
    fix_of: int | None
    created_by: str
    """Creator, as events name actors; empty once the agent was erased."""
    created_at_s: float
    holder: str | None = None
    """Holder of the last granted lease, current or not; stored with the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Filter of tasks; empty or None matches any."""

    statuses: tuple[str, ...] = ()
    agent_id: str | None = None
    role_id: str | None = None
    parent: int | None = None
    holder: str | None = None
    """Current or former holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """The agent for which a task is searched."""

    agent_id: str
    role_id: str | None
    """The agent's pool."""
    capabilities: Sequence[str]
    """Capabilities of the agent, or those with which it claims tasks now."""
    is_of_pool_only: bool = False
    """Only tasks that name its pool."""
    number: int | None = None
    """Only this task."""


_OWN = tuple(column.name for column in tasks.columns)
_ALL = select(*tasks.columns, leases.c.holder).join(leases, leases.c.number == tasks.c.number)
# Columns that a transition changes; one statement for any number of tasks.
_CHANGING = (
    "status", "status_since_s", "explanation", "output", "attempts", "lost_runs", "runs", "reports",
    "writes", "not_before_s", "progress_at_s",
)  # fmt: skip
_STORE = (
    update(tasks)
    .where(tasks.c.number == bindparam("of_number"))
    .values({name: bindparam(f"to_{name}") for name in _CHANGING})
)


def add(transaction: Transaction, task: StoredTask) -> None:
    """Store a new task; the caller has created and locked the row of its lease."""
    row = {name: getattr(task, name) for name in _OWN}
    transaction.connection.execute(insert(tasks), {**row, "capabilities": list(task.capabilities)})
    needs = [{"task": task.number, "capability": capability} for capability in task.capabilities]
    if needs:
        transaction.connection.execute(insert(task_needs), needs)


def store(transaction: Transaction, changed: Sequence[StoredTask]) -> None:
    """Store the columns of tasks that can change."""
    rows = [
        {"of_number": task.number, **{f"to_{name}": getattr(task, name) for name in _CHANGING}}
        for task in changed
    ]
    if rows:
        transaction.connection.execute(_STORE, rows)


def forget_agent(transaction: Transaction, agent_id: str, finished: Collection[str]) -> None:
    """Remove an agent's id from tasks that it created, and from finished tasks that named this agent.

    Open tasks for it keep the name, or any agent could claim them.
    """
    transaction.connection.execute(
        update(tasks).where(tasks.c.created_by == agent_id).values(created_by=ERASED)
    )
    was_for_it = (tasks.c.agent_id == agent_id) & tasks.c.status.in_(finished)
    transaction.connection.execute(update(tasks).where(was_for_it).values(agent_id=None))


def number_of(transaction: Transaction, task_id: str) -> int | None:
    """Return the row number of a task and of its lease; None if there is no such task."""
    return transaction.connection.scalar(select(tasks.c.number).where(tasks.c.task_id == task_id))


def ids_of(transaction: Transaction, numbers: Sequence[int]) -> dict[int, str]:
    """Return the ids of tasks by their numbers."""
    wanted = select(tasks.c.number, tasks.c.task_id).where(tasks.c.number.in_(numbers))
    return {row[0]: row[1] for row in transaction.connection.execute(wanted)} if numbers else {}


def leases_of(transaction: Transaction, numbers: Sequence[int]) -> dict[int, float]:
    """Return the lease durations of tasks in seconds, by their numbers."""
    wanted = select(tasks.c.number, tasks.c.lease_s).where(tasks.c.number.in_(numbers))
    return {row[0]: row[1] for row in transaction.connection.execute(wanted)} if numbers else {}


def find(transaction: Transaction, number: int) -> StoredTask:
    """Return an existing task by its number."""
    return _stored(transaction.connection.execute(_ALL.where(tasks.c.number == number)).mappings().one())


def find_many(transaction: Transaction, numbers: Sequence[int]) -> list[StoredTask]:
    """Return tasks by their numbers, ascending; unknown ones are absent."""
    wanted = _ALL.where(tasks.c.number.in_(numbers)).order_by(tasks.c.number)
    return [_stored(row) for row in transaction.connection.execute(wanted).mappings()] if numbers else []


def lock_next(transaction: Transaction, claimant: Claimant, at_s: float) -> int | None:
    """Return the number of the task that was queued first and that this agent may have, locked.

    Tasks that another transaction changes are omitted; there is no wait.
    """
    wanted = (
        _may_have(select(tasks.c.number).join(leases, leases.c.number == tasks.c.number), claimant)
        .where(func.coalesce(tasks.c.not_before_s, 0.0) <= at_s)
        .order_by(tasks.c.number)
        .limit(1)
        .with_for_update(of=(leases, tasks), skip_locked=True, key_share=True)
    )
    number: int | None = transaction.connection.scalar(wanted)
    return number


def next_due_s(transaction: Transaction, claimant: Claimant) -> float | None:
    """Return the earliest time at which this agent can claim a queued task; None if there is none."""
    due = select(func.min(func.coalesce(tasks.c.not_before_s, 0.0))).select_from(tasks)
    at_s: float | None = transaction.connection.scalar(_may_have(due, claimant))
    return at_s


def listing(
    transaction: Transaction, wanted: TaskFilter, *, before: int | None, limit: int
) -> list[StoredTask]:
    """Return tasks with numbers below `before`, the newest first."""
    statement = _filtered(_ALL, wanted).order_by(tasks.c.number.desc()).limit(limit)
    if before is not None:
        statement = statement.where(tasks.c.number < before)
    return [_stored(row) for row in transaction.connection.execute(statement).mappings()]


def count(transaction: Transaction, wanted: TaskFilter) -> int:
    """Return the number of tasks."""
    statement = _filtered(select(func.count()).select_from(tasks), wanted)
    return transaction.connection.scalar(statement) or 0


def count_children(transaction: Transaction, number: int) -> int:
    """Return the number of tasks whose parent is this one, in any status."""
    return count(transaction, TaskFilter(parent=number))


def _may_have(statement: Select[Any], claimant: Claimant) -> Select[Any]:
    unmet = select(task_needs.c.task).where(
        task_needs.c.task == tasks.c.number, task_needs.c.capability.not_in(claimant.capabilities)
    )
    of_pool = tasks.c.role_id == claimant.role_id
    if claimant.number is not None:
        statement = statement.where(tasks.c.number == claimant.number)
    return statement.where(
        tasks.c.status == "queued",
        tasks.c.agent_id.is_(None) | (tasks.c.agent_id == claimant.agent_id),
        of_pool if claimant.is_of_pool_only else tasks.c.role_id.is_(None) | of_pool,
        ~unmet.exists(),
    )


def _filtered(statement: Select[Any], wanted: TaskFilter) -> Select[Any]:
    if wanted.statuses:
        statement = statement.where(tasks.c.status.in_([str(status) for status in wanted.statuses]))
    if wanted.agent_id is not None:
        statement = statement.where(tasks.c.agent_id == wanted.agent_id)
    if wanted.role_id is not None:
        statement = statement.where(tasks.c.role_id == wanted.role_id)
    if wanted.parent is not None:
        statement = statement.where(tasks.c.parent == wanted.parent)
    if wanted.holder is not None:
        worked_at = select(task_runs.c.task).where(task_runs.c.holder == wanted.holder)
        statement = statement.where(tasks.c.number.in_(worked_at))
    return statement


def _stored(row: Mapping[Any, Any]) -> StoredTask:
    return StoredTask(**{str(name): value for name, value in row.items()})
