"""Targets, as the registry shows them (`/api/v1/targets`).

A target with a liveness signal also has a record as an agent, under the same id, with the consequences of its
results.
"""

from pydantic import BaseModel, ConfigDict

from lifesign.domain.health.document import HealthStatus, Time
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.observation.assertion import AssertionResult
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import LayerResult, ProbedDocument, ResultClass


class TargetSummary(BaseModel):
    """One target in a listing."""

    target_id: str
    """`tgt_...`, or the agent's id where an agent registered itself to be probed."""
    url: str
    result: ResultClass | None = None
    """Last measured result, else the last one; absent: never probed."""
    result_since: Time | None = None
    observed_at: Time | None = None
    """End of that probe, by the prober's clock; probes that sent nothing do not count."""
    evidence_at: Time | None = None
    """When a probe last measured something, by the registry's clock; absent if none ever did."""
    unknown_reason: UnknownReason | None = None
    """Why `result` says nothing any more of a target that is probed all the time: it is too old.

    A census that makes single passes shows the date of its pass instead.
    """
    why: str | None = None
    """One line about that probe: by what the target is alive, or what was found instead."""
    gone_at: Time | None = None
    """Since when it is not probed any more."""
    gone_reason: str | None = None


class TargetList(BaseModel):
    """The answer to `GET /api/v1/targets`."""

    targets: list[TargetSummary]
    total: int
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""


class ObservedTarget(BaseModel):
    """Last measured observation; layers that were not probed are absent."""

    # It is stored as the observation that it was, of whichever version of ours.
    model_config = ConfigDict(extra="ignore")

    observed_at: Time
    """By the prober's clock."""
    discovery: LayerResult | None = None
    transport: LayerResult | None = None
    readiness: LayerResult | None = None
    message: LayerResult | None = None
    document: ProbedDocument | None = None
    reported_agent_id: str | None = None
    """Name that the agent reports; never a key."""
    certificate_expires_at: Time | None = None
    paths: dict[str, LayerResult] | None = None
    """Further requests, by path; they decide nothing."""
    assertions: list[AssertionResult] | None = None
    """Results of the target's assertions; absent if it has none."""


class ShownChange(BaseModel):
    """One result that became another one."""

    at: Time
    layer: Layer
    """`overall` for the probe as a whole."""
    previous: ResultClass
    result: ResultClass
    evidence: str | None = None
    """SHA-256 of the bytes that were seen, under which the prober keeps them."""


class TargetRecord(TargetSummary):
    """All that is known of one target."""

    host: str
    shard: int
    directories: list[str]
    """Directories that list it."""
    is_registered: bool
    """Whether an agent wants it to be probed."""
    added_at: Time
    probed_at: Time | None = None
    """When its last probe ended, also one that measured nothing; by the prober's clock."""
    recheck_at: Time | None = None
    """When a recheck was last requested."""
    memory: ProbeMemory | None = None
    """Memory of its last probe for the next one."""
    observed: ObservedTarget | None = None
    changes: list[ShownChange]
    """The last ones, the latest first."""
    agent_status: Status | None = None
    """Status of its record as an agent; absent if it has none."""
    health_status: HealthStatus | None = None
    """Health of its record as an agent, from its health documents; absent if it has none."""


class RecheckRecord(BaseModel):
    """The answer to `POST /api/v1/targets/{target_id}/probe`."""

    target_id: str
    recheck_at: Time
    """Its prober looks as soon as it sees this, which takes a few seconds, but not before `not_before`."""
    observed_at: Time | None = None
    """When it was last probed so far, whatever that told."""
    not_before: Time | None = None
    """Until then it asked to be left alone (`Retry-After`), and its prober looks no sooner; absent: no."""
