"""Comments on decisions about a task, and requests for help."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import delete, func, insert, select, update

from lifesign.storage.engine.table_definitions import task_comments
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredComment:
    """One comment; the members are the columns."""

    task: int
    signal: str
    comment: str
    written_by: str | None
    written_at_s: float
    number: int = 0
    """Given when it is stored: from 1, at each task."""


def add(transaction: Transaction, comments: Sequence[StoredComment], keep: int) -> None:
    """Store comments, each task's in order; only the latest `keep` of a task remain.

    The row of its lease is locked.
    """
    if not comments:
        return
    wanted = (
        select(task_comments.c.task, func.max(task_comments.c.number))
        .where(task_comments.c.task.in_({one.task for one in comments}))
        .group_by(task_comments.c.task)
    )
    last: dict[int, int] = {row[0]: row[1] for row in transaction.connection.execute(wanted)}
    rows = []
    for one in comments:
        last[one.task] = last.get(one.task, 0) + 1
        rows.append(asdict(replace(one, number=last[one.task])))
    transaction.connection.execute(insert(task_comments), rows)
    for task, number in last.items():
        old = task_comments.c.number <= number - keep
        transaction.connection.execute(delete(task_comments).where(task_comments.c.task == task, old))


def of_task(transaction: Transaction, task: int) -> list[StoredComment]:
    """Return the stored comments of a task, the newest first."""
    wanted = select(task_comments).where(task_comments.c.task == task).order_by(task_comments.c.number.desc())
    return [StoredComment(**row) for row in transaction.connection.execute(wanted).mappings()]


def forget_author(transaction: Transaction, written_by: str) -> None:
    """Remove an author's name from all comments."""
    transaction.connection.execute(
        update(task_comments).where(task_comments.c.written_by == written_by).values(written_by=None)
    )
