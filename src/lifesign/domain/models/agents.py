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
from lifesign.domain.lifecycle.verdict import DecidingEvidence
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
from lifesign.domain.observation.assertion import AssertionResult, KeptFailure
from lifesign.domain.observation.evidence_age import UnknownReason, is_evidence_old
from lifesign.domain.observation.login import Login
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import TargetKind

MAX_TASKS = 1_000
MAX_HEARTBEAT_BYTES = 262_144
"""Maximum length of a heartbeat's body: a thousand tasks of 256 ASCII characters."""
DEFAULT_DRAIN_SECONDS = 120


class Capacity(Body):
    """Capacity of an agent (RFC-0016 1.1). Advisory."""

    max_concurrent_tasks: Load | None = None
    current_load: Load = 0


class HeartbeatConfig(Body):
    """Interval of an agent's heartbeats, and its timeouts (RFC-0016 1.1, 3.3)."""

    interval_seconds: WholeSeconds = 30
    unhealthy_after_seconds: WholeSeconds = 90
    dead_after_seconds: WholeSeconds = 300

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
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
"""Thresholds for an agent that is monitored only by probes."""


class DeclaredAgent(Body):
    """What an agent declares about itself: the members of its record that a registration sets."""

    agent_id: AgentId | None = None
    """Id of the agent; absent: the registry chooses `agent_<ulid>`."""
    role_id: RoleId | None = None
    name: Name | None = None
    capabilities: Capabilities = []  # noqa: RUF012 - pydantic copies it
    capacity: Capacity = Capacity()
    endpoint: Url | None = None
    card_url: Url | None = None
    heartbeat_config: HeartbeatConfig | None = None
    drain_timeout_seconds: Seconds = DEFAULT_DRAIN_SECONDS
    monitoring: DecidingEvidence = DecidingEvidence.HEARTBEAT
    metadata: Metadata = {}  # noqa: RUF012 - pydantic copies it

    def thresholds(self) -> HeartbeatConfig:
        """The agent's declared heartbeat settings; without them, the defaults for its kind of monitoring."""
        if self.heartbeat_config is not None:
            return self.heartbeat_config
        return PROBED_CONFIG if self.monitoring is DecidingEvidence.PROBE else HeartbeatConfig()


class FoundAgent(DeclaredAgent):
    """The declared part of the record of an agent that a prober found and that never registered."""

    target_url: Annotated[str, StringConstraints(max_length=2048)]
    """As `target.read_target` normalises it."""
    monitoring: DecidingEvidence = DecidingEvidence.PROBE


class Registration(DeclaredAgent):
    """The body of `POST /api/v1/agents` (RFC-0016 3.1)."""

    agent_id: OwnAgentId | None = None
    supersede: StrictBool = False
    """End the present incarnation of this id and start a new one."""

    @model_validator(mode="after")
    def _require_card_url(self) -> Self:
        if self.monitoring is not DecidingEvidence.HEARTBEAT and self.card_url is None:
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
    """Time by the agent's clock, used only to detect clock drift (RFC-0016 4.5)."""


class StatusChange(Body):
    """The body of `PATCH /api/v1/agents/{agent_id}/status` (RFC-0016 5.1)."""

    status: Literal["draining", "deregistered"]
    drain_timeout_seconds: Seconds | None = None


class CommandRequest(Body):
    """The body of `POST /api/v1/agents/{agent_id}/commands` (RFC-0016 5.3)."""

    command: Literal["drain"]
    reason: Name | None = None
    drain_timeout_seconds: Seconds | None = None
    expires_in_seconds: Seconds | None = None
    """Time after which the command expires if the agent has not followed it; without it, the server's
    `command_ttl`."""


RENEW_LEASES: Final = "renew_leases"
"""Command to an agent that reports tasks whose lease it has lost; not stored."""


class PendingCommand(BaseModel):
    """A command to an agent. Each reply to a heartbeat contains it until the agent has executed it.

    It ends earlier if it expires, or if the agent leaves. `renew_leases` has a new id in each reply.
    """

    id: str
    command: str
    reason: str | None = None
    drain_timeout_seconds: Duration | None = None


class SentCommand(PendingCommand):
    """A command that was queued for an agent."""

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
    """Health; `unknown` also if the last observation is too old (see `unknown_reason`)."""
    unknown_reason: UnknownReason | None = None
    """Reason why `health` is unknown although a document was read, or why nothing is known about a probed
    agent.
    """
    evidence_at: Time | None = None
    """Time of the last measurement by a probe; absent without one."""
    failing_probes: int | None = None
    """Number of the latest probes that failed while the agent is still active; absent below two, or if they
    are too old.

    The status changes once the failures have lasted for `unhealthy_after_seconds`.
    """
    is_unreachable: bool = False
    """True if the declared interface fails when it is probed, and no fresh health document contradicts that.

    An agent can be active nevertheless: by its heartbeats, or because its card is still served.
    """
    monitoring: DecidingEvidence
    kind: Annotated[TargetKind, Field(strict=False)] | None = None
    """`mcp` if it was last probed as an MCP server; absent: as an A2A agent, or never."""
    last_heartbeat_at: Time | None = None
    """Time of the last heartbeat, at first of the registration; absent for an agent that is monitored only by
    probes.
    """
    endpoint: str | None = None
    card_url: str | None = None
    """Registered URL of the card. For a target that probers found: URL where the card was read last, absent
    without one.
    """
    target_url: str | None = None
    """URL of a target that probers found, as its directory lists it."""


