"""Writes of a task's holder (lease protocol; protocol 6.8).

These are progress, the result, a request for help, a child task, and the end without a result. Each write is
guarded by the fencing token, executed once even if it is repeated, and atomic: a write that ends the work
also ends the lease.
"""

from dataclasses import replace

from pydantic_core import to_json

from lifesign.domain.access.permissions import Permission
from lifesign.domain.events.event import EventDraft
from lifesign.domain.models.progress_report import ProgressReport
from lifesign.domain.models.tasks import (
    CompletionWrite,
    DelegationWrite,
    HelpWrite,
    ProgressWrite,
    RunRelease,
    TaskWriteResult,
)
from lifesign.domain.tasks.lease import EndReason
from lifesign.domain.tasks.task_states import ExitReason, TaskSignal, TaskStatus
from lifesign.errors import LifesignError
from lifesign.registry.errors import TooMany
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.status_changes import task_events
from lifesign.registry.status_changes.task_status import Move, move
from lifesign.registry.tasks.create_task import MAX_TASK_BYTES, PATH, TaskOrigin, add_task
from lifesign.registry.tasks.run_guard import (
    EXAMPLE_OF_A_RUN,
    AuthorizedRun,
    answer_once,
    end_lease,
    enter_run,
    with_counted_write,
)
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import task_budgets, task_rows, task_runs
from lifesign.storage.tasks.task_rows import StoredTask
from lifesign.storage.tasks.task_runs import StoredReport

MAX_REPORTS = 1_000
"""Number of the latest reports that are kept per task."""
MAX_CHILDREN = 1_000
"""Maximum of children per task."""
MAX_WRITE_BYTES = 262_144
"""Maximum size of a body with a report and an output."""


