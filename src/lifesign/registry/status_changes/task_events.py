"""Events about tasks.

They contain creation, transitions, reports and the size of the budget. Input, results and costs are only
returned to callers that read the task. None of these events names an agent: they stay when an agent is
erased.
"""

from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.task_payloads import TaskBudgetChanged, TaskCreated, TaskLifecycle, TaskReported
from lifesign.domain.models.base import moment
from lifesign.domain.tasks.budget import Budget
from lifesign.domain.tasks.task_states import ExitReason, TaskSignal, TaskStatus
from lifesign.storage.tasks.task_rows import StoredTask
from lifesign.storage.tasks.task_runs import StoredReport


def created(
    task: StoredTask, budget: Budget, *, parent_id: str | None, fix_of: str | None, actor: str
) -> EventDraft:
    """Return the event of a new task."""
    payload = TaskCreated(
        task_id=task.task_id,
        parent_id=parent_id,
        fix_of=fix_of,
        tokens=budget.envelope.tokens,
        micro_usd=budget.envelope.micro_usd,
    )
    return EventDraft(type=EventType.TASK_CREATED, actor=actor, payload=payload)


def lifecycle(
    previous_status: str,
    task: StoredTask,
    signal: TaskSignal,
    actor: str,
    *,
    run_id: str | None = None,
    exit_reason: ExitReason | None = None,
    exit_code: int | None = None,
) -> EventDraft:
    """Return the event of one transition, with the task as it is afterwards."""
    payload = TaskLifecycle(
        task_id=task.task_id,
        previous_status=TaskStatus(previous_status),
        new_status=TaskStatus(task.status),
        signal=signal,
        run_id=run_id,
        exit_reason=exit_reason,
        exit_code=exit_code,
        not_before=None if task.not_before_s is None else moment(task.not_before_s),
    )
    return EventDraft(type=EventType.TASK_LIFECYCLE, actor=actor, payload=payload)


def reported(task: StoredTask, report: StoredReport, actor: str) -> EventDraft:
    """Return the event of a progress report."""
    payload = TaskReported(task_id=task.task_id, run_id=report.run_id, report=report.number)
    return EventDraft(type=EventType.TASK_REPORTED, actor=actor, payload=payload)


def budget_changed(task: StoredTask, budget: Budget, actor: str) -> EventDraft:
    """Return the event of an increased budget."""
    payload = TaskBudgetChanged(
        task_id=task.task_id, tokens=budget.envelope.tokens, micro_usd=budget.envelope.micro_usd
    )
    return EventDraft(type=EventType.TASK_BUDGET_CHANGED, actor=actor, payload=payload)
