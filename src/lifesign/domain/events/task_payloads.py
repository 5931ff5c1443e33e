"""Payloads of events about tasks."""

from typing import Annotated

from pydantic import Field

from lifesign.domain.events.payload_fields import Moment, Number, OwnId, Payload, Positive
from lifesign.domain.health.document import INTEGRAL_FLOAT
from lifesign.domain.tasks.task_states import ExitReason, TaskSignal, TaskStatus


class TaskCreated(Payload):
    """A task was created. The event does not contain the task's input, nor which agents may claim it."""

    task_id: OwnId
    parent_id: OwnId | None = None
    """Parent task, from whose budget the budget of this task was taken; absent if there is no parent."""
    fix_of: OwnId | None = None
    """Task whose rejected work this task fixes."""
    tokens: Number
    """Tokens in the budget."""
    micro_usd: Number
    """US dollars in the budget, in millionths."""


class TaskLifecycle(Payload):
    """The status of a task changed. If its lease changed too, the event of the lease precedes this one."""

    task_id: OwnId
    previous_status: TaskStatus
    new_status: TaskStatus
    signal: TaskSignal
    run_id: OwnId | None = None
    """Run that begins or ends with the change."""
    exit_reason: ExitReason | None = None
    """Reason for the end of the run; absent if no run ended."""
    exit_code: Annotated[int, Field(ge=-255, le=255, strict=True), INTEGRAL_FLOAT] | None = None
    not_before: Moment | None = None
    """Earliest time of the next claim, if the task is attempted again."""


class TaskReported(Payload):
    """A progress report was stored. The event does not contain the report."""

    task_id: OwnId
    run_id: OwnId
    report: Positive
    """Number of the report within the task, counted over all its runs."""


class TaskBudgetChanged(Payload):
    """The budget of a task was increased."""

    task_id: OwnId
    tokens: Number
    """Tokens in the budget after the change."""
    micro_usd: Number
    """US dollars in the budget after the change, in millionths."""
