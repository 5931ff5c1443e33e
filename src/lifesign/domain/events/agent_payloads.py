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
    """A change of status: the object of RFC-0016 2.3, and the members that a replay also needs."""

    type: Literal["agent.lifecycle"] = "agent.lifecycle"
    agent_id: AgentId
    previous_status: Status
    """`registering` at the first registration."""
    new_status: Status
    reason: Reason
    timestamp: Moment
    incarnation: Positive
    """Incarnation after the change; each registration of a dead agent increments it."""
    version: Positive
    """Version after the change; 1 in a new incarnation."""
    role_id: RoleId | None = None
    explanation: Annotated[str, Field(max_length=MAX_EXPLANATION_CHARACTERS)]
    """The reason as a text."""
    maintenance_until: Moment | None = None
    """End of a maintenance that continues after a new registration; absent without one."""
    override_status: Status | None = None
    """Status override that continues after a new registration, until `override_until`."""
    override_until: Moment | None = None


class AgentUpdated(Payload):
    """A record was changed.

    The event names the members without their values: metadata belong to the agent.
    """

    agent_id: AgentId
    incarnation: Positive
    version: Positive
    """After the change."""
    changed: Annotated[list[Word], Field(max_length=MAX_CHANGED_MEMBERS)]


class AgentHealthChanged(Payload):
    """An agent's health is another one now; it began as `unknown`."""

    agent_id: AgentId
    previous_health: HealthStatus
    new_health: HealthStatus


class DriftWarning(Payload):
    """An agent's clock began to differ from ours (RFC-0016 4.5)."""

    agent_id: AgentId
    drift_seconds: Seconds
    """Its time minus ours."""


class TasksMismatch(Payload):
    """The agent reported other tasks than those that it has leased."""

    agent_id: AgentId
    without_lease: Annotated[list[TaskId], Field(max_length=MAX_TASKS)]
    not_in_progress: Annotated[list[TaskId], Field(max_length=MAX_TASKS)]


class DrainWarning(Payload):
    """The drain timeout of an agent is over, and it still holds leases."""

    agent_id: AgentId
    leases_held: Positive


class MaintenanceChanged(Payload):
    """An operator began, moved or ended a maintenance; nothing goes down until it is over."""

    agent_id: AgentId
    until: Moment | None = None
    """Absent: it is ended."""
    reason: Name | None = None


class StatusOverrideChanged(Payload):
    """An operator put a verdict in place of ours, or took it back."""

    agent_id: AgentId
    status: Status | None = None
    """New status override; absent, like `until`, if it was withdrawn."""
    until: Moment | None = None
    reason: Name | None = None


class CommandSent(Payload):
    """A command waits for the agent's next heartbeat (RFC-0016 5.3)."""

    agent_id: AgentId
    command_id: OwnId
    command: Word
    reason: Name | None = None
    drain_timeout_seconds: Seconds | None = None
    expires_at: Moment


class CommandEnded(Payload):
    """A command was honoured, or its time is over."""

    agent_id: AgentId
    command_id: OwnId
    command: Word


class AgentLinked(Payload):
    """An agent has proven that a crawled target is its own; no other agent has."""

    agent_id: AgentId
    target_id: AgentId
    proof: Proof


class AgentUnlinked(Payload):
    """An agent and a crawled target are two records again."""

    agent_id: AgentId
    target_id: AgentId
    reason: UnlinkReason


class AgentLinkConflict(Payload):
    """An agent has proven a claim for a target that another agent has proven a claim for."""

    agent_id: AgentId
    target_id: AgentId
    proof: Proof


class InterfaceChanged(BaseModel):
    """One change of a published interface."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    pointer: Annotated[str, StringConstraints(max_length=MAX_POINTER_CHARS, pattern=PRINTABLE_PATTERN)]
    """JSON pointer into the normalised interface, such as `/skills/translate`."""
    change: ChangeKind
    breaking: StrictBool
    """Whether it breaks callers."""


class TargetInterfaceChanged(Payload):
    """The published interface of an agent has changed; at most one event per target and day."""

    agent_id: AgentId
    target_id: AgentId
    previous_version: Positive
    """Version that the changes are relative to."""
    version: Positive
    """Newest version."""
    breaking: StrictBool
    """Whether any change breaks callers, including omitted ones."""
    changes: Annotated[list[InterfaceChanged], Field(min_length=1, max_length=MAX_CHANGED_MEMBERS)]
    omitted: Number
    """Number of further changes that are not in the list."""


class AgentErased(Payload):
    """An agent's record was deleted, and the payloads of its events were replaced by their hashes."""

    agent_id: AgentId
    events: Number
    """Number of erased payloads."""


class CoordinatorLost(Payload):
    """A coordinator is dead."""

    agent_id: AgentId
    role_id: RoleId | None = None
    incarnation: Positive
    reason: Reason
