"""Authorization of writes in the name of a run (protocol 6.4, 6.8).

The lease is locked and checked in the transaction of the write. Only its holder may write to the task. A
repeated write gets its first answer, even if the lease has ended since.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from lifesign.domain.access.permissions import Permission, require
from lifesign.domain.events.event import EventDraft
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.tasks import FencedWrite, RunWrite
from lifesign.domain.tasks.lease import Claim, EndReason, Refusal, RefusalCode, check_write, ended
from lifesign.domain.tasks.task_states import task_resource
from lifesign.errors import LifesignError
from lifesign.registry.errors import AgentGone, KeyReused, RunOfAnotherTask, TaskNotFound, TooMany
from lifesign.registry.leases.hold_lease import check_end, holder_of, refusal_for
from lifesign.registry.request_handling.execution import incarnation_in
from lifesign.registry.request_handling.operation import Call, OperationReply
from lifesign.registry.serializers.lease_records import refused
from lifesign.registry.status_changes import lease_events
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import lease_requesters, leases, task_rows, task_runs
from lifesign.storage.tasks.lease_requesters import Holder
from lifesign.storage.tasks.task_rows import StoredTask
from lifesign.storage.tasks.task_runs import StoredRunWrite, StoredTaskRun

MAX_WRITES = 10_000
"""Maximum of writes per task whose answers are kept; writes that end a run are accepted beyond it."""

EXAMPLE_OF_A_RUN: Final[Mapping[str, Any]] = MappingProxyType(
    {"run_id": "run_01kgxw0f7t3v2m9q8s4r5n6b02", "fencing_token": 4294967297}
)
"""Members of an example of a body that each write of a run has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGuard:
    """A task with a locked lease row, and the time after the lock."""

    transaction: Transaction
    task: StoredTask
    claim: Claim
    holders: Mapping[str, Holder]
    """Agents that are locked too: the caller and the holder of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedRun(RunGuard):
    """A run that may write."""

    run: StoredTaskRun


def lock_task(transaction: Transaction, call: Call, *, with_parent: bool = False) -> RunGuard:
    """Lock a task, and before it the agents concerned: all operations lock agents first, then leases.

    Raises TaskNotFound.
    """
    task_id = call.path["task_id"]
    number = task_rows.number_of(transaction, task_id)
    if number is None:
        raise TaskNotFound(task_id)
    parent = task_rows.find(transaction, number).parent if with_parent else None
    numbers = [number] if parent is None else [parent, number]
    askers = lease_requesters.lock(transaction, [call.digest], numbers)
    rows = leases.lock(transaction, numbers=numbers)
    # The locks may have been waited for.
    transaction = transaction.after_waiting()
    task = task_rows.find(transaction, number)
    return RunGuard(transaction=transaction, task=task, claim=rows[number], holders=askers.holders)


def enter_run(
    transaction: Transaction, call: Call, *, is_end: bool = False
) -> AuthorizedRun | OperationReply | LifesignError:
    """Return the run that a request names, if it may write; a repeated write's first answer; or a refusal.

    TaskNotFound if the caller has never had the task, whether the task exists or not. A refusal is returned,
    not raised: its event has to be committed. `is_end`: the write ends the run.
    """
    require(call.caller, Permission.WORK_TASKS, call.caller.agent_id)
    shown = call.body_as(RunWrite)
    locked = lock_task(transaction, call)
    transaction, task = locked.transaction, locked.task
    if not has_worked(transaction, call, locked.claim, task.number):
        # Before anything else of the request is looked at, and without an event, which the caller could read.
        raise TaskNotFound(task.task_id)
    _check_incarnation(call, locked)
    if isinstance(shown, FencedWrite):
        known = _known(transaction, call, task, shown)
        if known is not None:
            return known
    run = _shown_run(transaction, task, locked.claim, call, shown)
    if isinstance(run, LifesignError):
        return run
    if isinstance(shown, FencedWrite) and task.writes >= MAX_WRITES and not is_end:
        raise TooMany(f"writes of {task.task_id}", MAX_WRITES)
    return AuthorizedRun(
        transaction=transaction, task=task, claim=locked.claim, holders=locked.holders, run=run
    )


def has_worked(transaction: Transaction, call: Call, claim: Claim, number: int) -> bool:
    """Return whether the caller has or had this task, whose claim it is.

    To others the task must look as if it did not exist.
    """
    holder = holder_of(call.caller)
    return claim.holder == holder or task_runs.has_worked(transaction, holder, [number])


def authorize_run(
    transaction: Transaction, task: StoredTask, claim: Claim, call: Call, *, token: int, run_id: str
) -> StoredTaskRun | Refusal:
    """Return the run of this id and token if it has the task now and is the caller's; else a refusal."""
    held = None if claim.lease_id is None else claim
    refusal = check_write(held, holder_of(call.caller), token, transaction.now_s)
    if refusal is not None:
        if refusal.code is RefusalCode.LEASE_ENDED:
            check_end(transaction, claim, transaction.now_s)
        return refusal_for(refusal, call.caller)
    run = task_runs.find(transaction, run_id)
    if run is None or (run.task, run.number) != (task.number, task.runs):
        return Refusal(RefusalCode.WRONG_RUN, claim)
    return run


