"""Reviews of a result: it is accepted, or rejected with a new task that fixes it (protocol 6.7)."""

from dataclasses import replace

from pydantic_core import from_json

from lifesign.domain.access.permissions import Permission, may, require
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest, NotAllowed
from lifesign.domain.events.event import EventDraft
from lifesign.domain.models.tasks import ReviewAnswer, TaskRequest, TaskReview
from lifesign.domain.tasks.budget import Amount
from lifesign.domain.tasks.lease import Refusal
from lifesign.domain.tasks.task_states import FINISHED, TaskSignal
from lifesign.errors import LifesignError
from lifesign.registry.errors import TaskNotFound, TokenRequired
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.task_records import summary
from lifesign.registry.status_changes.task_status import MAX_COMMENTS, Move, move
from lifesign.registry.tasks.create_task import MAX_TASK_BYTES, PATH, TaskOrigin, add_task
from lifesign.registry.tasks.run_guard import RunGuard, authorize_run, has_worked, lock_task, rejected
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import leases, task_budgets, task_comments, task_rows
from lifesign.storage.tasks.task_rows import StoredTask


def review_task(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Accept the result of a task, or reject it. In both cases the task is done.

    A rejection creates a new task for the fix. The caller is a coordinator, an admin, or the agent that holds
    the parent task.
    """
    try:
        locked = lock_task(transaction, call, with_parent=True)
    except TaskNotFound:
        # Same as for a task without a parent.
        require(call.caller, Permission.CREATE_TASKS)
        raise
    refusal = _parent_refusal(locked, call)
    if refusal is not None:
        return refusal
    transaction, task = locked.transaction, locked.task
    body = call.body_as(TaskReview)
    if body.verdict == "accept" and body.fix is not None:
        expected = "expected fix only for a rejected result"
        raise InvalidRequest([Finding("nothing_to_fix", "/fix", expected)])
    signal = TaskSignal.ACCEPTED if body.verdict == "accept" else TaskSignal.REJECTED
    task, drafts = move(transaction, Move(task=task, signal=signal, explanation=body.comment), call.actor)
    fix = None
    if body.verdict == "reject":
        fix, more = _fixed(transaction, task, body.fix, call)
        drafts += more
    event_log.append(transaction, drafts)
    answer = ReviewAnswer(
        task=summary(transaction, task), fix=None if fix is None else summary(transaction, fix)
    )
    return OperationReply(content=answer)


def _parent_refusal(locked: RunGuard, call: Call) -> LifesignError | None:
    """Return why an agent may not review this; None for coordinators, and for the parent's holder."""
    if may(call.caller, Permission.CREATE_TASKS):
        return None
    require(call.caller, Permission.WORK_TASKS, call.caller.agent_id)
    review, transaction = call.body_as(TaskReview), locked.transaction
    number = locked.task.parent
    claim = None if number is None else leases.lock(transaction, numbers=[number])[number]
    if number is None or claim is None or not has_worked(transaction, call, claim, number):
        # As for a task that does not exist.
        raise NotAllowed(call.caller.role, Permission.CREATE_TASKS, None)
    if review.fencing_token is None or review.run_id is None:
        raise TokenRequired
    parent = task_rows.find(transaction, number)
    token, run_id = review.fencing_token, review.run_id
    run = authorize_run(transaction, parent, claim, call, token=token, run_id=run_id)
    if isinstance(run, Refusal):
        return rejected(transaction, run, parent, call, token=token, run_id=run_id)
    return None


def _fixed(
    transaction: Transaction, task: StoredTask, wanted: TaskRequest | None, call: Call
) -> tuple[StoredTask, list[EventDraft]]:
    """Put the task for the fix into the queue: a child of the same parent, while that can pay for it."""
    parent = None if task.parent is None else task_rows.find(transaction, task.parent)
    if parent is not None and parent.status in FINISHED:
        parent = None
    before = task_budgets.find(transaction, task.number).budget.envelope
    envelope = before if wanted is None else wanted.budget.amount()
    if parent is not None:
        envelope = _carved(transaction, parent, envelope, is_asked_for=wanted is not None)
    fix, drafts = add_task(
        transaction,
        wanted or _repeated_task(task),
        envelope,
        TaskOrigin(actor=call.actor, parent=parent, fix_of=task),
    )
    # The holder of the fix has to know the comments on the work that it repairs.
    comments = task_comments.of_task(transaction, task.number)[::-1]
    copies = [replace(comment, task=fix.number) for comment in comments]
    task_comments.add(transaction, copies, MAX_COMMENTS)
    return fix, [*drafts]


def _carved(transaction: Transaction, parent: StoredTask, envelope: Amount, *, is_asked_for: bool) -> Amount:
    """Take the budget of a fix out of its parent's; an absent limit means all that is left."""
    stored = task_budgets.find(transaction, parent.number, to_change=True)
    envelope = envelope if is_asked_for else envelope.at_most(stored.budget.room)
    task_budgets.store(transaction, replace(stored, budget=stored.budget.carve(envelope)))
    return envelope


def _repeated_task(task: StoredTask) -> TaskRequest:
    """Return a task like the one whose result was rejected; its comments contain the reason."""
    # Stored values were validated when they were stored, possibly by laxer rules.
    return TaskRequest.model_construct(
        title=task.title,
        input=from_json(task.input),
        agent_id=task.agent_id,
        role_id=task.role_id,
        capabilities=list(task.capabilities),
        lease_seconds=task.lease_s,
        max_attempts=task.max_attempts,
        backoff_seconds=task.backoff_s,
    )


REVIEW_TASK = Operation(
    method="POST",
    path=f"{PATH}/{{task_id}}/review",
    summary="Accept the result of a task, or reject it and create a task for the fix",
    action=None,
    one_of=(Permission.CREATE_TASKS, Permission.WORK_TASKS),
    function=review_task,
    body=TaskReview,
    example={"verdict": "reject", "comment": "The logo is last year's."},
    answer=ReviewAnswer,
    errors=(402, 404, 409, 412, 428),
    max_body_bytes=MAX_TASK_BYTES,
)
