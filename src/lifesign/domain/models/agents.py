"""Agent records and their requests (RFC-0016 1, 3, 4, 5).

These are the request bodies and the record in answers. Unknown members are refused, so that a misspelt
setting is not silently ignored.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    StrictBool,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import HealthStatus, Time
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.domain.lifecycle.verdict import Monitoring
from lifesign.domain.models.base import (
    AgentId,
    Body,
    Capabilities,
    Duration,
    Load,
    Metadata,
    Name,
    OwnAgentId,
    RoleId,
    Seconds,
    TaskId,
    Url,
    WholeSeconds,
)
from lifesign.domain.models.links import LinkShown
from lifesign.domain.observation.assertion import AssertionResult
from lifesign.domain.observation.evidence_age import UnknownReason, is_evidence_old
from lifesign.domain.observation.results import ResultClass

MAX_TASKS = 1_000
DEFAULT_DRAIN_SECONDS = 120


class Capacity(Body):
    """Capacity of an agent (RFC-0016 1.1). Advisory."""

    max_concurrent_tasks: Load | None = None
    current_load: Load = 0


class HeartbeatConfig(Body):
    """How often an agent beats, and how long it may be silent (RFC-0016 1.1, 3.3)."""

    interval_seconds: WholeSeconds = 30
    unhealthy_after_seconds: WholeSeconds = 90
    dead_after_seconds: WholeSeconds = 300

    @model_validator(mode="after")
    def _leave_room(self) -> Self:
        if self.unhealthy_after_seconds < 2 * self.interval_seconds:
            raise PydanticCustomError(
                "threshold_too_short", "expected unhealthy_after_seconds to be at least 2 x interval_seconds"
            )
        if self.dead_after_seconds < 2 * self.unhealthy_after_seconds:
            raise PydanticCustomError(
                "threshold_too_short",
                "expected dead_after_seconds to be at least 2 x unhealthy_after_seconds",
            )
        return self


PROBED_CONFIG = HeartbeatConfig(interval_seconds=300, unhealthy_after_seconds=900, dead_after_seconds=3600)
"""How long an agent that is watched by probes alone may show no sign of life."""


class DeclaredAgent(Body):
    """First members of a record."""

    agent_id: AgentId | None = None
    """Ours to choose if absent: `agent_<ulid>`."""
    role_id: RoleId | None = None
    name: Name | None = None
    capabilities: Capabilities = []  # noqa: RUF012 - pydantic copies it
    capacity: Capacity = Capacity()
    endpoint: Url | None = None
    card_url: Url | None = None
    heartbeat_config: HeartbeatConfig | None = None
    drain_timeout_seconds: Seconds = DEFAULT_DRAIN_SECONDS
    monitoring: Monitoring = Monitoring.HEARTBEAT
    metadata: Metadata = {}  # noqa: RUF012 - pydantic copies it

    def thresholds(self) -> HeartbeatConfig:
        """The declared thresholds, else the defaults of how it is monitored."""
        if self.heartbeat_config is not None:
            return self.heartbeat_config
        return PROBED_CONFIG if self.monitoring is Monitoring.PROBE else HeartbeatConfig()


class FoundAgent(DeclaredAgent):
    """First members of the record of a target, which a prober found and which has reported nothing."""

    target_url: Annotated[str, StringConstraints(max_length=2048)]
    """As `target.read_target` spells it."""
    monitoring: Monitoring = Monitoring.PROBE


class Registration(DeclaredAgent):
    """The body of `POST /api/v1/agents` (RFC-0016 3.1)."""

    agent_id: OwnAgentId | None = None
    supersede: StrictBool = False
    """End the life of an agent of this id that is still alive, and begin a new one."""

    @model_validator(mode="after")
    def _can_be_probed(self) -> Self:
        if self.monitoring is not Monitoring.HEARTBEAT and self.card_url is None:
            raise PydanticCustomError(
                "card_url_missing", "expected a card_url, which monitoring by probes needs"
            )
        return self


class AgentUpdate(Body):
    """Body of `PATCH /api/v1/agents/{agent_id}`: absent members stay unchanged."""

    name: Name | None = None
    capabilities: Capabilities | None = None
    max_concurrent_tasks: Load | None = None
    endpoint: Url | None = None
    card_url: Url | None = None
    heartbeat_config: HeartbeatConfig | None = None
    drain_timeout_seconds: Seconds | None = None
    metadata: Metadata | None = None


class Heartbeat(Body):
    """The body of `POST /api/v1/agents/{agent_id}/heartbeat` (RFC-0016 4.1)."""

    status: Literal["active", "draining"]
    current_load: Load | None = None
    tasks_in_progress: Annotated[list[TaskId], Field(max_length=MAX_TASKS)] | None = None
    client_timestamp: Annotated[AwareDatetime, Field(strict=True)]
    """By the agent's clock; compared for drift, without further effect (RFC-0016 4.5)."""


