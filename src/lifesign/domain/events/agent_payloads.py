"""Payloads of events about one agent."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from lifesign.domain.events.payload_fields import (
    MAX_CHANGED_MEMBERS,
    MAX_EXPLANATION_CHARACTERS,
    PRINTABLE_PATTERN,
    AgentId,
    Moment,
    Number,
    OwnId,
    Payload,
    Positive,
    RoleId,
    Seconds,
    Word,
)
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.domain.models.agents import MAX_TASKS
from lifesign.domain.models.base import Name, TaskId
from lifesign.domain.published_interface.comparison import MAX_POINTER_CHARS, ChangeKind
from lifesign.domain.targets.link_proof import Proof, UnlinkReason


class AgentLifecycle(Payload):
    """The status of an agent changed.

    RFC-0016 2.3 of openintent defines `type`, `agent_id`, `previous_status`, `new_status`, `reason` and
    `timestamp`. lifesign adds the other members: `lifesign events verify` needs them to compute the state of
    each agent from the log.
    """

    type: Literal["agent.lifecycle"] = "agent.lifecycle"
    agent_id: AgentId
    previous_status: Status
    """Status before the change; `registering` at the first registration."""
    new_status: Status
    reason: Reason
    timestamp: Moment
    incarnation: Positive
    """Incarnation after the change. Each new registration of the agent increments it."""
    version: Positive
    """Version after the change; 1 in a new incarnation."""
    role_id: RoleId | None = None
    explanation: Annotated[str, Field(max_length=MAX_EXPLANATION_CHARACTERS)]
    """The reason in words, for people."""
    maintenance_until: Moment | None = None
    """End of the maintenance that continues after a new registration; absent if there is none."""
    override_status: Status | None = None
    """Status override that continues after a new registration, until `override_until`; absent if there is
    none.
    """
    override_until: Moment | None = None


class AgentUpdated(Payload):
    """The record of an agent was changed.

    The event has the names of the changed members without their values, which may be confidential.
    """

    agent_id: AgentId
    incarnation: Positive
    version: Positive
    """Version after the change."""
    changed: Annotated[list[Word], Field(max_length=MAX_CHANGED_MEMBERS)]
    """Names of the changed members."""


class AgentHealthChanged(Payload):
    """The health of an agent changed. A new agent has the health `unknown`."""

    agent_id: AgentId
    previous_health: HealthStatus
    new_health: HealthStatus


class DriftWarning(Payload):
    """The clock of an agent began to differ from the registry's (RFC-0016 4.5)."""

    agent_id: AgentId
    drift_seconds: Seconds
    """Time of the agent minus time of the registry."""


class TasksMismatch(Payload):
    """The tasks in a heartbeat are not exactly those for which the agent holds leases."""

    agent_id: AgentId
    without_lease: Annotated[list[TaskId], Field(max_length=MAX_TASKS)]
    """Tasks that the agent reported, and for which it holds no lease."""
    not_in_progress: Annotated[list[TaskId], Field(max_length=MAX_TASKS)]
    """Tasks for which the agent holds a lease, and which it did not report."""


class DrainWarning(Payload):
    """The drain timeout of an agent ended while the agent still held leases."""

    agent_id: AgentId
    leases_held: Positive
    """Number of these leases."""


class MaintenanceChanged(Payload):
    """An operator began, prolonged, shortened or ended the maintenance of an agent, or its end was moved.

    The registry moves the end if the database's clock was set. During a maintenance no failure makes the
    agent unhealthy or dead.
    """

    agent_id: AgentId
    until: Moment | None = None
    """End of the maintenance; absent if it has ended."""
    reason: Name | None = None


class StatusOverrideChanged(Payload):
    """An operator set the status of an agent until a time, or withdrew that override.

    The registry moves the end if the database's clock was set.
    """

    agent_id: AgentId
    status: Status | None = None
    """Status that the operator set; absent, like `until`, if the override was withdrawn."""
    until: Moment | None = None
    reason: Name | None = None


class CommandSent(Payload):
    """A command was queued; the reply to the agent's next heartbeat contains it (RFC-0016 5.3)."""

    agent_id: AgentId
    command_id: OwnId
    command: Word
    reason: Name | None = None
    drain_timeout_seconds: Seconds | None = None
    expires_at: Moment


class CommandEnded(Payload):
    """A queued command ended, because the agent followed it or it expired. The event's type says which."""

    agent_id: AgentId
    command_id: OwnId
    command: Word


class AgentLinked(Payload):
    """A registered agent and a crawled target were linked: they are one record from now on.

    The agent has proven that the target is its own. If two agents have proven it, `agent.link_conflict` is
    logged instead.
    """

    agent_id: AgentId
    target_id: AgentId
    proof: Proof


class AgentUnlinked(Payload):
    """The link of a registered agent and a crawled target ended: they are two records again."""

    agent_id: AgentId
    target_id: AgentId
    reason: UnlinkReason


class AgentLinkConflict(Payload):
    """Two agents have proven that the same target is their own, so neither is linked to it."""

    agent_id: AgentId
    """Agent with the later claim."""
    target_id: AgentId
    proof: Proof


class InterfaceChanged(BaseModel):
    """One difference in an agent's published interface: part of `TargetInterfaceChanged`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    pointer: Annotated[str, StringConstraints(max_length=MAX_POINTER_CHARS, pattern=PRINTABLE_PATTERN)]
    """JSON pointer into the normalised interface, such as `/skills/translate`."""
    change: ChangeKind
    breaking: StrictBool
    """Whether the change breaks callers."""


class TargetInterfaceChanged(Payload):
    """The published interface of an agent has changed; at most one event per target and day."""

    agent_id: AgentId
    target_id: AgentId
    previous_version: Positive
    """Version of the interface with which the newest one was compared."""
    version: Positive
    """Newest version of the interface."""
    breaking: StrictBool
    """Whether any change breaks callers. Changes that are not in the list count too."""
    changes: Annotated[list[InterfaceChanged], Field(min_length=1, max_length=MAX_CHANGED_MEMBERS)]
    omitted: Number
    """Number of further changes that are not in the list."""


class AgentErased(Payload):
    """The record of an agent was deleted, and hashes replaced the payloads of its events."""

    agent_id: AgentId
    events: Number
    """Number of erased payloads."""


class CoordinatorLost(Payload):
    """An agent with the capability `coordinator` is dead."""

    agent_id: AgentId
    role_id: RoleId | None = None
    incarnation: Positive
    reason: Reason