def rejected(
    transaction: Transaction, refusal: Refusal, task: StoredTask, call: Call, *, token: int, run_id: str
) -> LifesignError:
    """Log that a write was refused, and return the error."""
    resource, writer = task_resource(task.task_id), holder_of(call.caller)
    event = lease_events.write_rejected(
        refusal, resource, writer=writer, token=token, agent_id=call.caller.agent_id
    )
    event_log.append(transaction, [event])
    if refusal.code is RefusalCode.WRONG_RUN:
        return RunOfAnotherTask(run_id, resource)
    lease_id = resource if refusal.claim is None else str(refusal.claim.lease_id)
    return refused(refusal, lease_id, now_s=transaction.now_s, token=token)


def answer_once(
    entered: AuthorizedRun, call: Call, answer: BaseModel, *, status: int = 200
) -> OperationReply:
    """Store the answer to a write, so that a repeated request gets the same one; return it."""
    written = call.body_as(FencedWrite)
    stored_write = StoredRunWrite(
        task=entered.task.number,
        run_id=entered.run.run_id,
        idempotency_key=written.idempotency_key,
        digest=_digest(call),
        answer=to_json([status, answer.model_dump(mode="json", exclude_none=True)]).decode(),
    )
    task_runs.add_write(entered.transaction, stored_write)
    return OperationReply(content=answer, status=status)


def end_lease(locked: RunGuard, reason: EndReason, actor: str) -> list[EventDraft]:
    """End the lease of a task, if one runs; return the events.

    A draining holder that has released everything is assessed by the next sweep.
    """
    transaction, claim = locked.transaction, locked.claim
    if claim.lease_id is None or claim.ended_at_s is not None:
        return []
    over = ended(claim, reason, transaction.now_s)
    leases.store(transaction, [over])
    holder = locked.holders.get(claim.holder or "")
    is_draining = holder is not None and holder.status == Status.DRAINING
    if holder is not None and is_draining and not leases.count_held(transaction, [holder.agent_id]):
        agent_rows.set_verdict_due(transaction, {holder.number: transaction.now_s})
    if holder is not None and reason is not EndReason.RELEASED:
        # It learns that with its next heartbeat, not only at its renewal.
        agent_rows.compare_tasks(transaction, [holder.number])
    return [lease_events.lease_ended(over, actor)]


def _check_incarnation(call: Call, locked: RunGuard) -> None:
    """Raise AgentGone for a caller that states another incarnation than the current one."""
    agent = locked.holders.get(call.caller.agent_id or "")
    incarnation = incarnation_in(call.headers)
    if agent is not None and incarnation not in {None, agent.incarnation}:
        raise AgentGone(agent.agent_id, agent.status, agent.incarnation)


def _known(
    transaction: Transaction, call: Call, task: StoredTask, shown: FencedWrite
) -> OperationReply | None:
    """Return the first answer to a write that was executed; KeyReused if its content was another."""
    written = task_runs.find_write(transaction, task.number, shown.run_id, shown.idempotency_key)
    if written is None:
        return None
    run = task_runs.find(transaction, shown.run_id)
    if run is None or run.holder != holder_of(call.caller) or run.token != shown.fencing_token:
        # Not shown to the writer: it is refused like any stranger.
        return None
    if written.digest != _digest(call):
        raise KeyReused(shown.idempotency_key)
    status, content = from_json(written.answer)
    return OperationReply(content=content, status=status)


def _shown_run(
    transaction: Transaction, task: StoredTask, claim: Claim, call: Call, shown: RunWrite
) -> StoredTaskRun | LifesignError:
    token, run_id = shown.fencing_token, shown.run_id
    run = authorize_run(transaction, task, claim, call, token=token, run_id=run_id)
    if isinstance(run, Refusal):
        return rejected(transaction, run, task, call, token=token, run_id=run_id)
    return run


def _digest(call: Call) -> str:
    """Return a digest that distinguishes writes, including their operation."""
    body = call.body_as(FencedWrite)
    content = to_json([type(body).__name__, body.model_dump(mode="json", by_alias=True)])
    return sha256(content).hexdigest()


def with_counted_write(task: StoredTask) -> StoredTask:
    """Return the task with one more stored write."""
    return replace(task, writes=task.writes + 1)
