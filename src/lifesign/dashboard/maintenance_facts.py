"""Current maintenances and overrides, with their ends, actors and reasons."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lifesign.domain.access.event_actor import OwnActor, display_actor
from lifesign.domain.events.event_type import EventType
from lifesign.domain.lifecycle.status_table import ALIVE
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.models.base import moment
from lifesign.registry.serializers.key_names import keys_in, names_of_keys
from lifesign.storage.agents.search import maintained_together
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

MAX_SHOWN = 10
MAX_MOVES = 10
"""Maximum number of events about a moved end that are skipped to find the operator's event."""
RECORDED_SECONDS = 0.001
"""Resolution of times in a record."""


@dataclass(frozen=True, slots=True)
class StatusOverride:
    """Actor and reason of an agent's latest maintenance or override."""

    reason: str
    """Reason; empty if its event is archived or erased. The same for `by`."""
    by: str


@dataclass(frozen=True, slots=True)
class MaintenanceGroup:
    """Agents of one pool, or of none, whose maintenance ends at the same time."""

    role_id: str | None
    agents: int
    """Number of living agents."""
    agent_id: str
    """One of their ids."""
    until: datetime
    override: StatusOverride


def maintenances(transaction: Transaction, role_id: str | None = None) -> Sequence[MaintenanceGroup]:
    """Return the current maintenances of a pool, or of all agents: the `MAX_SHOWN` that end last."""
    found = maintained_together(transaction, [*ALIVE], role_id=role_id, limit=MAX_SHOWN)
    return [
        MaintenanceGroup(
            role_id=group.role_id,
            agents=group.agents,
            agent_id=group.agent_id,
            until=moment(group.until_s),
            override=last_override(transaction, group.agent_id, EventType.AGENT_MAINTENANCE_CHANGED),
        )
        for group in found
    ]


def maintenance_of(transaction: Transaction, agent: AgentRecord) -> MaintenanceGroup | None:
    """Return the maintenance of an agent, and the number of its pool's members in it; None without one."""
    until = agent.maintenance_until
    if until is None or not is_maintained(agent):
        return None
    override = last_override(transaction, agent.agent_id, EventType.AGENT_MAINTENANCE_CHANGED)
    together = 1
    if agent.role_id is not None:
        groups = maintained_together(transaction, [*ALIVE], role_id=agent.role_id, limit=MAX_SHOWN)
        together = next(
            (group.agents for group in groups if abs(group.until_s - until.timestamp()) < RECORDED_SECONDS), 1
        )
    return MaintenanceGroup(agent.role_id, together, agent.agent_id, until, override)


def is_maintained(agent: AgentRecord) -> bool:
    """Return whether an agent is alive and in maintenance."""
    return agent.status in ALIVE and agent.maintenance_until is not None


def last_override(transaction: Transaction, agent_id: str, kind: EventType) -> StatusOverride:
    """Return actor and reason of the latest event of this kind about an agent.

    If the registry moved the end because its clock was set, those of the operator's event before.
    """
    recent = event_log.latest(transaction, limit=MAX_MOVES, types=[kind.value], agent_id=agent_id)
    found = [event for event in recent if event.actor != OwnActor.MONITOR][:1]
    if not found:
        return StatusOverride("", "")
    names = names_of_keys(transaction, keys_in(found))
    return StatusOverride(str(found[0].payload.get("reason", "")), display_actor(found[0].actor, names))
