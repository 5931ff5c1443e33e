"""Records of the monitor: suspensions, mass silence and lost evidence, as the API shows them (protocol 4).

These are the registry's request bodies and answers, also for its client.
"""

from typing import Self

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import Time
from lifesign.domain.lifecycle.verdict_suspension import MonitorState, Track
from lifesign.domain.models.base import AgentId, Body
from lifesign.domain.models.credentials import CredentialFaultShown, MissingCredential
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.results import NetworkClassName


class MonitorRelease(Body):
    """The query of `POST /api/v1/monitor/release`."""

    track: Track | None = None
    """Track to release; absent: both tracks."""


class Confirmation(Body):
    """The body of `POST /api/v1/monitor/confirm`: what an operator knows to be down."""

    network_class: NetworkClassName | None = None
    """Network class such as `public_ipv4` or `10.1.0.0/16`; the confirmation concerns all of its targets."""
    agent_id: AgentId | None = None
    """The single agent or target that is confirmed."""

    @model_validator(mode="after")
    def _require_one_subject(self) -> Self:
        if (self.network_class is None) == (self.agent_id is None):
            raise PydanticCustomError("one_subject", "expected exactly one of network_class and agent_id")
        return self


class Confirmed(BaseModel):
    """The answer to `POST /api/v1/monitor/confirm`."""

    network_class: str | None = None
    agent_id: str | None = None
    confirmed_at: Time
    """Time of the confirmation. A failure needs no witness if the target's last liveness signal is older."""


class ShownSpan(BaseModel):
    """Span of time in which missed heartbeats do not count."""

    begin: Time
    end: Time


class TrackRecord(BaseModel):
    """Whether verdicts by silence are suspended for one kind of monitoring, with the figures."""

    state: MonitorState
    since: Time
    exits: int
    """Number of agents that exited by silence in this cadence; while suspended, number of waiting agents."""
    limit: int
    """Maximum number of exits in one cadence without a suspension."""
    baseline: float
    """Usual number of exits per cadence: the mean while verdicts are not suspended."""
    unwitnessed: int
    """While suspended: number of waiting agents during whose silence no request of any agent arrived."""


class LostEvidence(BaseModel):
    """Living agents about which a fault of the monitoring left no current evidence."""

    agents: int
    reasons: dict[UnknownReason, int]
    since: Time
    """Time since which there has been such an agent."""
    is_reported: bool
    """True if it has lasted for `evidence_lost_seconds`, so that `monitor.evidence_lost` was logged."""


class DisallowedTargetsShown(BaseModel):
    """Targets that answered earlier, and that their present prober's `networks.allow` now excludes."""

    holder: str
    """Prober: id of its key, a slash, and the name of the worker."""
    network_class: str
    targets: int
    reached_by: str | None = None
    """Another living prober that reaches the class; absent without one."""


class MonitorRecord(BaseModel):
    """State of the monitoring itself: suspended verdicts, and its faults."""

    state: MonitorState
    """`suspended` if either track is suspended, else `resuming` if either is."""
    since: Time
    """Time since which the track with this state has had it."""
    tracks: dict[Track, TrackRecord]
    silent_classes: dict[str, Time] = {}
    """Network classes in mass silence, with the time at which it was noticed."""
    confirmed_classes: dict[str, Time] = {}
    """Network classes that an operator confirmed, with the time of the confirmation."""
    lost_evidence: LostEvidence | None = None
    """Agents without evidence, by reason; absent if there is evidence about every living agent."""
    disallowed_targets: list[DisallowedTargetsShown] = []
    """Network classes that some of the registry's probers do not allow in `networks.allow`; at most 100."""
    missing_credentials: list[MissingCredential] = []
    """Credentials that a living prober lacks and another one has; at most 100."""
    credential_faults: list[CredentialFaultShown] = []
    """Credentials of probers that do not work; at most 200."""
    excluded_downtime: list[ShownSpan]
    """Latest downtime of the registry, jump of its clock, and ended suspension: silence during them does not
    count.
    """
    swept_at: Time | None = None
    """Time of the last sweep; absent before the first."""
