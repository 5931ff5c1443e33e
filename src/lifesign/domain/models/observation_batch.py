"""Batches of observations: the form in which results travel to the registry, and its answer (protocol 8).

Results are reported with the fencing token of each shard that they were found in. The results of a shard that
another prober owns by now do not count; all others do.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import INTEGRAL_FLOAT, Time
from lifesign.domain.models.base import Body
from lifesign.domain.models.leases import Token
from lifesign.domain.models.shards import ShardName
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation
from lifesign.domain.published_interface.published import check_interface
from lifesign.domain.targets.target import SHARDS

MAX_OBSERVATIONS = 1_000
"""Maximum number in one batch."""
MAX_BATCH_BYTES = 8_388_608
"""Maximum size of a batch: a thousand observations, each with reasons in words."""
MAX_SHARD = 999_999_999
MIN_INTERVAL_SECONDS = 10.0
MAX_INTERVAL_SECONDS = 86_400.0
MAX_AGE_SECONDS = 86_400.0
"""Maximum age of a result when it is sent; a prober drops older results."""
MAX_NUMBER = 2**53


PublishedInterface = Annotated[dict[str, Any], AfterValidator(check_interface)]
"""Normalised form of what an agent card or an MCP server offers its callers."""
Age = Annotated[float, Field(ge=0, le=MAX_AGE_SECONDS, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=1, le=MAX_NUMBER, strict=True)]


class ObservationBatch(Body):
    """The body of `POST /api/v1/observations`."""

    observations: Annotated[list[Observation], Field(min_length=1, max_length=MAX_OBSERVATIONS)]
    """Observations in the order in which they were made."""
    memories: Annotated[list[ProbeMemory | None], Field(max_length=MAX_OBSERVATIONS)] | None = None
    """Memory of each target for its next probe, in the same order; null: unchanged."""
    interfaces: Annotated[list[PublishedInterface | None], Field(max_length=MAX_OBSERVATIONS)] | None = None
    """Published interfaces that were newly read, in the same order; null: unchanged."""
    shard: Annotated[int, Field(ge=0, le=MAX_SHARD, strict=True), INTEGRAL_FLOAT] | None = None
    """Shard of the results, with the token of the prober's lease on it.

    If the token is not the current one, the registry refuses the whole batch.
    """
    fencing_token: Token | None = None
    tokens: Annotated[dict[ShardName, Token], Field(min_length=1, max_length=SHARDS)] | None = None
    """Shards of the results with their tokens, instead of `shard` and `fencing_token`.

    If a token is not the current one, the registry refuses only the results of its shard.
    """
    ages_s: Annotated[list[Age], Field(max_length=MAX_OBSERVATIONS)]
    """Age of each observation in seconds when the batch is sent, in the same order.

    Measured by a clock that includes suspend and is never set (CLOCK_BOOTTIME), and computed again for each
    attempt. The registry's observation time is its time of receipt minus this age.
    """
    numbers: Annotated[list[Number], Field(max_length=MAX_OBSERVATIONS)]
    """Number of each observation, in the same order; it rises with each observation under one token."""
    interval_s: Annotated[float, Field(ge=MIN_INTERVAL_SECONDS, le=MAX_INTERVAL_SECONDS, allow_inf_nan=False)]
    """Interval of the crawl in seconds; a faster crawl sends 10."""
    sent_at: Time | None = None
    """Wall clock of the prober when it sent the batch. It affects no verdict; a wrong clock is reported."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if (self.shard is None) != (self.fencing_token is None):
            raise PydanticCustomError("shard_and_token", "shard and fencing_token go together")
        if (self.shard is None) == (self.tokens is None):
            raise PydanticCustomError("shard_or_tokens", "expected shard and fencing_token, or tokens")
        for name in ("memories", "interfaces", "ages_s", "numbers"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.observations):
                raise PydanticCustomError(name, "expected as many {name} as observations", {"name": name})
        return self


class ReportOutcome(StrEnum):
    """What became of one reported observation, such as stored or refused."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    """No target has this id or URL."""
    IGNORED = "ignored"
    """A later result of the target has already counted, the URL is no longer a target, or the link between
    the target and an agent has just begun or ended.
    """
    NO_LIVENESS_SIGNAL_YET = "no_liveness_signal_yet"
    """The target gave no liveness signal yet; it gets a record at the first one."""
    NOT_IN_SHARD = "not_in_shard"
    """The target has moved to another shard; the result was not stored."""
    SHARD_LOST = "shard_lost"
    """Another worker owns the shard now, or none does; the result was not stored."""


@dataclass(frozen=True, slots=True)
class ObservationResult:
    """What became of one reported observation, with its agent or target."""

    agent_id: str
    """Id of the agent, also for a target without a record."""
    outcome: ReportOutcome


class ObservationAnswer(BaseModel):
    """The answer to `POST /api/v1/observations`."""

    results: list[ObservationResult]
    """Outcome of each observation, in the same order."""
    counts: dict[ReportOutcome, int]
    lost: list[int] = []
    """Shards of the batch whose token is not the current one."""
    silent_classes: list[str] = []
    """Network classes in mass silence: none of their targets is a witness."""
    confirmed_classes: dict[str, Time] = {}
    """Network classes that an operator confirmed, with the time: a failure of a target there needs no witness
    if the target's last liveness signal is older.
    """
