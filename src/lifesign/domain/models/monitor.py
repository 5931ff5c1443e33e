"""Records of the monitor: suspensions, mass silence and lost evidence, as the API shows them (protocol 4).

These are the registry's request bodies and answers, also for its client.
"""

from typing import Self

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import Time
from lifesign.domain.lifecycle.mass_exit import MonitorState, Track
from lifesign.domain.models.base import AgentId, Body
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.results import NetworkClassName


class MonitorRelease(Body):
    """The query of `POST /api/v1/monitor/release`."""

    track: Track | None = None
    """Track to release; absent: both."""


class Confirmation(Body):
    """The body of `POST /api/v1/monitor/confirm`: what an operator knows to be down."""

    network_class: NetworkClassName | None = None
    """All targets of this network class, such as `public_ipv4` or `10.1.0.0/16`."""
    agent_id: AgentId | None = None
    """This agent or target alone."""

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if (self.network_class is None) == (self.agent_id is None):
            raise PydanticCustomError("one_subject", "expected exactly one of network_class and agent_id")
        return self


class Confirmed(BaseModel):
    """The answer to it."""

    network_class: str | None = None
    agent_id: str | None = None
    confirmed_at: Time
    """A failure of a target whose last liveness signal is older needs no witness."""


class ShownSpan(BaseModel):
    """Time in which no missed heartbeat counts."""

    begin: Time
    end: Time


class TrackRecord(BaseModel):
    """Whether silence is believed on one track."""

    state: MonitorState
    since: Time
    exits: int
    """How many silence took down in this cadence; while held, how many wait."""
    limit: int
    """How many in one cadence are believed."""
    baseline: float
    """The mean number per cadence when all is well."""
    unwitnessed: int
    """While held: how many of those who wait no request of any agent bears out."""


class LostEvidence(BaseModel):
    """Living agents of which nothing is known through a fault of the monitoring."""

    agents: int
    reasons: dict[UnknownReason, int]
    since: Time
    """Since when there is any such agent."""
    is_reported: bool
    """Whether it has lasted for `evidence_lost_seconds`, so that `monitor.evidence_lost` was logged."""


class UnreachedTargetsShown(BaseModel):
    """Targets that answered before, and that the definition of their present prober does not allow."""

    holder: str
    """The prober: its key, a slash, and the worker's name."""
    network_class: str
    targets: int
    reached_by: str | None = None
    """Another living prober that reaches the class; absent if none says so."""


class MonitorRecord(BaseModel):
    """State of the monitoring itself."""

    state: MonitorState
    """`suspended` if either track is, else `resuming` if either is."""
    since: Time
    """When the track that has this state came to it."""
    tracks: dict[Track, TrackRecord]
    silent_classes: dict[str, Time] = {}
    """Network classes in mass silence, each with when that was noticed."""
    confirmed_classes: dict[str, Time] = {}
    """Network classes that an operator confirmed, each with when."""
    lost_evidence: LostEvidence | None = None
    """Absent while there is evidence about every living agent, or a reason of its own why not."""
    unreached_targets: list[UnreachedTargetsShown] = []
    """Classes for which this registry's probers have different `networks.allow`; at most 100."""
    excluded_downtime: list[ShownSpan]
    """Our own downtime, jumps of the clock, and suspensions that are over: the latest of each."""
    swept_at: Time | None = None
    """When a sweep last ran; absent before the first one."""
