"""States of one agent, lease, task or link by the event log, and their comparison with the stored states."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final, TypeVar

from lifesign.domain.errors import InvalidTaskTransition
from lifesign.domain.events.agent_payloads import (
    AgentHealthChanged,
    AgentLifecycle,
    AgentUpdated,
    MaintenanceChanged,
    StatusOverrideChanged,
)
from lifesign.domain.events.key_state import KeyState
from lifesign.domain.events.task_payloads import TaskLifecycle
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import (
    TRANSITIONS,
    Reason,
    Signal,
    Status,
    begins_incarnation,
    reason_of,
)
from lifesign.domain.tasks.lease import EndReason
from lifesign.domain.tasks.task_states import TaskSignal, TaskStatus, status_after

TIME_TOLERANCE_S: Final = 0.002
"""Times in events are truncated to milliseconds; the stored times are more precise."""

_SIGNALS = {(status, reason_of(signal), after): signal for (status, signal), after in TRANSITIONS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """State of one agent, from the log or from the database, to compare both."""

    agent_id: str
    status: Status
    reason: Reason
    incarnation: int
    version: int
    health: HealthStatus = HealthStatus.UNKNOWN
    maintenance_until_s: float | None = None
    override_status: Status | None = None
    override_until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """State of one resource's last lease, from the log or from the database, to compare both."""

    resource: str
    lease_id: str | None
    """None, like `holder`, if the holder was erased."""
    holder: str | None
    token: int
    """Latest granted token of the resource; kept after the lease ends."""
    end_reason: EndReason | None = None

    @property
    def is_held(self) -> bool:
        """Whether the lease has not been ended. Its time may be over."""
        return self.lease_id is not None and self.end_reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """State of one task, from the log or from the database, to compare both."""

    task_id: str
    status: TaskStatus
    parent_id: str | None
    fix_of: str | None
    tokens: int
    """Tokens of the budget, like `micro_usd`."""
    micro_usd: int
    runs: int = 0
    attempts: int = 0
    reports: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedLink:
    """State of one target's link to an agent, from the log or from the database, to compare both."""

    target_id: str
    agent_id: str


_State = TypeVar("_State", AgentState, LeaseState, TaskState, KeyState, ReplayedLink)


class Contradiction(Exception):
    """An event does not fit the states before it. Becomes ImpossibleEvent, with the event's sequence."""


def after_lifecycle(agent: AgentState | None, payload: AgentLifecycle) -> AgentState:
    """Return an agent's state after a change of its status; Contradiction if that is not allowed."""
    previous = Status.REGISTERING if agent is None else agent.status
    if payload.previous_status is not previous:
        raise Contradiction(f"agent {payload.agent_id} is {previous}, not {payload.previous_status}")
    signal = _SIGNALS.get((payload.previous_status, payload.reason, payload.new_status))
    if signal is None:
        raise Contradiction(
            f"the lifecycle has no way from {previous} to {payload.new_status} by {payload.reason}"
        )
    incarnation, version = _incarnation_after(agent, signal)
    if (payload.incarnation, payload.version) != (incarnation, version):
        raise Contradiction(
            f"agent {payload.agent_id} comes to {incarnation}.{version}, "
            f"not to {payload.incarnation}.{payload.version}"
        )
    if agent is None:
        return AgentState(
            agent_id=payload.agent_id,
            status=payload.new_status,
            reason=payload.reason,
            incarnation=incarnation,
            version=version,
        )
    after = replace(
        agent, status=payload.new_status, reason=payload.reason, incarnation=incarnation, version=version
    )
    if signal is Signal.RE_REGISTERED:
        return _with_kept_overrides(after, payload)
    return after


def _with_kept_overrides(agent: AgentState, payload: AgentLifecycle) -> AgentState:
    """Return an agent with the overrides in its registration; it must not contain unknown ones.

    None are in it if the registration ended all of them, as earlier versions did.
    """
    after = replace(
        agent,
        maintenance_until_s=_seconds(payload.maintenance_until),
        override_status=payload.override_status,
        override_until_s=_seconds(payload.override_until),
    )
    if after.maintenance_until_s not in {None, agent.maintenance_until_s}:
        raise Contradiction(f"agent {agent.agent_id} keeps a maintenance that it was not in")
    declared = after.override_status, after.override_until_s
    if declared not in {(None, None), (agent.override_status, agent.override_until_s)}:
        raise Contradiction(f"agent {agent.agent_id} keeps an override that it did not have")
    return after


def _incarnation_after(agent: AgentState | None, signal: Signal) -> tuple[int, int]:
    """Return incarnation and version after a transition."""
    if agent is None:
        return 1, 1
    if begins_incarnation(signal):
        return agent.incarnation + 1, 1
    return agent.incarnation, agent.version + 1


def after_change(
    agent: AgentState, payload: AgentUpdated | AgentHealthChanged | MaintenanceChanged | StatusOverrideChanged
) -> AgentState:
    """Return an agent's state after a change other than of its status; Contradiction if it does not fit."""
    match payload:
        case AgentUpdated():
            expected = agent.incarnation, agent.version + 1
            if (payload.incarnation, payload.version) != expected:
                raise Contradiction(f"agent {agent.agent_id} comes to {expected[0]}.{expected[1]}")
            return replace(agent, version=payload.version)
        case AgentHealthChanged():
            if payload.previous_health is not agent.health:
                raise Contradiction(f"the health of {agent.agent_id} is {agent.health}")
            return replace(agent, health=payload.new_health)
        case MaintenanceChanged():
            return replace(agent, maintenance_until_s=_seconds(payload.until))
        case StatusOverrideChanged():
            return replace(agent, override_status=payload.status, override_until_s=_seconds(payload.until))


def after_task_lifecycle(task: TaskState, payload: TaskLifecycle) -> TaskState:
    """Return a task's state after a change of its status; Contradiction if that is not allowed."""
    if payload.previous_status is not task.status:
        raise Contradiction(f"task {task.task_id} is {task.status}, not {payload.previous_status}")
    try:
        following = status_after(task.status, payload.signal)
    except InvalidTaskTransition as error:
        raise Contradiction(str(error)) from None
    if payload.new_status is not following:
        raise Contradiction(f"{payload.signal} leads to {following}, not to {payload.new_status}")
    match payload.signal:
        case TaskSignal.GRANTED:
            return replace(task, status=following, runs=task.runs + 1, attempts=task.attempts + 1)
        case TaskSignal.REQUEUED:
            return replace(task, status=following, attempts=0)
        case _:
            return replace(task, status=following)


def differences(what: str, replayed: _State | None, stored: _State) -> Iterator[str]:
    """Yield a sentence for each difference between the state by the log and the stored one."""
    if replayed is None:
        yield f"{what}: in the store, not in the log"
        return
    for member in fields(stored):
        in_log, in_store = getattr(replayed, member.name), getattr(stored, member.name)
        if not _is_same(in_log, in_store):
            yield f"{what}: {member.name} is {in_log} in the log, {in_store} in the store"


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < TIME_TOLERANCE_S
    return one == other


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