class StatusChange(Body):
    """The body of `PATCH /api/v1/agents/{agent_id}/status` (RFC-0016 5.1)."""

    status: Literal["draining", "deregistered"]
    drain_timeout_seconds: Seconds | None = None


class CommandRequest(Body):
    """The body of `POST /api/v1/agents/{agent_id}/commands` (RFC-0016 5.3)."""

    command: Literal["drain"]
    reason: Name | None = None
    drain_timeout_seconds: Seconds | None = None
    expires_in_seconds: Seconds = 3600


RENEW_LEASES: Final = "renew_leases"
"""Command to an agent that reports tasks which are not leased to it: sent in one reply, and not stored."""


class PendingCommand(BaseModel):
    """A directive that rides home in a heartbeat's reply, until it is honoured or expires."""

    id: str
    command: str
    reason: str | None = None
    drain_timeout_seconds: Duration | None = None


class SentCommand(PendingCommand):
    """A command that waits for its agent."""

    agent_id: str
    created_at: Time
    expires_at: Time


class HeartbeatReply(BaseModel):
    """The answer to a heartbeat (RFC-0016 4.2)."""

    acknowledged: bool
    server_timestamp: Time
    agent_status: Status
    pending_commands: list[PendingCommand]


class AgentSummary(BaseModel):
    """One agent in a listing (RFC-0016 6.1)."""

    agent_id: str
    role_id: str | None = None
    name: str | None = None
    capabilities: list[str]
    capacity: Capacity
    status: Status
    health: HealthStatus
    """`unknown` also once what was observed is too old: see `unknown_reason`."""
    unknown_reason: UnknownReason | None = None
    """Why `health` is unknown although a document was read, or nothing is known of a probed agent."""
    evidence_at: Time | None = None
    """When a probe last measured something; absent if none ever did."""
    failing_probes: int | None = None
    """How many of its last probes failed although it is active; absent if fewer than two, or too long ago.

    Its status follows once the failures have lasted for `unhealthy_after_seconds`.
    """
    monitoring: Monitoring
    last_heartbeat_at: Time | None = None
    """Last heartbeat, at first the registration; absent for an agent monitored only by probes."""
    endpoint: str | None = None
    card_url: str | None = None
    """As it registered. Of a target that probers found: where its card was seen last; absent if none was."""
    target_url: str | None = None
    """URL of a target that probers found, as listed by a directory."""


class ReportedState(BaseModel):
    """Last report of an agent: its last heartbeat."""

    last_heartbeat_at: Time | None = None
    """As in a listing."""
    current_load: int
    tasks_in_progress: list[str]


class ObservedLayer(BaseModel):
    """Last result of a layer."""

    result: ResultClass
    reason: str
    """The evidence, in words."""
    status_code: int | None = None
    latency_ms: float | None = None
    observed_at: Time


