"""Batches of observations: the form in which results travel to the registry, and its answer (protocol 8).

Results are reported with the fencing token of each shard that they were found in. The results of a shard that
another prober owns by now do not count; all others do.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import INTEGRAL_FLOAT, Time
from lifesign.domain.models.base import Body
from lifesign.domain.models.leases import Token
from lifesign.domain.models.shards import ShardName
from lifesign.domain.net.target import SHARDS
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation

MAX_OBSERVATIONS = 1_000
"""In one batch."""
MAX_BATCH_BYTES = 8_388_608
"""A thousand observations, each with reasons in words."""
MAX_SHARD = 999_999_999
MIN_INTERVAL_SECONDS = 10.0
MAX_INTERVAL_SECONDS = 86_400.0
MAX_AGE_SECONDS = 86_400.0
"""Maximum age of a result when it is sent; a prober keeps none for longer."""
MAX_NUMBER = 2**53


Age = Annotated[float, Field(ge=0, le=MAX_AGE_SECONDS, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=1, le=MAX_NUMBER, strict=True)]


class ObservationBatch(Body):
    """The body of `POST /api/v1/observations`."""

    observations: Annotated[list[Observation], Field(min_length=1, max_length=MAX_OBSERVATIONS)]
    """In the order in which they were made."""
    memories: Annotated[list[ProbeMemory | None], Field(max_length=MAX_OBSERVATIONS)] | None = None
    """Memories for the next probes, in the same order; null: unchanged."""
    shard: Annotated[int, Field(ge=0, le=MAX_SHARD, strict=True), INTEGRAL_FLOAT] | None = None
    """The shard that they are the results of, with the token of the prober's lease on it.

    A stale token refuses the whole batch.
    """
    fencing_token: Token | None = None
    tokens: Annotated[dict[ShardName, Token], Field(min_length=1, max_length=SHARDS)] | None = None
    """Instead, for results of several shards: each shard with its token.

    A stale one refuses the results of its shard alone.
    """
    ages_s: Annotated[list[Age], Field(max_length=MAX_OBSERVATIONS)]
    """Age of each observation in seconds when the batch is sent, in the same order.

    Measured by a clock that runs during suspend and is never set (CLOCK_BOOTTIME), and computed again for
    each attempt. The registry's observation time is its time of receipt minus this age.
    """
    numbers: Annotated[list[Number], Field(max_length=MAX_OBSERVATIONS)]
    """Number of each observation, in the same order: rises with each one measured under one token."""
    interval_s: Annotated[float, Field(ge=MIN_INTERVAL_SECONDS, le=MAX_INTERVAL_SECONDS, allow_inf_nan=False)]
    """Interval of the crawl in seconds; a faster crawl sends 10."""
    sent_at: Time | None = None
    """The prober's wall clock when it sent the batch. It decides nothing: a wrong clock is reported."""

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if (self.shard is None) != (self.fencing_token is None):
            raise PydanticCustomError("shard_and_token", "shard and fencing_token go together")
        if (self.shard is None) == (self.tokens is None):
            raise PydanticCustomError("shard_or_tokens", "expected shard and fencing_token, or tokens")
        for name in ("memories", "ages_s", "numbers"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.observations):
                raise PydanticCustomError(name, "expected as many {name} as observations", {"name": name})
        return self


class ReportOutcome(StrEnum):
    """Outcome of one observation."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    """No target has this id or URL."""
    IGNORED = "ignored"
    """A later result of the target counted already, or it is no target any more."""
    NO_LIVENESS_SIGNAL_YET = "no_liveness_signal_yet"
    """The target gets a record at its first one."""
    NOT_IN_SHARD = "not_in_shard"
    """The target lies in another shard, by now: nothing of it was taken."""
    SHARD_LOST = "shard_lost"
    """Another worker owns its shard now, or none does: nothing of it was stored."""


@dataclass(frozen=True, slots=True)
class ObservationResult:
    """Outcome of one observation, with its subject."""

    agent_id: str
    """Id of the agent, also for a target without a record."""
    outcome: ReportOutcome


class ObservationAnswer(BaseModel):
    """The answer to a batch."""

    results: list[ObservationResult]
    """One for each observation, in their order."""
    counts: dict[ReportOutcome, int]
    lost: list[int] = []
    """Shards whose token is not the current one, of those that the batch named."""
    silent_classes: list[str] = []
    """Network classes in mass silence: no target of them is a witness."""
    confirmed_classes: dict[str, Time] = {}
    """Network classes that an operator confirmed, with when: a failure of a target there whose last
    liveness signal is older needs no witness."""
