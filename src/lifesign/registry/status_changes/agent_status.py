"""Changes of status: the record, the leases and the events that follow.

The record, the index of capabilities, the leases and tasks of an agent that left, and one event for each step
change in the same transaction. No other module changes a status.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.events.agent_payloads import (
    AgentHealthChanged,
    AgentLifecycle,
    CommandEnded,
    CoordinatorLost,
    DrainWarning,
)
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import (
    Reason,
    Signal,
    Status,
    begins_incarnation,
    reason_of,
    status_after,
)
from lifesign.domain.models.base import moment
from lifesign.domain.tasks.lease import EndReason
from lifesign.registry.status_changes import lease_events
from lifesign.registry.status_changes.agent_verdicts import Change
from lifesign.registry.status_changes.task_status import lose_tasks
from lifesign.storage.agents import agent_rows, commands
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.agents.commands import StoredCommand
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.probing import liveness
from lifesign.storage.targets import target_links, target_rows
from lifesign.storage.targets.target_rows import GoneReason
from lifesign.storage.tasks import leases

COORDINATOR = "coordinator"
"""The capability that makes an agent a coordinator (RFC-0016 10.2)."""
MAX_RECOVERIES = 8
"""Number of the latest recoveries that are kept, for flap damping."""
MONITOR = OwnActor.MONITOR.value
"""Actor of changes by the sweep and by probe results."""

_ENDED = {Status.DEAD: EndReason.AGENT_DEAD, Status.DEREGISTERED: EndReason.AGENT_DEREGISTERED}
_STILL_PROBED = frozenset({Signal.SUPERSEDED, Signal.LINKED})
_DRAIN = "drain"


def change_status(transaction: Transaction, changes: Sequence[Change], actor: str) -> list[StoredAgent]:
    """Carry out changes, each with its events, and return the agents as they are then.

    InvalidTransition if a signal is impossible; then nothing is changed.
    """
    steps = [_walk(change, transaction.now_s, actor) for change in changes]
    after = [agent for agent, _ in steps]
    agent_rows.set_verdicts(transaction, after)
    ended = {
        agent.agent_id: _ENDED[Status(agent.status)]
        for agent, change in zip(after, changes, strict=True)
        if change.signals and agent.status in _ENDED
    }
    lost = leases.end_all_of(transaction, ended) if ended else {}
    tasks = lose_tasks(transaction, [claim for several in lost.values() for claim in several], actor)
    # A deregistered agent is no longer probed; a dead one is, since it may return. For a superseded one the
    # next incarnation decides, which begins at once. A linked target is probed for its agent.
    liveness.forget_agents(
        transaction, [agent_id for agent_id, reason in ended.items() if reason is EndReason.AGENT_DEAD]
    )
    still_probed = {
        change.agent.agent_id for change in changes if not _STILL_PROBED.isdisjoint(change.signals)
    }
    off_the_list = [
        agent_id
        for agent_id, reason in ended.items()
        if reason is EndReason.AGENT_DEREGISTERED and agent_id not in still_probed
    ]
    target_rows.retire_named(transaction, off_the_list, GoneReason.DEREGISTERED)
    target_links.make_claims_due(transaction, agent_ids=off_the_list)
    settled = _settled_commands(transaction, changes, after)
    drafts: list[EventDraft] = []
    for agent, events in steps:
        drafts += events
        if agent.reason == Reason.DRAIN_TIMEOUT:
            drafts.append(_drain_warning(agent, len(lost.get(agent.agent_id, ())), actor))
        # The agent's own first, then its leases, then the tasks that were leased to it (RFC-0016 9.1).
        drafts += [lease_events.lease_ended(claim, actor) for claim in lost.get(agent.agent_id, ())]
        drafts += [draft for claim in lost.get(agent.agent_id, ()) for draft in tasks.get(claim.resource, ())]
        drafts += [command_ended(command, agent, actor) for command in settled.get(agent.id, ())]
    event_log.append(transaction, drafts)
    return after


def _walk(change: Change, now_s: float, actor: str) -> tuple[StoredAgent, list[EventDraft]]:
    """Return the agent after all signals, and an event for each."""
    agent = change.agent
    events: list[EventDraft] = []
    for signal in change.signals:
        previous, agent = agent, _after(agent, signal, change, now_s)
        events += _events(previous, agent, signal, now_s, actor)
    if change.health != agent.health:
        events.append(_health_changed(agent, change.health, actor))
    return replace(agent, health=change.health.value, assess_at_s=change.assess_at_s), events


def _after(agent: StoredAgent, signal: Signal, change: Change, now_s: float) -> StoredAgent:
    status = status_after(Status(agent.status), signal)
    is_new_life = begins_incarnation(signal)
    is_recovery = agent.status == Status.UNHEALTHY and status is Status.ACTIVE
    recoveries = (*agent.recoveries_s, now_s)[-MAX_RECOVERIES:] if is_recovery else agent.recoveries_s
    return replace(
        agent,
        status=status.value,
        reason=reason_of(signal).value,
        status_since_s=now_s,
        explanation=change.explanation,
        incarnation=agent.incarnation + is_new_life,
        version=1 if is_new_life else agent.version + 1,
        drain_deadline_s=change.drain_deadline_s if status is Status.DRAINING else None,
        recoveries_s=recoveries,
    )


def _events(
    previous: StoredAgent, agent: StoredAgent, signal: Signal, now_s: float, actor: str
) -> Iterator[EventDraft]:
    yield lifecycle_event(previous.status, agent, reason_of(signal), now_s, actor)
    if agent.status == Status.DEAD and COORDINATOR in agent.capabilities:
        payload = CoordinatorLost(
            agent_id=agent.agent_id,
            role_id=agent.role_id,
            incarnation=agent.incarnation,
            reason=Reason(agent.reason),
        )
        yield EventDraft(
            type=EventType.COORDINATOR_LOST, actor=actor, payload=payload, agent_id=agent.agent_id
        )


def lifecycle_event(
    previous_status: str, agent: StoredAgent, reason: Reason, now_s: float, actor: str
) -> EventDraft:
    """Return the event of one transition, with the agent as it is afterwards (RFC-0016 2.3)."""
    payload = AgentLifecycle(
        agent_id=agent.agent_id,
        previous_status=Status(previous_status),
        new_status=Status(agent.status),
        reason=reason,
        timestamp=moment(now_s),
        incarnation=agent.incarnation,
        version=agent.version,
        role_id=agent.role_id,
        explanation=agent.explanation,
        **(_kept_overrides(agent) if reason is Reason.RE_REGISTERED else {}),
    )
    return EventDraft(type=EventType.AGENT_LIFECYCLE, actor=actor, payload=payload, agent_id=agent.agent_id)


def _kept_overrides(agent: StoredAgent) -> dict[str, Any]:
    """Return the overrides with which an agent begins its next incarnation, for the log."""
    stays: dict[str, Any] = {}
    if agent.maintenance_until_s is not None:
        stays["maintenance_until"] = moment(agent.maintenance_until_s)
    if agent.override_status is not None and agent.override_until_s is not None:
        stays["override_status"] = Status(agent.override_status)
        stays["override_until"] = moment(agent.override_until_s)
    return stays


def _health_changed(agent: StoredAgent, health: HealthStatus, actor: str) -> EventDraft:
    payload = AgentHealthChanged(
        agent_id=agent.agent_id, previous_health=HealthStatus(agent.health), new_health=health
    )
    return EventDraft(
        type=EventType.AGENT_HEALTH_CHANGED, actor=actor, payload=payload, agent_id=agent.agent_id
    )


def _drain_warning(agent: StoredAgent, leases_held: int, actor: str) -> EventDraft:
    payload = DrainWarning(agent_id=agent.agent_id, leases_held=max(1, leases_held))
    return EventDraft(
        type=EventType.AGENT_DRAIN_WARNING, actor=actor, payload=payload, agent_id=agent.agent_id
    )


def _settled_commands(
    transaction: Transaction, changes: Sequence[Change], after: Sequence[StoredAgent]
) -> dict[int, list[StoredCommand]]:
    """Delete the commands of agents that no longer accept them: they drain, or have ended."""
    numbers = [
        agent.id
        for agent, change in zip(after, changes, strict=True)
        if change.signals and agent.status not in {Status.ACTIVE, Status.UNHEALTHY}
    ]
    found: dict[int, list[StoredCommand]] = {}
    for command in commands.waiting(transaction, numbers) if numbers else ():
        found.setdefault(command.agent, []).append(command)
    commands.remove(transaction, [command.id for several in found.values() for command in several])
    return found


def command_ended(command: StoredCommand, agent: StoredAgent, actor: str) -> EventDraft:
    """Return the event of a command's end: honoured by an agent that drains now, else expired."""
    is_honoured = command.command == _DRAIN and agent.status == Status.DRAINING
    return EventDraft(
        type=EventType.AGENT_COMMAND_HONOURED if is_honoured else EventType.AGENT_COMMAND_EXPIRED,
        actor=actor,
        payload=CommandEnded(agent_id=agent.agent_id, command_id=command.id, command=command.command),
        agent_id=agent.agent_id,
    )
