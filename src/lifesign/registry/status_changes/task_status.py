"""Transitions of tasks: run, budget and place in the queue.

All changes belong to the caller's transaction, which has locked the row of the lease and ended the lease if
one ran. No other module changes a task's status.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from lifesign.domain.events.event import EventDraft
from lifesign.domain.tasks.budget import NO_AMOUNT, ChildCharge
from lifesign.domain.tasks.lease import Claim, EndReason
from lifesign.domain.tasks.lease_id import number_in
from lifesign.domain.tasks.task_states import (
    FINISHED,
    HELD,
    ExitReason,
    RetryPolicy,
    TaskSignal,
    TaskStatus,
    after_failure,
    exit_reason_of,
    is_lost,
    most_lost_runs,
    status_after,
    task_in,
)
from lifesign.registry.status_changes import task_events
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import task_budgets, task_comments, task_rows, task_runs
from lifesign.storage.tasks.task_comments import StoredComment
from lifesign.storage.tasks.task_rows import StoredTask
from lifesign.storage.tasks.task_runs import StoredRunEnd

MAX_COMMENTS = 20
"""Number of the latest comments that are kept per task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Transition of one task."""

    task: StoredTask
    """The task in its stored form."""
    signal: TaskSignal
    run_id: str | None = None
    """Run that ends with it."""
    exit_reason: ExitReason | None = None
    exit_code: int | None = None
    detail: str | None = None
    """Failure of that run, as its holder reported it."""
    explanation: str | None = None
    """Comment on the decision by a person or an agent; kept among the task's comments."""


def move(transaction: Transaction, moved: Move, actor: str) -> tuple[StoredTask, list[EventDraft]]:
    """Carry out one move; return the task as it is then, and the events in their order.

    InvalidTaskTransition if the table has no such way; then nothing is changed.
    """
    ((task, drafts),) = move_all(transaction, [moved], actor)
    return task, drafts


def move_all(
    transaction: Transaction, moves: Sequence[Move], actor: str
) -> list[tuple[StoredTask, list[EventDraft]]]:
    """Carry out moves of different tasks, with a few statements for all of them."""
    now_s = transaction.now_s
    after = [_walk(one, now_s, actor) for one in moves]
    ends = [
        StoredRunEnd(
            task=one.task.number,
            number=one.task.runs,
            ended_at_s=now_s,
            exit_reason=one.exit_reason,
            exit_code=one.exit_code,
        )
        for one in moves
        if one.exit_reason is not None
    ]
    task_runs.end(transaction, ends)
    over = [end.task for end in ends]
    for stored in task_budgets.find_reserving(transaction, over):
        freed = replace(stored.budget, reserved=NO_AMOUNT)
        task_budgets.store(transaction, replace(stored, budget=freed))
    task_budgets.forget_calls(transaction, over)
    comments = [_comment(one, now_s, actor) for one in moves if one.explanation is not None]
    task_comments.add(transaction, comments, MAX_COMMENTS)
    task_rows.store(transaction, [task for task, _ in after])
    _charge_parents(transaction, [task for task, _ in after if task.status in FINISHED])
    return after


def lose_tasks(transaction: Transaction, lost: Iterable[Claim], actor: str) -> dict[str, list[EventDraft]]:
    """Move tasks whose leases expired or were revoked; return the events of each, by resource.

    The leases are locked, and stored as ended. Resources that are no tasks of the registry are ignored.
    """
    ours = {
        number_in(claim.lease_id): claim
        for claim in lost
        if claim.lease_id is not None and task_in(claim.resource) is not None
    }
    if not ours:
        # Nearly all leases are of this kind: a query for each would double the cost of a release.
        return {}
    numbers = sorted(number for number in ours if number is not None)
    leased_tasks = [task for task in task_rows.find_many(transaction, numbers) if task.status in HELD]
    run_ids = task_runs.last_ids(transaction, [(task.number, task.runs) for task in leased_tasks])
    moves = [
        Move(
            task=task,
            signal=TaskSignal.RUN_FAILED,
            run_id=run_ids.get(task.number),
            exit_reason=exit_reason_of(ours[task.number].end_reason or EndReason.EXPIRED),
        )
        for task in leased_tasks
    ]
    moved = move_all(transaction, moves, actor)
    return {ours[task.number].resource: drafts for task, drafts in moved}


