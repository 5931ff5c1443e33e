"""Events: their types and payloads."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from pydantic import (
    BaseModel,
    ConfigDict,
    model_validator,
)
from pydantic_core import PydanticCustomError

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
from lifesign.domain.events.event_type import EventType
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
from lifesign.domain.events.payload_fields import Actor, Label, Payload
from lifesign.domain.events.registry_payloads import (
    ArchiveErased,
    DirectoryChanged,
    KeyChanged,
    LogArchived,
    OriginChanged,
    WebhookChanged,
)
from lifesign.domain.events.task_payloads import TaskBudgetChanged, TaskCreated, TaskLifecycle, TaskReported

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


class EventDraft(BaseModel):
    """An event before it has a position in the chain."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: EventType
    actor: Actor
    payload: Payload
    agent_id: Label | None = None
    """Agent of the event, by which it is found and erased; the same as `event_chain.agent_of`."""
    intent_id: Label | None = None

    @model_validator(mode="after")
    def _check_payload_type(self) -> Self:
        if type(self.payload) is not PAYLOADS[self.type]:
            raise PydanticCustomError("wrong_payload", "not the payload of this type of event")
        return self
