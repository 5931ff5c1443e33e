"""Creation of tasks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic_core import to_json
from ulid import ULID

from lifesign.domain.access.permissions import Permission, Principal
from lifesign.domain.events.event import EventDraft
from lifesign.domain.models.tasks import TaskCreation, TaskRecord, TaskRequest
from lifesign.domain.tasks.budget import NO_AMOUNT, Amount, Budget
from lifesign.domain.tasks.task_states import TaskStatus, task_resource
from lifesign.registry.errors import KeyReused
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.task_records import record_for
from lifesign.registry.status_changes import task_events
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import leases, task_budgets, task_creations, task_rows
from lifesign.storage.tasks.task_budgets import StoredBudget
from lifesign.storage.tasks.task_creations import StoredCreation
from lifesign.storage.tasks.task_rows import StoredTask

PATH = "/api/v1/tasks"
MAX_TASK_BYTES = 131_072
"""Maximum size of a body that describes a task, including its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrigin:
    """Origin of a new task."""

    actor: str
    parent: StoredTask | None = None
    """Out of its budget the envelope was carved."""
    fix_of: StoredTask | None = None


def create_task(transaction: Transaction, call: Call) -> OperationReply:
    """Queue a new task. A repeated request with the same idempotency key returns the same task."""
    wanted = call.body_as(TaskCreation)
    creation = None
    if wanted.idempotency_key is not None:
        creation = StoredCreation(
            creator=call.actor, idempotency_key=wanted.idempotency_key, digest=_digest(wanted)
        )
        known = task_creations.take(transaction, creation)
        if known is not None:
            return _created_before(transaction, known, creation, call.caller)
    task, drafts = add_task(transaction, wanted, wanted.budget.amount(), TaskOrigin(actor=call.actor))
    if creation is not None:
        task_creations.set_task(transaction, creation, task.number)
    event_log.append(transaction, drafts)
    return _created(transaction, task, call.caller)


def _created_before(
    transaction: Transaction, known: StoredCreation, wanted: StoredCreation, caller: Principal
) -> OperationReply:
    if known.digest != wanted.digest or known.task is None:
        raise KeyReused(wanted.idempotency_key)
    return _created(transaction, task_rows.find(transaction, known.task), caller)


def _created(transaction: Transaction, task: StoredTask, caller: Principal) -> OperationReply:
    headers = {"Location": f"{PATH}/{task.task_id}"}
    return OperationReply(content=record_for(transaction, task, caller), status=201, headers=headers)


def _digest(wanted: TaskCreation) -> str:
    """Return a digest that distinguishes requests, independent of their notation."""
    members = wanted.model_dump(mode="json", exclude={"idempotency_key"})
    return sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()


def add_task(
    transaction: Transaction, wanted: TaskRequest, envelope: Amount, origin: TaskOrigin
) -> tuple[StoredTask, Sequence[EventDraft]]:
    """Store a new task, the row of its lease and its budget; return the task and its event."""
    task_id = f"task_{str(ULID()).lower()}"
    (number,) = leases.lock(transaction, to_hold=[task_resource(task_id)])
    now_s = transaction.now_s
    parent, fix_of = origin.parent, origin.fix_of
    task = StoredTask(
        number=number,
        task_id=task_id,
        title=wanted.title,
        status=TaskStatus.QUEUED.value,
        status_since_s=now_s,
        explanation=None,
        agent_id=wanted.agent_id,
        role_id=wanted.role_id,
        capabilities=list(dict.fromkeys(wanted.capabilities)),
        input=to_json(wanted.input).decode(),
        output=None,
        lease_s=wanted.lease_seconds,
        max_attempts=wanted.max_attempts,
        backoff_s=wanted.backoff_seconds,
        attempts=0,
        lost_runs=0,
        runs=0,
        reports=0,
        writes=0,
        not_before_s=None,
        progress_at_s=None,
        parent=None if parent is None else parent.number,
        fix_of=None if fix_of is None else fix_of.number,
        created_by=origin.actor,
        created_at_s=now_s,
    )
    task_rows.add(transaction, task)
    budget = Budget(envelope=envelope)
    carved = NO_AMOUNT if parent is None else envelope
    task_budgets.add(transaction, StoredBudget(task=number, budget=budget, carved=carved))
    draft = task_events.created(
        task,
        budget,
        parent_id=None if parent is None else parent.task_id,
        fix_of=None if fix_of is None else fix_of.task_id,
        actor=origin.actor,
    )
    return task, [draft]


OPERATIONS = (
    Operation(
        method="POST",
        path=PATH,
        summary="Create a task",
        action=Permission.CREATE_TASKS,
        function=create_task,
        body=TaskCreation,
        example={
            "title": "Write the landing page",
            "role_id": "writers",
            "input": {"brief": "https://example.com/brief"},
            "budget": {"tokens": 250000, "usd": 1.5},
        },
        answer=TaskRecord,
        status=201,
        max_body_bytes=MAX_TASK_BYTES,
    ),
)
