"""Choice of a task for an agent that claims one.

The agent gets the longest queued task that fits its name, its pool and its capabilities, while it has
capacity. The claim contains its wishes, its record its properties. Each grant is a lease like any other, and
a run.
"""

from dataclasses import dataclass

from pydantic_core import from_json
from ulid import ULID

from lifesign.domain.access.permissions import Permission, Principal, require
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest, InvalidTaskTransition, NotAllowed
from lifesign.domain.lifecycle.status_table import ALIVE, Status
from lifesign.domain.models.tasks import TaskClaim, TaskGrant
from lifesign.domain.tasks.budget import budget_record
from lifesign.domain.tasks.lease import Claim, Refusal, decide_acquire
from lifesign.domain.tasks.task_states import TaskSignal, TaskStatus, is_never_queued_again
from lifesign.registry.errors import AgentDraining, AgentGone, AgentNotFound, TaskNotFound, TooMany
from lifesign.registry.leases.hold_lease import check_new_end
from lifesign.registry.serializers.lease_records import lease_record, refused
from lifesign.registry.serializers.task_records import comments, latest_report, summary
from lifesign.registry.status_changes import lease_events
from lifesign.registry.status_changes.task_status import Move, move
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import lease_requesters, leases, task_budgets, task_rows, task_runs
from lifesign.storage.tasks.lease_requesters import LeaseRequesters
from lifesign.storage.tasks.task_rows import Claimant, StoredTask
from lifesign.storage.tasks.task_runs import StoredTaskRun

