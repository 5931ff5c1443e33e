"""Targets, as the registry shows them (`/api/v1/targets`).

A target with a liveness signal also has a record as an agent, under the same id, with the consequences of its
results.
"""

from pydantic import BaseModel, ConfigDict

from lifesign.domain.health.document import HealthStatus, Time
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.observation.assertion import AssertionResult
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.login import Login
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import LayerResult, ProbedDocument, ResultClass
from lifesign.domain.targets.target import TargetKind
from lifesign.domain.text.counts import pluralize


class TargetSummary(BaseModel):
    """One target in a listing."""

    target_id: str
    """Id of the target: `tgt_...`, or the agent's id if an agent registered itself to be probed."""
    url: str
    result: ResultClass | None = None
    """Last measured result, or the last result if none was measured; absent if it was never probed."""
    result_since: Time | None = None
    observed_at: Time | None = None
    """End of that probe by the prober's clock; probes that sent nothing do not count."""
    evidence_at: Time | None = None
    """Time of the last measurement by the registry's clock; absent without one."""
    unknown_reason: UnknownReason | None = None
    """Reason why `result` is not valid for a continuously probed target: it is too old.

    A census in single passes shows the date of its pass instead.
    """
    why: str | None = None
    """Summary of that probe: the liveness signals, or what was found instead."""
    failed_assertions: int | None = None
    """Number of the target's assertions that failed in that probe; absent if none did."""
    reported_health: HealthStatus | None = None
    """Status in the health document that this probe read; absent without a valid and fresh document."""
    gone_at: Time | None = None
    """Time since which the target is no longer probed."""
    gone_reason: str | None = None

    @property
    def finding(self) -> str:
        """Summary of the last probe in one line, with the number of failed assertions; may be empty."""
        failed = self.failed_assertions
        wrong = None if failed is None else f"{pluralize(failed, 'assertion')} failed"
        return "; ".join(filter(None, (self.why, wrong)))


class TargetList(BaseModel):
    """The answer to `GET /api/v1/targets`."""

    targets: list[TargetSummary]
    total: int
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""


class ObservedTarget(BaseModel):
    """The last measured observation of a target. Layers that were not probed are absent."""

    # It is stored as the observation that it was, of whichever version of ours.
    model_config = ConfigDict(extra="ignore")

    observed_at: Time
    """Time of the observation by the prober's clock."""
    kind: TargetKind | None = None
    """`mcp` if the layers are those of an MCP server; absent: those of an A2A agent."""
    discovery: LayerResult | None = None
    transport: LayerResult | None = None
    readiness: LayerResult | None = None
    message: LayerResult | None = None
    document: ProbedDocument | None = None
    reported_agent_id: str | None = None
    """Name that the agent reports; never a key."""
    certificate_expires_at: Time | None = None
    tools: LayerResult | None = None
    """Result of listing an MCP server's tools. It affects no verdict."""
    paths: dict[str, LayerResult] | None = None
    """Results of further requests, by path; they affect no verdict."""
    assertions: list[AssertionResult] | None = None
    """Results of the target's assertions; absent if it has none."""
    login: Login | None = None
    """Login that the target asked for; absent if it refused no request."""


class ShownChange(BaseModel):
    """A change of a target's result."""

    at: Time
    layer: Layer
    """`overall` for the probe as a whole."""
    previous: ResultClass
    result: ResultClass
    evidence: str | None = None
    """SHA-256 of the received bytes, under which the prober stores them."""


class TargetRecord(TargetSummary):
    """The complete record of one target."""

    host: str
    shard: int
    directories: list[str]
    """Directories that list the target."""
    is_registered: bool
    """True if an agent has registered itself to be probed."""
    added_at: Time
    probed_at: Time | None = None
    """End of the last probe by the prober's clock, even if it measured nothing."""
    recheck_at: Time | None = None
    """Time of the last request for a recheck."""
    memory: ProbeMemory | None = None
    """Memory of the last probe for the next one."""
    observed: ObservedTarget | None = None
    changes: list[ShownChange]
    """Latest changes, the newest first."""
    agent_status: Status | None = None
    """Status of its agent record; absent without a record."""
    health_status: HealthStatus | None = None
    """Health of its agent record, as `GET /api/v1/agents/{agent_id}` returns it; absent without a record."""
    health_unknown_reason: UnknownReason | None = None
    """Reason why `health_status` is unknown although a document was read, or why nothing is known about the
    agent.
    """


class RecheckRecord(BaseModel):
    """The answer to `POST /api/v1/targets/{target_id}/probe`."""

    target_id: str
    recheck_at: Time
    """Time of the request. The target is probed a few seconds later, but not before `not_before`."""
    observed_at: Time | None = None
    """End of the last probe of the target, whatever its result."""
    not_before: Time | None = None
    """Time before which the target asked not to be probed (`Retry-After`); absent if it did not."""
