"""Runs of tasks, their ends, and the writes during them.

Only the latest reports are kept. Writes are kept as long as the task: a repeated one gets its first answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, delete, insert, select, update

from lifesign.storage.engine.table_definitions import task_reports, task_runs, task_writes
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTaskRun:
    """One run of a task; the members are the columns."""

    task: int
    number: int
    run_id: str
    holder: str | None
    token: int
    began_at_s: float
    ended_at_s: float | None = None
    exit_reason: str | None = None
    exit_code: int | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """One progress report; the members are the columns."""

    task: int
    number: int
    run_id: str
    reported_at_s: float
    report: str
    """JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRunWrite:
    """One write during a run and its answer, for repeated requests; the members are the columns."""

    task: int
    run_id: str
    idempotency_key: str
    digest: str
    answer: str
    """JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRunEnd:
    """End of a task's last run."""

    task: int
    number: int
    ended_at_s: float
    exit_reason: str
    exit_code: int | None = None


_END = (
    update(task_runs)
    .where(task_runs.c.task == bindparam("of_task"), task_runs.c.number == bindparam("of_number"))
    .values(ended_at_s=bindparam("at_s"), exit_reason=bindparam("to_reason"), exit_code=bindparam("to_code"))
)


def begin(transaction: Transaction, run: StoredTaskRun) -> None:
    """Store a new run."""
    transaction.connection.execute(insert(task_runs), asdict(run))


def end(transaction: Transaction, ends: Sequence[StoredRunEnd]) -> None:
    """Store how runs ended."""
    rows = [
        {
            "of_task": one.task,
            "of_number": one.number,
            "at_s": one.ended_at_s,
            "to_reason": one.exit_reason,
            "to_code": one.exit_code,
        }
        for one in ends
    ]
    if rows:
        transaction.connection.execute(_END, rows)


def find(transaction: Transaction, run_id: str) -> StoredTaskRun | None:
    """Return a run by its id."""
    wanted = select(task_runs).where(task_runs.c.run_id == run_id)
    row = transaction.connection.execute(wanted).mappings().one_or_none()
    return None if row is None else StoredTaskRun(**row)


def last_ids(transaction: Transaction, numbers: Iterable[tuple[int, int]]) -> dict[int, str]:
    """Return by task the ids of those of these runs, given as task and number, that have not ended."""
    wanted = dict(numbers)
    if not wanted:
        return {}
    found = transaction.connection.execute(
        select(task_runs.c.task, task_runs.c.number, task_runs.c.run_id).where(
            task_runs.c.task.in_(wanted), task_runs.c.ended_at_s.is_(None)
        )
    )
    return {task: run_id for task, number, run_id in found if wanted[task] == number}


def of_task(transaction: Transaction, task: int, limit: int) -> list[StoredTaskRun]:
    """Return a task's runs, the newest first."""
    wanted = (
        select(task_runs).where(task_runs.c.task == task).order_by(task_runs.c.number.desc()).limit(limit)
    )
    return [StoredTaskRun(**row) for row in transaction.connection.execute(wanted).mappings()]


def has_worked(transaction: Transaction, holder: str, numbers: Sequence[int]) -> bool:
    """Return whether a holder has or had one of these tasks."""
    wanted = select(task_runs.c.task).where(task_runs.c.holder == holder, task_runs.c.task.in_(numbers))
    return transaction.connection.execute(wanted.limit(1)).first() is not None


def count_call(transaction: Transaction, run: StoredTaskRun) -> None:
    """Count one more metered call of a run."""
    transaction.connection.execute(
        update(task_runs).where(task_runs.c.run_id == run.run_id).values(calls=run.calls + 1)
    )


def forget_holder(transaction: Transaction, holder: str) -> None:
    """Remove a holder's name from all runs."""
    transaction.connection.execute(update(task_runs).where(task_runs.c.holder == holder).values(holder=None))


def add_report(transaction: Transaction, report: StoredReport, keep: int) -> None:
    """Store a progress report; only the latest `keep` of a task remain."""
    transaction.connection.execute(insert(task_reports), asdict(report))
    old = task_reports.c.number <= report.number - keep
    transaction.connection.execute(delete(task_reports).where(task_reports.c.task == report.task, old))


def reports(transaction: Transaction, task: int, *, before: int | None, limit: int) -> list[StoredReport]:
    """Return a task's reports with numbers below `before`, the newest first."""
    wanted = select(task_reports).where(task_reports.c.task == task)
    if before is not None:
        wanted = wanted.where(task_reports.c.number < before)
    wanted = wanted.order_by(task_reports.c.number.desc()).limit(limit)
    return [StoredReport(**row) for row in transaction.connection.execute(wanted).mappings()]


def find_write(
    transaction: Transaction, task: int, run_id: str, idempotency_key: str
) -> StoredRunWrite | None:
    """Return an earlier write of a run by its idempotency key."""
    wanted = select(task_writes).where(
        task_writes.c.task == task,
        task_writes.c.run_id == run_id,
        task_writes.c.idempotency_key == idempotency_key,
    )
    row = transaction.connection.execute(wanted).mappings().one_or_none()
    return None if row is None else StoredRunWrite(**row)


def add_write(transaction: Transaction, write: StoredRunWrite) -> None:
    """Store the answer to a write, for repeated requests."""
    transaction.connection.execute(insert(task_writes), asdict(write))
