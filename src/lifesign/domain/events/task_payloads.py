"""Payloads of events about tasks."""

from typing import Annotated

from pydantic import Field

from lifesign.domain.events.payload_fields import Moment, Number, OwnId, Payload, Positive
from lifesign.domain.health.document import INTEGRAL_FLOAT
from lifesign.domain.tasks.task_states import ExitReason, TaskSignal, TaskStatus


class TaskCreated(Payload):
    """A task was created. The event contains neither its work nor the agents that may do it."""

    task_id: OwnId
    parent_id: OwnId | None = None
    """Parent task, from whose budget the task's budget was taken."""
    fix_of: OwnId | None = None
    """Task whose rejected work this task fixes."""
    tokens: Number
    """Tokens of the budget, like `micro_usd`."""
    micro_usd: Number


class TaskLifecycle(Payload):
    """A transition of a task. The events before this one contain changes of its lease."""

    task_id: OwnId
    previous_status: TaskStatus
    new_status: TaskStatus
    signal: TaskSignal
    run_id: OwnId | None = None
    """Run that begins or ends with the change."""
    exit_reason: ExitReason | None = None
    """Reason for the end of the run."""
    exit_code: Annotated[int, Field(ge=-255, le=255, strict=True), INTEGRAL_FLOAT] | None = None
    not_before: Moment | None = None
    """Earliest time of the next claim, if the task is attempted again."""


class TaskReported(Payload):
    """A progress report was written; the event does not contain it."""

    task_id: OwnId
    run_id: OwnId
    report: Positive
    """Number of the report within the task, counted over all its runs."""


class TaskBudgetChanged(Payload):
    """An envelope was topped up."""

    task_id: OwnId
    tokens: Number
    """New tokens of the budget, like `micro_usd`."""
    micro_usd: Number