MAX_ATTEMPTS = 5
"""Maximum of attempts if other agents take the same tasks; after that the claim waits for the next search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClaimant:
    """An agent that claims work, with its wishes."""

    caller: Principal
    digest: bytes
    """Digest of its key."""
    incarnation: int | None
    """Incarnation that the agent states; None if it states none."""
    wanted: TaskClaim


def seconds_until_task(transaction: Transaction, seeker: TaskClaimant) -> float | None:
    """Return in how many seconds the agent can get a task, 0 or less: now; None if there is none for it.

    Changes nothing and locks nothing. Raises why the agent may not have one.
    """
    agent = _agent(transaction, seeker)
    due_s = task_rows.next_due_s(transaction, _claimant(transaction, agent, seeker.wanted))
    return None if due_s is None else due_s - transaction.now_s


def claim_task(transaction: Transaction, seeker: TaskClaimant) -> TaskGrant | None:
    """Grant the agent a task; None if there is none for it now."""
    askers = lease_requesters.lock(transaction, [seeker.digest], ())
    # The agent may have been waited for.
    transaction = transaction.after_waiting()
    agent = _agent(transaction, seeker)
    found = _lock_task(transaction, _claimant(transaction, agent, seeker.wanted))
    if found is None:
        return None
    task, before = found
    claim = _claimed(transaction, task, before, agent=agent, askers=askers, wanted=seeker.wanted)
    run = StoredTaskRun(
        task=task.number,
        number=task.runs + 1,
        run_id=f"run_{str(ULID()).lower()}",
        holder=agent.agent_id,
        token=claim.token,
        began_at_s=transaction.now_s,
    )
    leases.store(transaction, [claim])
    task_runs.begin(transaction, run)
    granted = Move(task=task, signal=TaskSignal.GRANTED, run_id=run.run_id)
    _, drafts = move(transaction, granted, agent.agent_id)
    event_log.append(transaction, [lease_events.acquired(claim, agent.agent_id), *drafts])
    return TaskGrant(
        task=summary(transaction, task_rows.find(transaction, task.number)),
        input=from_json(task.input),
        run_id=run.run_id,
        lease=lease_record(claim, transaction.now_s),
        budget=budget_record(task_budgets.find(transaction, task.number).budget),
        latest_report=latest_report(transaction, task.number),
        comments=comments(transaction, task.number),
    )


def _agent(transaction: Transaction, seeker: TaskClaimant) -> StoredAgent:
    """Return the agent of the claim, if it may get a task now."""
    agent_id = seeker.caller.agent_id
    require(seeker.caller, Permission.WORK_TASKS, agent_id)
    if agent_id is None:
        # A caller that is not an agent has no record, and fits no task.
        raise NotAllowed(seeker.caller.role, Permission.WORK_TASKS, None)
    agent = agent_rows.find(transaction, agent_id)
    if agent is None:
        raise AgentNotFound(agent_id)
    if agent.status not in ALIVE or seeker.incarnation not in {None, agent.incarnation}:
        raise AgentGone(agent_id, agent.status, agent.incarnation)
    if agent.status == Status.DRAINING:
        raise AgentDraining(agent_id)
    most = agent.max_concurrent_tasks
    if most is not None and len(leases.tasks_of(transaction, agent_id)) >= most:
        raise TooMany(f"tasks leased to {agent_id!r}, whose capacity that is:", most)
    return agent


def _claimant(transaction: Transaction, agent: StoredAgent, wanted: TaskClaim) -> Claimant:
    """Return the criteria of the search; raise the error of a claim that can never be granted."""
    if wanted.role_id is not None and wanted.role_id != agent.role_id:
        raise _not_its_own("/role_id", "the role_id that the agent is registered with")
    able = agent.capabilities if wanted.capabilities is None else tuple(wanted.capabilities)
    if not set(able) <= set(agent.capabilities):
        raise _not_its_own("/capabilities", "capabilities that the agent is registered with")
    return Claimant(
        agent_id=agent.agent_id,
        role_id=agent.role_id,
        capabilities=able,
        is_of_pool_only=wanted.role_id is not None,
        number=None if wanted.task_id is None else _claimable_task(transaction, agent, wanted.task_id),
    )


def _claimable_task(transaction: Transaction, agent: StoredAgent, task_id: str) -> int:
    """Return the number of a task that this agent may have, now or later.

    TaskNotFound for a task that is for others, as if it did not exist.
    """
    number = task_rows.number_of(transaction, task_id)
    task = None if number is None else task_rows.find(transaction, number)
    if number is None or task is None or not _is_for(task, agent):
        raise TaskNotFound(task_id)
    if is_never_queued_again(TaskStatus(task.status)):
        raise InvalidTaskTransition(task.status, TaskSignal.GRANTED)
    return number


def _is_for(task: StoredTask, agent: StoredAgent) -> bool:
    """Return whether a task is for this agent, or for its pool, and asks for no capability that it lacks."""
    is_named = task.agent_id in {None, agent.agent_id} and task.role_id in {None, agent.role_id}
    return is_named and set(task.capabilities) <= set(agent.capabilities)


def _not_its_own(pointer: str, expected: str) -> InvalidRequest:
    return InvalidRequest([Finding("not_its_own", pointer, f"expected {expected}")])


def _lock_task(transaction: Transaction, claimant: Claimant) -> tuple[StoredTask, Claim] | None:
    for _ in range(MAX_ATTEMPTS):
        number = task_rows.lock_next(transaction, claimant, transaction.now_s)
        if number is None:
            return None
        claim = leases.lock(transaction, numbers=[number])[number]
        task = task_rows.find(transaction, number)
        if task.status == TaskStatus.QUEUED:
            return task, claim
    return None


def _claimed(
    transaction: Transaction,
    task: StoredTask,
    before: Claim,
    *,
    agent: StoredAgent,
    askers: LeaseRequesters,
    wanted: TaskClaim,
) -> Claim:
    check_new_end(before.resource, transaction.now_s, askers.swept_at_s)
    decision = decide_acquire(
        before,
        Status(agent.status),
        token_floor=askers.token_floor,
        now_s=transaction.now_s,
        # The task is unknown before the grant: a longer request is cut to its limit, as the grant shows.
        ttl_seconds=min(task.lease_s, task.lease_s if wanted.ttl_seconds is None else wanted.ttl_seconds),
    )
    if isinstance(decision, Refusal):
        raise refused(decision, before.resource, now_s=transaction.now_s)
    return leases.granted(
        before,
        task.number,
        holder=agent.agent_id,
        holder_incarnation=agent.incarnation,
        token=decision.token,
        acquired_at_s=transaction.now_s,
        expires_at_s=decision.expires_at_s,
    )
