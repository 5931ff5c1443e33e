"""What do a prober and the registry say to one another of shards? (protocol 8; `/api/v1/shards`)"""

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from agent_health.agent_record import Body
from agent_health.document import WHOLE, Time
from agent_health.lease_record import Token, TtlSeconds
from agent_health.light_value import light_value
from agent_health.probe_memory import ProbeMemory
from agent_health.target import SHARDS

TTL_SECONDS = 60.0
"""How long shards are a worker's own unless it asks otherwise."""

WorkerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,48}$")]
Shard = Annotated[int, Field(ge=0, lt=SHARDS)]


class ShardClaimRequest(Body):
    """The body of `POST /api/v1/shards/claim`."""

    worker: WorkerName
    """A name that no other worker of the same key has at the same time."""
    ttl_seconds: TtlSeconds = TTL_SECONDS
    """How long the shards are its own from now on, and how long it counts as living."""
    held: Annotated[dict[Shard, Token], Field(max_length=SHARDS, default_factory=dict)]
    """The shards that it believes to hold, each with its fencing token."""
    companions: Annotated[int, Field(ge=0, lt=SHARDS, strict=True), WHOLE] = 0
    """How many others begin at the same time: their share is left to them though they do not live yet."""


@light_value()
class GrantedShard:
    """A shard that the caller owns from now on."""

    shard: int
    fencing_token: int
    """Shown with every batch of results."""
    expires_at: Time


class ShardGrant(BaseModel):
    """The answer to a claim."""

    shards: list[GrantedShard]
    """All that the caller holds; a shard that it believed to hold and that is missing is lost."""
    workers: int
    """How many workers live, the caller counted."""
    share: int
    """How many shards each may have at most; whoever has fewer gets more as others give them up."""


class LivingProber(BaseModel):
    """A worker that lives."""

    holder: str
    """Of its leases: the key that it shows, and its own name behind a slash."""
    joined_at: Time
    expires_at: Time


class ShardsShown(BaseModel):
    """The answer to `GET /api/v1/shards`."""

    version: int
    """Of the last change of any target that did not come from its prober."""
    changed: dict[str, int]
    """The shards in which anything changed since the version that was named, each with its newest one."""
    probers: list[LivingProber]
    share: int
    """How many shards each may have at most."""
    unprobed: int | None = None
    """How many targets were not probed since the time that was named."""


class ProbeTarget(BaseModel):
    """What is to be probed."""

    subject_id: str
    """`tgt_...`, or the agent's id where an agent registered itself to be probed."""
    url: str
    memory: ProbeMemory | None = None
    """What its last probe left, for the next one; absent if it was never probed."""
    recheck_at: Time | None = None
    """When somebody last asked for a look now."""
    version: int


class ShardTargets(BaseModel):
    """One page of what a shard holds."""

    targets: list[ProbeTarget]
    gone: list[str]
    """Ids that are none of this shard's targets any more; told only where changes are asked for."""
    version: int
    """Ask for what comes after this one, once all pages are read."""
    cursor: str | None = None
    """Where the next page begins; absent on the last one."""
