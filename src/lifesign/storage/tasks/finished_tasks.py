"""Finished tasks whose retention has ended, and the rows that go with them.

A tree of tasks is deleted from its leaves: never before its children and fixes, and never while its parent is
not finished. The lease's row stays, with the last fencing token.
"""

from collections.abc import Collection

from sqlalchemy import delete, select

from lifesign.storage.engine.table_definitions import (
    task_budgets,
    task_calls,
    task_comments,
    task_creations,
    task_needs,
    task_reports,
    task_runs,
    task_writes,
    tasks,
)
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import leases

_PARTS = (
    task_budgets, task_calls, task_comments, task_creations, task_needs, task_reports, task_runs, task_writes,
)  # fmt: skip


def forget(transaction: Transaction, statuses: Collection[str], before_s: float, limit: int) -> bool:
    """Delete tasks that have had one of these statuses since before a time; return whether to go on."""
    parents, children, fixes = tasks.alias(), tasks.alias(), tasks.alias()
    wanted = (
        select(tasks.c.number)
        .where(
            tasks.c.status.in_(statuses),
            tasks.c.status_since_s < before_s,
            ~select(children.c.number).where(children.c.parent == tasks.c.number).exists(),
            ~select(fixes.c.number).where(fixes.c.fix_of == tasks.c.number).exists(),
            ~select(parents.c.number)
            .where(parents.c.number == tasks.c.parent, parents.c.status.not_in(statuses))
            .exists(),
        )
        .order_by(tasks.c.status_since_s)
        .limit(limit)
    )
    numbers = list(transaction.connection.scalars(wanted))
    if not numbers:
        return False
    # A change of a task locks its lease's row. Only this deletion changes a finished task.
    leases.lock(transaction, numbers=numbers)
    for part in _PARTS:
        transaction.connection.execute(delete(part).where(part.c.task.in_(numbers)))
    transaction.connection.execute(delete(tasks).where(tasks.c.number.in_(numbers)))
    return True