def report_progress(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Store a progress report; the first one marks the task as running."""
    entered = enter_run(transaction, call)
    if not isinstance(entered, AuthorizedRun):
        return entered
    task, drafts = _with_report(
        entered, with_counted_write(entered.task), call.body_as(ProgressWrite).report, call
    )
    if task.status == TaskStatus.ASSIGNED:
        begun = Move(task=task, signal=TaskSignal.REPORTED)
        task, more = move(entered.transaction, begun, call.actor)
        drafts += more
    else:
        task_rows.store(entered.transaction, [task])
    return _reply(entered, call, task, drafts)


def mark_complete(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Store the result of the task, end the lease, and let the task wait for a review."""
    entered = enter_run(transaction, call, is_end=True)
    if not isinstance(entered, AuthorizedRun):
        return entered
    written = call.body_as(CompletionWrite)
    completed = Move(
        task=replace(with_counted_write(entered.task), output=to_json(written.output).decode()),
        signal=TaskSignal.COMPLETED,
        exit_reason=ExitReason.COMPLETED,
    )
    return _ended(entered, call, completed, written.report)


def request_human_help(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Hand the task to people with a question, and end the lease."""
    entered = enter_run(transaction, call, is_end=True)
    if not isinstance(entered, AuthorizedRun):
        return entered
    written = call.body_as(HelpWrite)
    to_people = Move(
        task=with_counted_write(entered.task),
        signal=TaskSignal.HELP_REQUESTED,
        exit_reason=ExitReason.COMPLETED,
        explanation=written.reason,
    )
    return _ended(entered, call, to_people, written.report)


def release_run(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """End a run without a result. The task is queued again, or handed to people after its last attempt."""
    entered = enter_run(transaction, call, is_end=True)
    if not isinstance(entered, AuthorizedRun):
        return entered
    written = call.body_as(RunRelease)
    failed = Move(
        task=with_counted_write(entered.task),
        signal=TaskSignal.RUN_FAILED,
        exit_reason=written.exit_reason,
        exit_code=written.exit_code,
        detail=written.detail,
    )
    return _ended(entered, call, failed)


def delegate_subtask(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Create a child task in the queue, with a part of the task's budget; the caller keeps the task."""
    entered = enter_run(transaction, call)
    if not isinstance(entered, AuthorizedRun):
        return entered
    transaction, task = entered.transaction, with_counted_write(entered.task)
    if task_rows.count_children(transaction, task.number) >= MAX_CHILDREN:
        raise TooMany(f"children of {task.task_id}", MAX_CHILDREN)
    wanted = call.body_as(DelegationWrite).task
    envelope = wanted.budget.amount()
    stored = task_budgets.find(transaction, task.number, to_change=True)
    task_budgets.store(transaction, replace(stored, budget=stored.budget.carve(envelope)))
    child, drafts = add_task(transaction, wanted, envelope, TaskOrigin(actor=call.actor, parent=task))
    task_rows.store(transaction, [task])
    return _reply(entered, call, task, [*drafts], child_id=child.task_id, status=201)


def _ended(
    entered: AuthorizedRun, call: Call, moved: Move, report: ProgressReport | None = None
) -> OperationReply:
    """End the run and its lease, with a last report if there is one."""
    drafts: list[EventDraft] = []
    if report is not None:
        task, drafts = _with_report(entered, moved.task, report, call)
        moved = replace(moved, task=task)
    drafts += end_lease(entered, EndReason.RELEASED, call.actor)
    task, more = move(entered.transaction, replace(moved, run_id=entered.run.run_id), call.actor)
    return _reply(entered, call, task, [*drafts, *more])


def _with_report(
    entered: AuthorizedRun, task: StoredTask, report: ProgressReport, call: Call
) -> tuple[StoredTask, list[EventDraft]]:
    """Keep a report; return the task with it, to be stored, and the event."""
    now_s = entered.transaction.now_s
    stored_report = StoredReport(
        task=task.number,
        number=task.reports + 1,
        run_id=entered.run.run_id,
        reported_at_s=now_s,
        report=to_json(report.members()).decode(),
    )
    task_runs.add_report(entered.transaction, stored_report, MAX_REPORTS)
    task = replace(task, reports=stored_report.number, progress_at_s=now_s)
    return task, [task_events.reported(task, stored_report, call.actor)]


def _reply(
    entered: AuthorizedRun,
    call: Call,
    task: StoredTask,
    drafts: list[EventDraft],
    *,
    child_id: str | None = None,
    status: int = 200,
) -> OperationReply:
    answer = TaskWriteResult(
        task_id=task.task_id,
        run_id=entered.run.run_id,
        status=TaskStatus(task.status),
        report=task.reports if task.reports > entered.task.reports else None,
        child_id=child_id,
    )
    reply = answer_once(entered, call, answer, status=status)
    event_log.append(entered.transaction, drafts)
    return reply


OPERATIONS = (
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/progress",
        summary="Report progress on a held task",
        action=Permission.WORK_TASKS,
        function=report_progress,
        body=ProgressWrite,
        example={
            **EXAMPLE_OF_A_RUN,
            "idempotency_key": "report-1",
            "report": {
                "summary": "Drafted the hero section",
                "attempted": [{"action": "fetch brand assets", "outcome": "success"}],
                "nextStep": "Write three variants of the hero copy",
            },
        },
        answer=TaskWriteResult,
        errors=(404, 409, 410, 412),
        headers=("X-Agent-Incarnation",),
        max_body_bytes=MAX_WRITE_BYTES,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/complete",
        summary="Submit the result of a task; its lease ends, and the result waits for a review",
        action=Permission.WORK_TASKS,
        function=mark_complete,
        body=CompletionWrite,
        example={
            **EXAMPLE_OF_A_RUN,
            "idempotency_key": "done",
            "output": {"page": "index.html"},
        },
        answer=TaskWriteResult,
        errors=(404, 410, 412),
        headers=("X-Agent-Incarnation",),
        max_body_bytes=MAX_WRITE_BYTES,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/help",
        summary="Hand a task to people; its lease ends",
        action=Permission.WORK_TASKS,
        function=request_human_help,
        body=HelpWrite,
        example={
            **EXAMPLE_OF_A_RUN,
            "idempotency_key": "help",
            "reason": "Which logo is the current one?",
        },
        answer=TaskWriteResult,
        errors=(404, 410, 412),
        headers=("X-Agent-Incarnation",),
        max_body_bytes=MAX_WRITE_BYTES,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/delegate",
        summary="Delegate a part of a task, which the task's budget pays for",
        action=Permission.WORK_TASKS,
        function=delegate_subtask,
        body=DelegationWrite,
        example={
            **EXAMPLE_OF_A_RUN,
            "idempotency_key": "child-1",
            "task": {"title": "Crop the photographs", "budget": {"tokens": 20000, "usd": 0.25}},
        },
        answer=TaskWriteResult,
        status=201,
        errors=(402, 404, 409, 410, 412),
        headers=("X-Agent-Incarnation",),
        max_body_bytes=MAX_TASK_BYTES,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/release",
        summary="End a run without a result; its task is attempted again, or handed to people",
        action=Permission.WORK_TASKS,
        function=release_run,
        body=RunRelease,
        example={
            **EXAMPLE_OF_A_RUN,
            "idempotency_key": "end",
            "exit_reason": "crash",
            "exit_code": 1,
        },
        answer=TaskWriteResult,
        errors=(404, 410, 412),
        headers=("X-Agent-Incarnation",),
    ),
)
