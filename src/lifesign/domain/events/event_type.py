"""The types of events, and the payload of each."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from lifesign.domain.events.agent_payloads import (
    AgentErased,
    AgentHealthChanged,
    AgentLifecycle,
    AgentLinkConflict,
    AgentLinked,
    AgentUnlinked,
    AgentUpdated,
    CommandEnded,
    CommandSent,
    CoordinatorLost,
    DrainWarning,
    DriftWarning,
    MaintenanceChanged,
    StatusOverrideChanged,
    TargetInterfaceChanged,
    TasksMismatch,
)
from lifesign.domain.events.lease_payloads import (
    EpochRaised,
    FencedWriteRejected,
    LeaseAcquired,
    LeaseEnded,
    ShardsEnded,
    ShardsGranted,
    StateWritten,
)
from lifesign.domain.events.monitor_payloads import (
    CredentialFaultChanged,
    LostEvidenceChanged,
    MonitorClockJump,
    MonitorDowntime,
    MonitorStateChanged,
    OutageConfirmed,
    ProberFailures,
)
from lifesign.domain.events.payload_fields import Payload
from lifesign.domain.events.registry_payloads import (
    ArchiveErased,
    DirectoryChanged,
    KeyChanged,
    LogArchived,
    OriginChanged,
    WebhookChanged,
)
from lifesign.domain.events.task_payloads import TaskBudgetChanged, TaskCreated, TaskLifecycle, TaskReported


class EventType(StrEnum):
    """Types of events: a closed list."""

    AGENT_LIFECYCLE = "agent.lifecycle"
    """A status changed (RFC-0016 2.3)."""
    AGENT_UPDATED = "agent.updated"
    AGENT_HEALTH_CHANGED = "agent.health_changed"
    AGENT_DRIFT_WARNING = "agent.drift_warning"
    AGENT_TASKS_MISMATCH = "agent.tasks_mismatch"
    AGENT_DRAIN_WARNING = "agent.drain_warning"
    """The drain timeout is over and the agent still holds leases (RFC-0016 5.2)."""
    AGENT_MAINTENANCE_CHANGED = "agent.maintenance_changed"
    AGENT_OVERRIDE_CHANGED = "agent.override_changed"
    AGENT_COMMAND_SENT = "agent.command_sent"
    AGENT_COMMAND_HONOURED = "agent.command_honoured"
    """The agent followed a queued command."""
    AGENT_COMMAND_EXPIRED = "agent.command_expired"
    """A queued command expired before the agent followed it."""
    AGENT_LINKED = "agent.linked"
    """A registered agent and a crawled target are one record from now on."""
    AGENT_UNLINKED = "agent.unlinked"
    AGENT_LINK_CONFLICT = "agent.link_conflict"
    """Several agents have proven a claim for one target; it is linked to none."""
    AGENT_ERASED = "agent.erased"
    TARGET_INTERFACE_CHANGED = "target.interface_changed"
    """The published interface of an agent has changed: its card, or the tools of its MCP server."""
    COORDINATOR_LOST = "coordinator.lost"
    """A coordinator is dead: failover begins (RFC-0016 10.2)."""
    LEASE_ACQUIRED = "lease.acquired"
    LEASE_RELEASED = "lease.released"
    """A lease was released by its holder, or revoked by a coordinator or an operator."""
    LEASE_EXPIRED = "lease.expired"
    """A lease ended without a release or a revocation: it expired, its agent became dead or was deregistered,
    or the epoch was raised."""
    SHARDS_GRANTED = "shards.granted"
    """Leases of many shards at once: one `lease.acquired` for each would flood the log."""
    SHARDS_ENDED = "shards.ended"
    """The same at their end, for whatever reason."""
    FENCED_WRITE_REJECTED = "fenced_write_rejected"
    STATE_WRITTEN = "state.written"
    TASK_CREATED = "task.created"
    TASK_LIFECYCLE = "task.lifecycle"
    """A task's status changed."""
    TASK_REPORTED = "task.reported"
    """The holder of a task has reported progress."""
    TASK_BUDGET_CHANGED = "task.budget_changed"
    """A budget was topped up; spending is not logged."""
    MONITOR_SUSPENDED = "monitor.suspended"
    """Verdicts are suspended for one track: silence makes none of its agents unhealthy or dead."""
    MONITOR_RESUMING = "monitor.resuming"
    """A suspension ended. Its agents that are still silent become unhealthy or dead now."""
    MONITOR_NORMAL = "monitor.normal"
    """No agent of an earlier suspension is left: the track is in its normal state again."""
    MONITOR_DOWNTIME = "monitor.downtime"
    MONITOR_CLOCK_JUMP = "monitor.clock_jump"
    MONITOR_EVIDENCE_LOST = "monitor.evidence_lost"
    """Living agents have had old evidence for `evidence_lost_after`, because the monitoring has a fault."""
    MONITOR_EVIDENCE_RESTORED = "monitor.evidence_restored"
    """No living agent has old evidence any more because of a fault of the monitoring."""
    MONITOR_CONFIRMED = "monitor.confirmed"
    """An operator confirmed that a network class, or one agent, may be down."""
    PROBER_FAILURES_HIGH = "prober.failures_high"
    """More than half of the results of one prober's key about living agents are failures."""
    PROBER_FAILURES_NORMAL = "prober.failures_normal"
    """At most half of the results of this key are failures again."""
    PROBER_CREDENTIAL_FAILED = "prober.credential_failed"
    """A credential of a prober is rejected, or gets no token."""
    PROBER_CREDENTIAL_FAULT_ENDED = "prober.credential_fault_ended"
    """The credential works again, or no living prober reports it any more."""
    KEY_CREATED = "key.created"
    """A key was created."""
    KEY_ROTATED = "key.rotated"
    """A key got a successor, and expires soon. A `key.created` event shows the successor."""
    KEY_REVOKED = "key.revoked"
    """A key was revoked: it is refused from now on."""
    KEY_LIMITED = "key.limited"
    """The maximum number of workers that may probe with a key was changed."""
    KEY_SUSPENDED = "key.suspended"
    """A key is refused until an operator confirms it. A backup was restored: the key may have been revoked
    after that backup was made."""
    KEY_CONFIRMED = "key.confirmed"
    """An operator confirmed a suspended key: it is valid again."""
    WEBHOOK_CREATED = "webhook.created"
    """A webhook was created."""
    WEBHOOK_SECRET_ROTATED = "webhook.secret_rotated"  # noqa: S105 - the name of a type
    """A webhook got a new secret."""
    WEBHOOK_DELETED = "webhook.deleted"
    """A webhook was deleted."""
    WEBHOOK_DISABLED = "webhook.disabled"
    """A webhook was disabled after three days of failed deliveries."""
    DIRECTORY_APPLIED = "directory.applied"
    """A directory's new list took the place of the old one."""
    DIRECTORY_SUSPENDED = "directory.suspended"
    """A directory's list has shrunk so much that missing targets are kept until an operator confirms it."""
    DIRECTORY_CONFIRMED = "directory.confirmed"
    """An operator confirmed the suspended removals: the missing targets are removed now."""
    ORIGIN_OPTED_OUT = "origin.opted_out"
    """An owner has proven that the origin must not be probed."""
    ORIGIN_OPTED_IN = "origin.opted_in"
    """An origin may be probed again."""
    EPOCH_RAISED = "epoch.raised"
    LOG_ARCHIVED = "log.archived"
    """The oldest events moved to a file; the first remaining event builds on the hash of the last of them."""
    ARCHIVE_ERASED = "archive.erased"
    """The events of an erased agent were erased in archived files too."""


