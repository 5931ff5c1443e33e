"""Which facts may the event log hold?"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import MAX_NUMBER, WHOLE, Count, HealthStatus, Time
from lifesign.domain.lifecycle.link_rule import Proof, UnlinkReason
from lifesign.domain.lifecycle.mass_exit import MonitorChange, MonitorState, Track
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.domain.models.agents import AGENT_ID_CHARACTERS, MAX_TASKS, Duration, Name, TaskId
from lifesign.domain.tasks.lease import COUNTERS_PER_EPOCH, MAX_RESOURCE_CHARACTERS, EndReason, RefusalCode
from lifesign.domain.tasks.task_states import ExitReason, TaskSignal, TaskStatus

MAX_EXPLANATION_CHARACTERS = 500
MAX_CHANGED_MEMBERS = 32
MAX_SHARDS = 256
"""In one event: about 25 kB."""
MAX_LOGGED_EPOCH = (MAX_NUMBER + 1) // COUNTERS_PER_EPOCH - 1
"""2^21 - 1: in a higher epoch fencing tokens reach 2^53, which canonical JSON cannot write.

`epoch.raised` is refused beyond it, so that no such token is ever granted (RFC 8785 3.2.2.3, RFC 7493 2.2).
"""


class EventType(StrEnum):
    """What happened: the closed list."""

    AGENT_LIFECYCLE = "agent.lifecycle"
    """A status changed (RFC-0016 2.3)."""
    AGENT_UPDATED = "agent.updated"
    LIFESIGN_CHANGED = "agent.health_changed"
    AGENT_DRIFT_WARNING = "agent.drift_warning"
    AGENT_TASKS_MISMATCH = "agent.tasks_mismatch"
    AGENT_DRAIN_WARNING = "agent.drain_warning"
    """Its time to drain is over and it still holds leases (RFC-0016 5.2)."""
    AGENT_MAINTENANCE_CHANGED = "agent.maintenance_changed"
    AGENT_OVERRIDE_CHANGED = "agent.override_changed"
    AGENT_COMMAND_SENT = "agent.command_sent"
    AGENT_COMMAND_HONOURED = "agent.command_honoured"
    AGENT_COMMAND_EXPIRED = "agent.command_expired"
    AGENT_LINKED = "agent.linked"
    """A registered agent and a crawled target are one record from now on."""
    AGENT_UNLINKED = "agent.unlinked"
    AGENT_LINK_CONFLICT = "agent.link_conflict"
    """Several agents have proven a claim for one target; it is linked to none."""
    AGENT_ERASED = "agent.erased"
    COORDINATOR_LOST = "coordinator.lost"
    """A coordinator is dead: failover begins (RFC-0016 10.2)."""
    LEASE_ACQUIRED = "lease.acquired"
    LEASE_RELEASED = "lease.released"
    LEASE_EXPIRED = "lease.expired"
    SHARDS_GRANTED = "shards.granted"
    """Leases of shards, many at once: one of `lease.acquired` for each would drown the log."""
    SHARDS_ENDED = "shards.ended"
    """The same at their end, for whatever reason."""
    FENCED_WRITE_REJECTED = "fenced_write_rejected"
    STATE_WRITTEN = "state.written"
    TASK_CREATED = "task.created"
    TASK_LIFECYCLE = "task.lifecycle"
    """A task's status changed."""
    TASK_REPORTED = "task.reported"
    """Its holder has written a progress report."""
    TASK_BUDGET_CHANGED = "task.budget_changed"
    """Its envelope was topped up; what is spent of it is not logged."""
    MONITOR_HELD = "monitor.held"
    MONITOR_RECOVERING = "monitor.recovering"
    MONITOR_NORMAL = "monitor.normal"
    MONITOR_DOWNTIME = "monitor.downtime"
    MONITOR_CLOCK_JUMP = "monitor.clock_jump"
    MONITOR_EVIDENCE_LOST = "monitor.evidence_lost"
    """Of some living agents nothing was known for an interval, through a fault of the monitoring."""
    MONITOR_EVIDENCE_RESTORED = "monitor.evidence_restored"
    MONITOR_CONFIRMED = "monitor.confirmed"
    """An operator confirmed that a network class, or one agent, may be down."""
    PROBER_FAILURES_HIGH = "prober.failures_high"
    """Most results of one prober's key about living agents are failures."""
    PROBER_FAILURES_NORMAL = "prober.failures_normal"
    KEY_CREATED = "key.created"
    KEY_ROTATED = "key.rotated"
    KEY_REVOKED = "key.revoked"
    KEY_LIMITED = "key.limited"
    """The number of workers that may probe with it has changed."""
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_SECRET_ROTATED = "webhook.secret_rotated"  # noqa: S105 - the name of a type
    WEBHOOK_DELETED = "webhook.deleted"
    WEBHOOK_DISABLED = "webhook.disabled"
    DIRECTORY_APPLIED = "directory.applied"
    """A directory's new list took the place of the old one."""
    DIRECTORY_HELD = "directory.held"
    """It has shrunk so much that what left is kept until somebody confirms it."""
    DIRECTORY_CONFIRMED = "directory.confirmed"
    ORIGIN_OPTED_OUT = "origin.opted_out"
    """Its owner has proven that nobody is to probe it."""
    ORIGIN_OPTED_IN = "origin.opted_in"
    """It may be probed again."""
    EPOCH_RAISED = "epoch.raised"
    LOG_ARCHIVED = "log.archived"
    """A closed prefix left the database; the next event follows on its last hash."""
    ARCHIVE_ERASED = "archive.erased"
    """What archived files told of an erased agent is gone too."""


_PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
MOMENT_PATTERN = (
    r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z$"
)

# By its characters alone: which ids may be chosen is another question, and may become stricter.
AgentId = Annotated[str, StringConstraints(pattern=f"^{AGENT_ID_CHARACTERS}$")]
RoleId = AgentId
Label = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=_PRINTABLE)]
"""A name or an id that others chose."""
OwnId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""An id that the registry gave."""
Actor = Annotated[str, StringConstraints(min_length=1, max_length=160, pattern=_PRINTABLE)]
"""Who did it: an agent's id, `key:<id of the key>`, or the part of the registry that acted by itself."""
Word = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")]
Resource = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_RESOURCE_CHARACTERS, pattern=_PRINTABLE)
]
# No path, no query, no user: what stands there may be a secret.
Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:\[\]-]{1,270}$")]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256, hexadecimal."""
Number = Annotated[Count, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER})]
Positive = Annotated[
    Count, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_NUMBER})
]
Epoch = Annotated[
    Count,
    Field(le=MAX_LOGGED_EPOCH),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_LOGGED_EPOCH}),
]
Moment = Annotated[Time, WithJsonSchema({"type": "string", "format": "date-time", "pattern": MOMENT_PATTERN})]
Seconds = Annotated[Duration, Field(strict=True, ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]


class Payload(BaseModel):
    """What an event tells. Members that are None are left out; none is free to hold a secret."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    def members(self) -> dict[str, Any]:
        """Return it as JSON values, as it is hashed and stored."""
        return self.model_dump(mode="json", exclude_none=True)


class AgentLifecycle(Payload):
    """A status changed: the object of RFC-0016 2.3, and what a replay needs beside it."""

    type: Literal["agent.lifecycle"] = "agent.lifecycle"
    agent_id: AgentId
    previous_status: Status
    """`registering` at the first registration."""
    new_status: Status
    reason: Reason
    timestamp: Moment
    incarnation: Positive
    """After the change; rises by one with each new life."""
    version: Positive
    """After the change; 1 in a new life."""
    role_id: RoleId | None = None
    explanation: Annotated[str, Field(max_length=MAX_EXPLANATION_CHARACTERS)]
    """The reason in words."""
    maintenance_until: Moment | None = None
    """Of who registers again: the maintenance that stays with it. Absent: none does."""
    override_status: Status | None = None
    """The same of an override, which `override_until` belongs to."""
    override_until: Moment | None = None


class AgentUpdated(Payload):
    """A record was changed; which members, not what they say: metadata is the agent's own affair."""

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
    """The tasks that an agent names are not those that are leased to it."""

    agent_id: AgentId
    without_lease: Annotated[list[TaskId], Field(max_length=MAX_TASKS)]
    not_in_progress: Annotated[list[TaskId], Field(max_length=MAX_TASKS)]


class DrainWarning(Payload):
    """An agent's time to drain is over, and it still holds leases."""

    agent_id: AgentId
    leases_held: Positive


class MaintenanceChanged(Payload):
    """An operator began, moved or ended a maintenance; nothing goes down until it is over."""

    agent_id: AgentId
    until: Moment | None = None
    """Absent: it is ended."""
    reason: Name | None = None


class OverrideChanged(Payload):
    """An operator put a verdict in place of ours, or took it back."""

    agent_id: AgentId
    status: Status | None = None
    """Absent, like `until`: taken back."""
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


class AgentErased(Payload):
    """An agent's record is gone, and the payloads of its events gave way to their hashes."""

    agent_id: AgentId
    events: Number
    """How many payloads were erased."""


class CoordinatorLost(Payload):
    """A coordinator is dead."""

    agent_id: AgentId
    role_id: RoleId | None = None
    incarnation: Positive
    reason: Reason


class LeaseAcquired(Payload):
    """A resource was granted."""

    resource: Resource
    lease_id: OwnId
    holder: Label
    """Agent id; the key's name where no agent is behind it."""
    holder_incarnation: Number = 0
    """The life of the agent; 0 without an agent."""
    fencing_token: Positive
    expires_at: Moment
    """As it was granted; renewals are not logged."""


class LeaseEnded(Payload):
    """A lease is over, and why."""

    resource: Resource
    lease_id: OwnId
    holder: Label
    fencing_token: Positive
    reason: EndReason


class ShardLease(Payload):
    """The lease of one shard."""

    shard: Number
    lease_id: OwnId
    fencing_token: Positive


class ShardsGranted(Payload):
    """A prober has more shards."""

    holder: Label
    """The key that it shows, and its own name behind a slash."""
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    expires_at: Moment
    """As they were granted; renewals are not logged."""


class ShardsEnded(Payload):
    """A prober has fewer shards, and why."""

    holder: Label
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    reason: EndReason


class FencedWriteRejected(Payload):
    """A guarded write was refused and changed nothing."""

    resource: Resource
    writer: Label
    """Who tried."""
    fencing_token: Number
    """What it came with."""
    current_token: Number
    """The last one granted; 0 if there was none."""
    reason: RefusalCode


class StateWritten(Payload):
    """The holder of a resource wrote its state; what it wrote is not told here."""

    resource: Resource
    holder: Label
    fencing_token: Positive
    version: Positive
    """Of the state, after the write."""


class TaskCreated(Payload):
    """There is something to be done. Who may do it, and what it is, is not told here."""

    task_id: OwnId
    parent_id: OwnId | None = None
    """Of which task it was delegated: the envelope is carved out of that one's."""
    fix_of: OwnId | None = None
    """The task whose review has rejected the work."""
    tokens: Number
    """Of the envelope, like `micro_usd`."""
    micro_usd: Number


class TaskLifecycle(Payload):
    """A task went on. Whose lease began or ended with it, the events before this one tell."""

    task_id: OwnId
    previous_status: TaskStatus
    new_status: TaskStatus
    signal: TaskSignal
    run_id: OwnId | None = None
    """The run that begins or ends with it."""
    exit_reason: ExitReason | None = None
    """Of the run that ends."""
    exit_code: Annotated[int, Field(ge=-255, le=255, strict=True), WHOLE] | None = None
    not_before: Moment | None = None
    """Of a task that is to be tried again: until then nobody may claim it."""


class TaskReported(Payload):
    """A progress report was written; what it says is not told here."""

    task_id: OwnId
    run_id: OwnId
    report: Positive
    """Its number, over all runs of the task."""


class TaskBudgetChanged(Payload):
    """An envelope was topped up."""

    task_id: OwnId
    tokens: Number
    """Of the envelope now, like `micro_usd`."""
    micro_usd: Number


class MonitorTurned(Payload):
    """Verdicts by silence are suspended on one track, or believed again; the event's type says which."""

    track: Track | None = None
    """Absent from what older versions have written."""
    previous: MonitorState
    turn: MonitorChange
    exits: Number
    """Who would have gone, or is still waiting."""
    limit: Number
    """How many exits in one cadence would have been believed."""
    unwitnessed: Number | None = None
    """How many of the exits no request of any agent bears out; absent from older events."""


class MonitorDowntime(Payload):
    """We did not look for 10 s or longer: this time is nobody's silence, nor is a shorter one."""

    begin: Moment
    end: Moment


class EvidenceTurned(Payload):
    """Living agents of which nothing is known, through a fault of the monitoring; all 0 when it is over."""

    agents: Number
    no_prober: Number
    """Of these: no result of any kind came."""
    no_witness: Number
    """Of these: the last probe failed, and nothing proved that the prober could have reached the agent."""
    prober_slow: Number
    """Of these: the prober was overloaded or stopped."""
    since: Moment
    """Since when there was any such agent."""


class ProberFailures(Payload):
    """How many results of a prober's key about living agents were failures, in one period."""

    key_id: OwnId
    results: Number
    """Measured ones."""
    failed: Number


class OutageConfirmed(Payload):
    """What an operator confirmed: exactly one of both. The event's actor is who did."""

    network_class: Label | None = None
    """All targets of this network class."""
    agent_id: AgentId | None = None
    """This agent or target alone."""


class MonitorClockJump(Payload):
    """The database's clock went another way than ours."""

    jump_seconds: Seconds
    """By how much more it advanced; negative if less."""


class KeyChanged(Payload):
    """A key was created, rotated, revoked or limited. The key itself is nowhere."""

    key_id: OwnId
    name: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=_PRINTABLE)]
    role: Word
    agent_id: AgentId | None = None
    """Whose own it is."""
    fingerprint: Hash | None = None
    """SHA-256 of what is stored of the key; absent from what older versions have written."""
    expires_at: Moment | None = None
    """When it ends, after the change; absent: it stays, or there is no fingerprint either."""
    max_workers: Positive | None = None
    """How many workers may probe with it at a time, after the change; absent: the server's setting."""


