"""Additions to the budget of a task (protocol 6.7)."""

from dataclasses import replace

from lifesign.domain.access.permissions import Permission
from lifesign.domain.errors import InvalidTaskTransition
from lifesign.domain.models.tasks import BudgetTopUp, TaskRecord
from lifesign.domain.tasks.task_states import FINISHED
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.task_records import record_for
from lifesign.registry.status_changes import task_events
from lifesign.registry.tasks.create_task import PATH
from lifesign.registry.tasks.run_guard import lock_task
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import task_budgets


def top_up(transaction: Transaction, call: Call) -> OperationReply:
    """Add to the budget of a task."""
    locked = lock_task(transaction, call)
    transaction, task = locked.transaction, locked.task
    if task.status in FINISHED:
        raise InvalidTaskTransition(task.status, "topped_up")
    stored = task_budgets.find(transaction, task.number, to_change=True)
    budget = stored.budget.top_up(call.body_as(BudgetTopUp).add.amount())
    task_budgets.store(transaction, replace(stored, budget=budget))
    event_log.append(transaction, [task_events.budget_changed(task, budget, call.actor)])
    return OperationReply(content=record_for(transaction, task, call.caller))


TOP_UP = Operation(
    method="POST",
    path=f"{PATH}/{{task_id}}/budget",
    summary="Add to a task's budget",
    action=Permission.CREATE_TASKS,
    function=top_up,
    body=BudgetTopUp,
    example={"add": {"tokens": 100000, "usd": 0.5}},
    answer=TaskRecord,
    errors=(404, 409),
)