class ReportedState(BaseModel):
    """State of an agent as its last heartbeat reported it."""

    last_heartbeat_at: Time | None = None
    """As in the list of agents."""
    current_load: int
    tasks_in_progress: list[str]


class ObservedLayer(BaseModel):
    """Last result of one layer of probes, such as card or interface."""

    result: ResultClass
    reason: str
    """Finding in words, for people."""
    status_code: int | None = None
    latency_ms: float | None = None
    observed_at: Time


class DocumentShown(BaseModel):
    """The health document of an agent that a prober read last."""

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
    """Why the last probes of an agent measured nothing, and since when."""

    since: Time
    reason: str


class ObservedState(BaseModel):
    """State of an agent as probers have observed it."""

    last_observed_at: Time | None = None
    last_liveness_signal_at: Time | None = None
    inconclusive: InconclusiveState | None = None
    """Absent in lists: only the answer for a single record has it."""
    failures_in_row: int
    """Number of measured failures since the last liveness signal."""
    recent_interactions: str
    """Last measured interactions, oldest first: 1 for an answer, 0 for a failure."""
    kind: TargetKind | None = None
    """`mcp` if the layers are those of an MCP server; absent: those of an A2A agent."""
    discovery: ObservedLayer | None = None
    transport: ObservedLayer | None = None
    readiness: ObservedLayer | None = None
    message: ObservedLayer | None = None
    paths: dict[str, ObservedLayer] | None = None
    """Last results of further requests of the probe definition, by path; they affect no verdict."""
    document: DocumentShown | None = None
    assertions: list[KeptFailure | AssertionResult] | None = None
    """Last result of each assertion. An assertion that was not measured keeps its earlier failure, with the
    time of the failure in `measured_at`."""
    login: Login | None = None
    """Login that the agent asks for: challenge, security schemes of the card, OAuth metadata."""
    reported_agent_id: str | None = None
    """Name that the agent reports; never a key."""


class OverrideShown(BaseModel):
    """A status that an operator has set for an agent, and until when."""

    status: Status
    until: Time


class AgentRecord(AgentSummary):
    """The complete record of one agent (RFC-0016 1), with reported and observed facts."""

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
    """Reason for the status in words, as of the last change of the status."""
    current_explanation: str | None = None
    """Current state in words."""
    drain_deadline: Time | None = None
    maintenance_until: Time | None = None
    override: OverrideShown | None = None
    reported: ReportedState
    observed: ObservedState | None = None
    """Observations of probers; absent if the agent was never probed."""
    pending_commands: list[PendingCommand] | None = None
    """Commands for the next heartbeat, the oldest first; only the answer for a single record has them."""
    links: list[LinkShown] | None = None
    """Crawled targets that the agent claims; only the answer for a single record has them."""
    names: dict[str, str] | None = None
    """Names of the keys in `explanation`; only in the answer for a single record, to callers that may read
    all events.
    """
    agent_key: Annotated[str | None, Field(repr=False)] = None
    """Key of the agent; shown once, to the caller that registered it with another key."""

    @property
    def has_old_evidence(self) -> bool:
        """Whether the results of probes are too old to count."""
        return is_evidence_old(self.unknown_reason)


class Pool(BaseModel):
    """Agents that share a role (RFC-0016 7.2)."""

    role_id: str
    members: dict[Status, int]
    """Number of members per status."""
    max_concurrent_tasks: int
    """Sum over the active members that report a value."""
    current_load: int
    available_capacity: int


class AgentList(BaseModel):
    """The answer to `GET /api/v1/agents` (RFC-0016 6.1)."""

    agents: list[AgentSummary]
    total: int
    """Number of matching agents. Above 1,000 it may be up to five seconds old."""
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""
    pool: Pool | None = None


class Erasure(BaseModel):
    """Result of the erasure of an agent."""

    agent_id: str
    events: int
    """Number of payloads that were replaced by their hash."""
    archived_sequence: int
    """Sequence up to which events are in archive files. Events of this agent there are erased within an hour,
    or once the files are accessible again; `archive.erased` reports it. 0 if there are no archives.
    """


def etag_of(incarnation: int, version: int) -> str:
    """Return the entity tag of an agent's record, which differs for each incarnation and version."""
    return f'"{version}"' if incarnation == 1 else f'"{incarnation}.{version}"'