class WebhookChanged(Payload):
    """A webhook was created, got a new secret, was deleted, or is disabled since it failed too often."""

    webhook_id: OwnId
    host: Host
    """Where it leads; the rest of its URL may hold a secret."""
    failures: Number = 0
    """In a row."""


class DirectoryChanged(Payload):
    """A directory lists other targets than before, or would."""

    directory: Label
    listed: Number
    """How many it lists now; what is held counts."""
    added: Number
    removed: Number
    """How many left it; of a list that is held, how many would."""
    reason: Annotated[str, Field(max_length=MAX_EXPLANATION_CHARACTERS)] | None = None
    """Why it is held."""


class OriginChanged(Payload):
    """An origin is probed no more, or again."""

    origin: Annotated[str, StringConstraints(pattern=r"^https?://[!-~]{1,300}$")]
    targets: Number
    """How many of them are concerned now."""


class EpochRaised(Payload):
    """The store was restored or failed over: from now on all fencing tokens are higher."""

    previous_epoch: Epoch
    new_epoch: Epoch
    reason: Name | None = None


class LogArchived(Payload):
    """A closed prefix of the log left the database."""

    first_sequence: Positive
    last_sequence: Positive
    last_hash: Hash
    file: Label | None = None
    """Its name, without a path."""


class ArchiveErased(Payload):
    """The payloads of an erased agent's events gave way to their hashes in all archived files."""

    agent_id: AgentId
    erased_sequence: Positive
    """Of the `agent.erased` that this completes: what came before it is gone."""


