"""In which form do results travel to the registry, and what does it say of them? (protocol 8)

What is found is reported with the fencing token of each shard that it was found in: whatever lies in a
shard that somebody else owns by now is left out, all else counts.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from agent_health.agent_record import Body
from agent_health.document import WHOLE
from agent_health.lease_record import Token
from agent_health.observation import Observation
from agent_health.probe_memory import ProbeMemory
from agent_health.shard_record import Shard
from agent_health.target import SHARDS

MAX_OBSERVATIONS = 1_000
"""In one batch."""
MAX_BATCH_BYTES = 8_388_608
"""A thousand observations, each with reasons in words."""
MAX_SHARD = 999_999_999


class ObservationBatch(Body):
    """The body of `POST /api/v1/observations`."""

    observations: Annotated[list[Observation], Field(min_length=1, max_length=MAX_OBSERVATIONS)]
    """In the order in which they were made."""
    memories: Annotated[list[ProbeMemory | None], Field(max_length=MAX_OBSERVATIONS)] | None = None
    """What the next probe of each has to remember, in the same order; null: what was known before."""
    shard: Annotated[int, Field(ge=0, le=MAX_SHARD, strict=True), WHOLE] | None = None
    """The shard that they are the results of, with the token of the prober's lease on it.

    A stale token refuses the whole batch.
    """
    fencing_token: Token | None = None
    tokens: Annotated[dict[Shard, Token], Field(min_length=1, max_length=SHARDS)] | None = None
    """Instead, for results of several shards: each shard with its token.

    A stale one refuses the results of its shard alone.
    """

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if (self.shard is None) != (self.fencing_token is None):
            raise PydanticCustomError("shard_and_token", "shard and fencing_token go together")
        if self.shard is not None and self.tokens is not None:
            raise PydanticCustomError("shard_or_tokens", "expected shard and fencing_token, or tokens")
        if self.memories is not None and len(self.memories) != len(self.observations):
            raise PydanticCustomError("memories", "expected as many memories as observations, or none")
        return self


class ReportOutcome(StrEnum):
    """What became of one observation."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    """No agent has this id; with a shard, no target."""
    IGNORED = "ignored"
    """It was late, doubled or misdated, or the agent is off the list, or it is no target any more."""
    NO_SIGN_OF_LIFE_YET = "no_sign_of_life_yet"
    """The target gets a record at its first one."""
    NOT_IN_SHARD = "not_in_shard"
    """The target lies in another shard, by now: nothing of it was taken."""
    SHARD_LOST = "shard_lost"
    """Somebody else owns its shard by now, or nobody does: nothing of it was taken."""


@dataclass(frozen=True, slots=True)
class ObservationResult:
    """What became of one observation, and whose it is."""

    agent_id: str
    """Of a target too that has no record yet."""
    outcome: ReportOutcome


class ObservationAnswer(BaseModel):
    """The answer to a batch."""

    results: list[ObservationResult]
    """One for each observation, in their order."""
    counts: dict[ReportOutcome, int]
    lost: list[int] = []
    """Shards whose token is not the current one, of those that the batch named."""