def _walk(moved: Move, now_s: float, actor: str) -> tuple[StoredTask, list[EventDraft]]:
    """Return the task after the move, and an event for each step."""
    task, draft = _step(moved, now_s, actor)
    if task.status != TaskStatus.FAILED:
        return task, [draft]
    policy = RetryPolicy(max_attempts=task.max_attempts, backoff_seconds=task.backoff_s)
    following = after_failure(
        moved.exit_reason or ExitReason.CRASH,
        task.attempts - task.lost_runs,
        policy,
        lost_runs=task.lost_runs,
    )
    not_before_s = now_s + following.wait_s if following.wait_s else None
    next_move = Move(task=task, signal=following.signal, explanation=_move_reason(moved, task, policy))
    task, next_draft = _step(next_move, now_s, actor, not_before_s=not_before_s)
    return task, [draft, next_draft]


def _step(
    moved: Move, now_s: float, actor: str, *, not_before_s: float | None = None
) -> tuple[StoredTask, EventDraft]:
    task, signal = moved.task, moved.signal
    status = status_after(TaskStatus(task.status), signal)
    is_grant, is_anew = signal is TaskSignal.GRANTED, signal is TaskSignal.REQUEUED
    is_lost_run = signal is TaskSignal.RUN_FAILED and is_lost(moved.exit_reason)
    after = replace(
        task,
        status=status.value,
        status_since_s=now_s,
        explanation=moved.explanation,
        attempts=0 if is_anew else task.attempts + is_grant,
        lost_runs=0 if is_anew else task.lost_runs + is_lost_run,
        runs=task.runs + is_grant,
        not_before_s=not_before_s,
        progress_at_s=now_s if is_grant else task.progress_at_s,
    )
    draft = task_events.lifecycle(
        task.status,
        after,
        signal,
        actor,
        run_id=moved.run_id,
        exit_reason=moved.exit_reason,
        exit_code=moved.exit_code,
    )
    return after, draft


def _move_reason(moved: Move, task: StoredTask, policy: RetryPolicy) -> str:
    """Return in words why a task was queued again, or waits for people."""
    code = "" if moved.exit_code is None else f" (exit code {moved.exit_code})"
    counted = f"attempt {task.attempts - task.lost_runs} of {policy.max_attempts}"
    if is_lost(moved.exit_reason):
        counted = f"lost run {task.lost_runs} of at most {most_lost_runs(policy)}"
    detail = "" if moved.detail is None else f": {moved.detail}"
    return f"run {task.runs}, {counted}: {moved.exit_reason}{code}{detail}"


def _comment(moved: Move, now_s: float, actor: str) -> StoredComment:
    return StoredComment(
        task=moved.task.number,
        signal=moved.signal,
        comment=moved.explanation or "",
        written_by=actor,
        written_at_s=now_s,
    )


def _charge_parents(transaction: Transaction, finished: Sequence[StoredTask]) -> None:
    """Return the remaining budgets of tasks that finish now to their parents.

    Children are younger than their parents and come first, so that their budgets are locked first.
    """
    uncharged = {task.number for task in finished}
    for task in sorted(finished, key=lambda task: task.number, reverse=True):
        uncharged.remove(task.number)
        if task.parent is not None:
            _charge_ancestors(transaction, task, uncharged)


def _charge_ancestors(transaction: Transaction, task: StoredTask, uncharged: Collection[int]) -> None:
    """Charge a task's parent with its costs, and each further ancestor, up to the first unfinished one.

    A finished parent was charged to its own parent before, unless it is `uncharged`.
    """
    child = task_budgets.find(transaction, task.number, to_change=True)
    before = ChildCharge(settled=NO_AMOUNT, delegated=child.carved)
    while task.parent is not None:
        parent = task_budgets.find(transaction, task.parent, to_change=True)
        budget = parent.budget.recharge(before, child.budget.charge_when_finished(child.carved))
        before = parent.budget.charge_when_finished(parent.carved)
        child = replace(parent, budget=budget)
        task_budgets.store(transaction, child)
        task = task_rows.find(transaction, task.parent)
        if task.status not in FINISHED or task.number in uncharged:
            return
