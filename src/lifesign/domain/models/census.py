"""Counts of all targets for a census (`/api/v1/census`).

They contain no assessments: `prober/census` computes shares, platforms and trends.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from lifesign.domain.health.document import HealthStatus, Quantity, Time
from lifesign.domain.models.base import NAME_PATTERN, Body, Name
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import TargetKind

RUN_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"

MAX_NOT_READ = 1_000
"""Maximum number of directories that are named per pass."""

NotRead = Annotated[tuple[Name, ...], Field(max_length=MAX_NOT_READ)]
RunName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NAME_PATTERN)]


class TargetCount(BaseModel):
    """Number of targets with the same last result."""

    result: ResultClass | None = None
    """Absent: never probed."""
    count: int


class DirectoryCount(TargetCount):
    """Number of targets of one directory with the same last result. Directories may share targets."""

    directory: str


class KindCount(TargetCount):
    """Number of targets of one kind (A2A agent or MCP server) with the same last result."""

    kind: TargetKind
    """As a directory or a definition states it, else as the prober found out."""


class HostCountModel(TargetCount):
    """Number of targets on one host with the same last result."""

    host: str
    protocol_version: str | None = None
    """Protocol version of the cards; only for living targets."""


class ProbeCount(BaseModel):
    """Number of probes in which this layer had this result."""

    layer: Layer
    result: ResultClass
    bucket: int
    """Bucket of the latency; -1 without a latency. See `lifesign.domain.observation.result_sums`."""
    count: int


class ShownCount(BaseModel):
    """Number of living targets with the same last results of all layers."""

    kind: TargetKind | None = None
    """`mcp` for MCP servers; absent: A2A agents."""
    discovery: ResultClass | None = None
    transport: ResultClass | None = None
    readiness: ResultClass | None = None
    message: ResultClass | None = None
    count: int


class Deadlines(BaseModel):
    """Time limits of one request, after which it counts as a timeout."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    connect_seconds: Quantity
    """Time until the connection is established."""
    first_byte_seconds: Quantity
    """Time limit from the request's last byte to the answer's first, in seconds."""
    total_seconds: Quantity
    """Time limit for all of it, redirects included, in seconds."""


class CensusRun(BaseModel):
    """One pass of probers over all targets."""

    run_id: str
    name: str
    """Name of the probe definition."""
    began_at: Time
    ended_at: Time | None = None
    """End of the run; absent if it is running or was interrupted."""
    deadlines: Deadlines | None = None
    """Time limits of its requests; absent if they are unknown, or differ between participants."""
    not_read: NotRead = ()
    """Directories that could not be read for the run. The targets that they listed before still count."""
    counts: list[TargetCount]
    """Targets by result in this run; `not_measured` if the run measured nothing, even if others have."""


class CensusCounts(BaseModel):
    """The answer to `GET /api/v1/census`."""

    made_at: Time
    since: Time
    until: Time
    """End of the period. `probes` are counted by whole hours that the period touches, or for a single run."""
    targets: list[TargetCount]
    """Targets, each counted once."""
    directories: list[DirectoryCount]
    kinds: list[KindCount]
    probes: list[ProbeCount]
    health: dict[HealthStatus, int]
    """Health that living targets report."""
    shown: list[ShownCount]
    """Living targets by evidence: a card alone does not prove that an agent works behind it."""
    evidence_at: Time | None = None
    """Time of the latest measurement of any target; absent without one."""
    old: dict[UnknownReason, int] = {}
    """Targets whose last measured result is too old, by reason. They count as `not_measured`.

    Results of the requested run, and results from before it, do not become old.
    """
    gone: dict[str, int]
    """Former targets, by reason."""
    runs: list[CensusRun]
    """Latest runs, the newest first."""


class HostCounts(BaseModel):
    """One page of `GET /api/v1/census/hosts`."""

    hosts: list[HostCountModel]
    """Results by host. A host may have several rows, all on one page."""
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""


class RunRequest(Body):
    """The body of `PUT /api/v1/census/runs/{run_id}`."""

    name: RunName
    """Name of the probe definition."""
    deadlines: Deadlines | None = None
    """Deadlines of the caller's requests."""
    not_read: NotRead = ()
    """Directories that the caller could not read; they are added to those of other participants."""
    is_over: StrictBool = False
    """True once all targets were probed; then they are counted. Until then, the run continues."""