class Erased(Payload):
    """What stands in place of a payload that was erased."""

    erased: Hash
    """Of the payload's canonical form."""


PAYLOADS: Mapping[EventType, type[Payload]] = MappingProxyType({
    EventType.AGENT_LIFECYCLE:           AgentLifecycle,
    EventType.AGENT_UPDATED:             AgentUpdated,
    EventType.LIFESIGN_CHANGED:      AgentHealthChanged,
    EventType.AGENT_DRIFT_WARNING:       DriftWarning,
    EventType.AGENT_TASKS_MISMATCH:      TasksMismatch,
    EventType.AGENT_DRAIN_WARNING:       DrainWarning,
    EventType.AGENT_MAINTENANCE_CHANGED: MaintenanceChanged,
    EventType.AGENT_OVERRIDE_CHANGED:    OverrideChanged,
    EventType.AGENT_COMMAND_SENT:        CommandSent,
    EventType.AGENT_COMMAND_HONOURED:    CommandEnded,
    EventType.AGENT_COMMAND_EXPIRED:     CommandEnded,
    EventType.AGENT_LINKED:              AgentLinked,
    EventType.AGENT_UNLINKED:            AgentUnlinked,
    EventType.AGENT_LINK_CONFLICT:       AgentLinkConflict,
    EventType.AGENT_ERASED:              AgentErased,
    EventType.COORDINATOR_LOST:          CoordinatorLost,
    EventType.LEASE_ACQUIRED:            LeaseAcquired,
    EventType.LEASE_RELEASED:            LeaseEnded,
    EventType.LEASE_EXPIRED:             LeaseEnded,
    EventType.SHARDS_GRANTED:            ShardsGranted,
    EventType.SHARDS_ENDED:              ShardsEnded,
    EventType.FENCED_WRITE_REJECTED:     FencedWriteRejected,
    EventType.STATE_WRITTEN:             StateWritten,
    EventType.TASK_CREATED:              TaskCreated,
    EventType.TASK_LIFECYCLE:            TaskLifecycle,
    EventType.TASK_REPORTED:             TaskReported,
    EventType.TASK_BUDGET_CHANGED:       TaskBudgetChanged,
    EventType.MONITOR_HELD:              MonitorTurned,
    EventType.MONITOR_RECOVERING:        MonitorTurned,
    EventType.MONITOR_NORMAL:            MonitorTurned,
    EventType.MONITOR_DOWNTIME:          MonitorDowntime,
    EventType.MONITOR_CLOCK_JUMP:        MonitorClockJump,
    EventType.MONITOR_EVIDENCE_LOST:     EvidenceTurned,
    EventType.MONITOR_EVIDENCE_RESTORED: EvidenceTurned,
    EventType.MONITOR_CONFIRMED:         OutageConfirmed,
    EventType.PROBER_FAILURES_HIGH:      ProberFailures,
    EventType.PROBER_FAILURES_NORMAL:    ProberFailures,
    EventType.KEY_CREATED:               KeyChanged,
    EventType.KEY_ROTATED:               KeyChanged,
    EventType.KEY_REVOKED:               KeyChanged,
    EventType.KEY_LIMITED:               KeyChanged,
    EventType.WEBHOOK_CREATED:           WebhookChanged,
    EventType.WEBHOOK_SECRET_ROTATED:    WebhookChanged,
    EventType.WEBHOOK_DELETED:           WebhookChanged,
    EventType.WEBHOOK_DISABLED:          WebhookChanged,
    EventType.DIRECTORY_APPLIED:         DirectoryChanged,
    EventType.DIRECTORY_HELD:            DirectoryChanged,
    EventType.DIRECTORY_CONFIRMED:       DirectoryChanged,
    EventType.ORIGIN_OPTED_OUT:          OriginChanged,
    EventType.ORIGIN_OPTED_IN:           OriginChanged,
    EventType.EPOCH_RAISED:              EpochRaised,
    EventType.LOG_ARCHIVED:              LogArchived,
    EventType.ARCHIVE_ERASED:            ArchiveErased,
})  # fmt: skip


class EventDraft(BaseModel):
    """What a deed wants to be logged, before it has its place in the chain."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: EventType
    actor: Actor
    payload: Payload
    agent_id: Label | None = None
    """Whose event it is, so that it is found and erased with the agent; `event_chain.whose` says the same."""
    intent_id: Label | None = None

    @model_validator(mode="after")
    def _is_of_its_type(self) -> Self:
        if type(self.payload) is not PAYLOADS[self.type]:
            raise PydanticCustomError("wrong_payload", "not the payload of this type of event")
        return self
