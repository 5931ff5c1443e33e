"""Tasks in answers."""

from typing import Any

from pydantic_core import from_json

from lifesign.domain.access.permissions import Principal
from lifesign.domain.models.base import moment
from lifesign.domain.models.tasks import CommentRecord, ReportRecord, RunRecord, TaskRecord, TaskSummary
from lifesign.domain.tasks.budget import budget_record
from lifesign.domain.tasks.task_states import HELD, ExitReason, TaskSignal, TaskStatus
from lifesign.registry.serializers.key_names import visible_key_names
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import task_budgets, task_comments, task_rows, task_runs
from lifesign.storage.tasks.task_rows import StoredTask, TaskFilter
from lifesign.storage.tasks.task_runs import StoredReport, StoredTaskRun

MAX_SHOWN = 100
"""Runs and children that a record shows; all children are listed by their parent."""


def summaries(transaction: Transaction, shown: list[StoredTask]) -> list[TaskSummary]:
    """Return tasks for a list."""
    kin = {number for task in shown for number in (task.parent, task.fix_of) if number is not None}
    ids = task_rows.ids_of(transaction, sorted(kin))
    return [TaskSummary(**_members(task, ids, transaction.now_s)) for task in shown]


def summary(transaction: Transaction, task: StoredTask) -> TaskSummary:
    """Return one task for a list."""
    return summaries(transaction, [task])[0]


def record(transaction: Transaction, task: StoredTask) -> TaskRecord:
    """Return the complete record of a task."""
    children = task_rows.listing(transaction, TaskFilter(parent=task.number), before=None, limit=MAX_SHOWN)
    return TaskRecord(
        **summary(transaction, task).model_dump(),
        input=from_json(task.input),
        output=None if task.output is None else from_json(task.output),
        lease_seconds=task.lease_s,
        max_attempts=task.max_attempts,
        backoff_seconds=task.backoff_s,
        budget=budget_record(task_budgets.find(transaction, task.number).budget),
        latest_report=latest_report(transaction, task.number),
        comments=comments(transaction, task.number),
        runs=[_run(run) for run in task_runs.of_task(transaction, task.number, MAX_SHOWN)],
        children=summaries(transaction, children),
    )


def record_for(transaction: Transaction, task: StoredTask, caller: Principal) -> TaskRecord:
    """Return a task for a caller, with the names of the acting keys if the caller may know them."""
    return with_names(transaction, record(transaction, task), caller)


def with_names(transaction: Transaction, shown: TaskRecord, caller: Principal) -> TaskRecord:
    """Add the names of the keys that created a task and decided about it, if the caller may know them."""
    actors = [shown.created_by, *(comment.written_by for comment in shown.comments)]
    return shown.model_copy(update={"names": visible_key_names(transaction, caller, actors)})


def latest_report(transaction: Transaction, number: int) -> ReportRecord | None:
    """Return the last report of a task; None if there is none."""
    found = task_runs.reports(transaction, number, before=None, limit=1)
    return report_record(found[0]) if found else None


def comments(transaction: Transaction, number: int) -> list[CommentRecord]:
    """Return the comments on decisions about a task, the newest first."""
    return [
        CommentRecord(
            signal=TaskSignal(comment.signal),
            comment=comment.comment,
            written_by=comment.written_by,
            written_at=moment(comment.written_at_s),
        )
        for comment in task_comments.of_task(transaction, number)
    ]


def report_record(report: StoredReport) -> ReportRecord:
    """Return a report as it is shown."""
    return ReportRecord(
        number=report.number,
        run_id=report.run_id,
        reported_at=moment(report.reported_at_s),
        report=from_json(report.report),
    )


def _members(task: StoredTask, ids: dict[int, str], now_s: float) -> dict[str, Any]:
    is_held = task.status in HELD
    since_s = task.progress_at_s if is_held else None
    return {
        "task_id": task.task_id,
        "title": task.title,
        "status": TaskStatus(task.status),
        "status_since": moment(task.status_since_s),
        "explanation": task.explanation,
        "agent_id": task.agent_id,
        "role_id": task.role_id,
        "capabilities": list(task.capabilities),
        "holder": task.holder if is_held else None,
        "attempts": task.attempts - task.lost_runs,
        "lost_runs": task.lost_runs,
        "not_before": None if task.not_before_s is None else moment(task.not_before_s),
        "no_progress_seconds": None if since_s is None else round(max(0.0, now_s - since_s), 3),
        "parent_id": None if task.parent is None else ids.get(task.parent),
        "fix_of": None if task.fix_of is None else ids.get(task.fix_of),
        "created_by": task.created_by or None,
        "created_at": moment(task.created_at_s),
    }


def _run(run: StoredTaskRun) -> RunRecord:
    return RunRecord(
        run_id=run.run_id,
        number=run.number,
        holder=run.holder,
        fencing_token=run.token,
        began_at=moment(run.began_at_s),
        ended_at=None if run.ended_at_s is None else moment(run.ended_at_s),
        exit_reason=None if run.exit_reason is None else ExitReason(run.exit_reason),
        exit_code=run.exit_code,
    )
