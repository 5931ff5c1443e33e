"""Decisions of people about a task that its agent handed off (protocol 6.7)."""

from dataclasses import replace

from pydantic_core import to_json

from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.models.tasks import HandoffResolution, TaskRecord
from lifesign.domain.tasks.task_states import TaskSignal
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.task_records import record_for
from lifesign.registry.status_changes.task_status import Move, move
from lifesign.registry.tasks.create_task import MAX_TASK_BYTES, PATH
from lifesign.registry.tasks.run_guard import lock_task
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log


def resolve_handoff(transaction: Transaction, call: Call) -> OperationReply:
    """Decide how a task that was handed to people continues."""
    locked = lock_task(transaction, call)
    transaction, task = locked.transaction, locked.task
    body = call.body_as(HandoffResolution)
    is_done = body.resolution == "done"
    if body.output is not None:
        if not is_done:
            expected = "expected output only for a task that is done"
            raise InvalidRequest([Finding("output_too_soon", "/output", expected)])
        task = replace(task, output=to_json(body.output).decode())
    signal = TaskSignal.RESOLVED if is_done else TaskSignal.REQUEUED
    task, drafts = move(transaction, Move(task=task, signal=signal, explanation=body.comment), call.actor)
    event_log.append(transaction, drafts)
    return OperationReply(content=record_for(transaction, task, call.caller))


RESOLVE_HANDOFF = Operation(
    method="POST",
    path=f"{PATH}/{{task_id}}/resolve",
    summary="Decide how a task that was handed to people continues",
    action=Permission.CREATE_TASKS,
    function=resolve_handoff,
    body=HandoffResolution,
    example={"resolution": "requeue", "comment": "logo-2026.svg"},
    answer=TaskRecord,
    errors=(404, 409),
    max_body_bytes=MAX_TASK_BYTES,
)