PAYLOADS: Mapping[EventType, type[Payload]] = MappingProxyType({
    EventType.AGENT_LIFECYCLE:           AgentLifecycle,
    EventType.AGENT_UPDATED:             AgentUpdated,
    EventType.AGENT_HEALTH_CHANGED:      AgentHealthChanged,
    EventType.AGENT_DRIFT_WARNING:       DriftWarning,
    EventType.AGENT_TASKS_MISMATCH:      TasksMismatch,
    EventType.AGENT_DRAIN_WARNING:       DrainWarning,
    EventType.AGENT_MAINTENANCE_CHANGED: MaintenanceChanged,
    EventType.AGENT_OVERRIDE_CHANGED:    StatusOverrideChanged,
    EventType.AGENT_COMMAND_SENT:        CommandSent,
    EventType.AGENT_COMMAND_HONOURED:    CommandEnded,
    EventType.AGENT_COMMAND_EXPIRED:     CommandEnded,
    EventType.AGENT_LINKED:              AgentLinked,
    EventType.AGENT_UNLINKED:            AgentUnlinked,
    EventType.AGENT_LINK_CONFLICT:       AgentLinkConflict,
    EventType.AGENT_ERASED:              AgentErased,
    EventType.TARGET_INTERFACE_CHANGED:  TargetInterfaceChanged,
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
    EventType.MONITOR_SUSPENDED:              MonitorStateChanged,
    EventType.MONITOR_RESUMING:        MonitorStateChanged,
    EventType.MONITOR_NORMAL:            MonitorStateChanged,
    EventType.MONITOR_DOWNTIME:          MonitorDowntime,
    EventType.MONITOR_CLOCK_JUMP:        MonitorClockJump,
    EventType.MONITOR_EVIDENCE_LOST:     LostEvidenceChanged,
    EventType.MONITOR_EVIDENCE_RESTORED: LostEvidenceChanged,
    EventType.MONITOR_CONFIRMED:         OutageConfirmed,
    EventType.PROBER_FAILURES_HIGH:      ProberFailures,
    EventType.PROBER_FAILURES_NORMAL:    ProberFailures,
    EventType.PROBER_CREDENTIAL_FAILED:      CredentialFaultChanged,
    EventType.PROBER_CREDENTIAL_FAULT_ENDED: CredentialFaultChanged,
    EventType.KEY_CREATED:               KeyChanged,
    EventType.KEY_ROTATED:               KeyChanged,
    EventType.KEY_REVOKED:               KeyChanged,
    EventType.KEY_LIMITED:               KeyChanged,
    EventType.KEY_SUSPENDED:             KeyChanged,
    EventType.KEY_CONFIRMED:             KeyChanged,
    EventType.WEBHOOK_CREATED:           WebhookChanged,
    EventType.WEBHOOK_SECRET_ROTATED:    WebhookChanged,
    EventType.WEBHOOK_DELETED:           WebhookChanged,
    EventType.WEBHOOK_DISABLED:          WebhookChanged,
    EventType.DIRECTORY_APPLIED:         DirectoryChanged,
    EventType.DIRECTORY_SUSPENDED:            DirectoryChanged,
    EventType.DIRECTORY_CONFIRMED:       DirectoryChanged,
    EventType.ORIGIN_OPTED_OUT:          OriginChanged,
    EventType.ORIGIN_OPTED_IN:           OriginChanged,
    EventType.EPOCH_RAISED:              EpochRaised,
    EventType.LOG_ARCHIVED:              LogArchived,
    EventType.ARCHIVE_ERASED:            ArchiveErased,
})  # fmt: skip