class DocumentShown(BaseModel):
    """The health document that a prober read last."""

    status: HealthStatus
    timestamp: Time
    observed_at: Time
    is_stale: bool
    response_ratio: float | None = None
    sample_count: int | None = None
    error_ratio: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None


class InconclusiveState(BaseModel):
    """Why probers ask an agent nothing any more that they had asked before."""

    since: Time
    reason: str


class ObservedState(BaseModel):
    """Observations of an agent by probers."""

    last_observed_at: Time | None = None
    last_liveness_signal_at: Time | None = None
    inconclusive: InconclusiveState | None = None
    """Absent while it is asked; told where the record alone is asked for."""
    failures_in_row: int
    """Measured failures since the last sign of life."""
    recent_interactions: str
    """The last measured ones, oldest first: 1 answered, 0 failed."""
    discovery: ObservedLayer | None = None
    transport: ObservedLayer | None = None
    readiness: ObservedLayer | None = None
    message: ObservedLayer | None = None
    document: DocumentShown | None = None
    assertions: list[AssertionResult] | None = None
    """Last result of each assertion; one that was not measured keeps the failure before it."""
    reported_agent_id: str | None = None
    """Name that the agent reports; never a key."""


class OverrideShown(BaseModel):
    """Override by an operator."""

    status: Status
    until: Time


class AgentRecord(AgentSummary):
    """All that is known of one agent (RFC-0016 1); what it says and what was seen stand side by side."""

    heartbeat_config: HeartbeatConfig
    drain_timeout_seconds: Duration
    metadata: dict[str, Any]
    registered_at: Time
    version: int
    incarnation: int
    etag: str
    reason: Reason
    status_since: Time
    explanation: str
    """Why it has this status, in words, as it was found when the status changed."""
    current_explanation: str | None = None
    """Current state in words."""
    is_unreachable: bool = False
    """A prober cannot reach it though it beats; decides nothing."""
    drain_deadline: Time | None = None
    maintenance_until: Time | None = None
    override: OverrideShown | None = None
    reported: ReportedState
    observed: ObservedState | None = None
    """Absent while no prober has looked."""
    pending_commands: list[PendingCommand] | None = None
    """Commands for its next heartbeat, the oldest first; only in the answer for a single record."""
    links: list[LinkShown] | None = None
    """Crawled targets that it claims; told where the record alone is asked for."""
    names: dict[str, str] | None = None
    """Names of the keys in `explanation`; only there, for callers that may read all events."""
    agent_key: Annotated[str | None, Field(repr=False)] = None
    """Its own key; shown once, to the caller that registered it with another key."""

    @property
    def has_old_evidence(self) -> bool:
        """Whether nothing is known now of what a prober would see; a health document may end before that."""
        return is_evidence_old(self.unknown_reason)


class Pool(BaseModel):
    """Agents that share a role (RFC-0016 7.2)."""

    role_id: str
    members: dict[Status, int]
    """How many there are per status."""
    max_concurrent_tasks: int
    """Summed over the active members that say theirs."""
    current_load: int
    available_capacity: int


class AgentList(BaseModel):
    """The answer to `GET /api/v1/agents` (RFC-0016 6.1)."""

    agents: list[AgentSummary]
    total: int
    """How many match. Where they are more than 1,000, it may have been counted up to five seconds ago."""
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""
    pool: Pool | None = None


class Erasure(BaseModel):
    """Result of an erasure."""

    agent_id: str
    events: int
    """How many payloads gave way to their hash."""
    archived_sequence: int
    """Events up to here are in archived files, perhaps some of this agent: they are erased there within an
    hour, or once the files are back, and then `archive.erased` says so. 0 if there are none."""


def etag_of(incarnation: int, version: int) -> str:
    """Return the record's entity tag: tags of older incarnations never match, though versions start again."""
    return f'"{version}"' if incarnation == 1 else f'"{incarnation}.{version}"'
