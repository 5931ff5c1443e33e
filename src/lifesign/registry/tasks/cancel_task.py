"""Cancelling a task, also one that an agent holds (protocol 6.7)."""

from dataclasses import replace

from lifesign.domain.access.permissions import Permission
from lifesign.domain.models.tasks import TaskCancellation, TaskRecord
from lifesign.domain.tasks.lease import EndReason
from lifesign.domain.tasks.task_states import HELD, ExitReason, TaskSignal
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.task_records import record_for
from lifesign.registry.status_changes.task_status import Move, move
from lifesign.registry.tasks.create_task import PATH
from lifesign.registry.tasks.run_guard import end_lease, lock_task
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import task_runs


def cancel_task(transaction: Transaction, call: Call) -> OperationReply:
    """Cancel a task that is queued, held, or with people. The next write of its holder is refused."""
    locked = lock_task(transaction, call)
    transaction, task = locked.transaction, locked.task
    cancelled = Move(
        task=task, signal=TaskSignal.CANCELLED, explanation=call.body_as(TaskCancellation).reason
    )
    if task.status in HELD:
        run_ids = task_runs.last_ids(transaction, [(task.number, task.runs)])
        cancelled = replace(cancelled, run_id=run_ids.get(task.number), exit_reason=ExitReason.KILLED)
        ended = end_lease(locked, EndReason.REVOKED, call.actor)
    else:
        ended = []
    task, drafts = move(transaction, cancelled, call.actor)
    event_log.append(transaction, [*ended, *drafts])
    return OperationReply(content=record_for(transaction, task, call.caller))


CANCEL_TASK = Operation(
    method="POST",
    path=f"{PATH}/{{task_id}}/cancel",
    summary="Cancel a task that is not finished; if it is held, its lease ends",
    action=Permission.CREATE_TASKS,
    function=cancel_task,
    body=TaskCancellation,
    example={"reason": "no longer needed"},
    answer=TaskRecord,
    errors=(404, 409),
)
