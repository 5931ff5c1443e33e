"""Shards in requests of probers and in the registry's answers (protocol 8; `/api/v1/shards`)."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from lifesign.domain.base.fast_dataclass import fast_dataclass
from lifesign.domain.health.document import INTEGRAL_FLOAT, Time
from lifesign.domain.models.base import Body
from lifesign.domain.models.leases import Token
from lifesign.domain.net.target import SHARDS
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import NetworkClassName
from lifesign.domain.schedule.shard_share import MAX_TTL_SECONDS
from lifesign.domain.tasks.lease import MIN_TTL_SECONDS

TTL_SECONDS = 60.0
"""How long shards are a worker's own unless it asks otherwise."""

MAX_CLASSES = 1_000
MAX_WITNESSES = 3

WorkerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,48}$")]
Shard = Annotated[int, Field(ge=0, lt=SHARDS)]


def _check_shard_name(value: object) -> object:
    """Refuse a name of a member such as `07`, which would mean the same shard as `7`."""
    if isinstance(value, str) and value != str(int(value) if value.isdecimal() and len(value) < 8 else ""):
        raise PydanticCustomError("shard_name", "expected a shard as digits without a leading zero")
    return value


ShardName = Annotated[Shard, BeforeValidator(_check_shard_name)]
"""A shard as the name of a member in JSON."""


class ShardClaimRequest(Body):
    """The body of `POST /api/v1/shards/claim`."""

    worker: WorkerName
    """A name that no other worker of the same key has at the same time."""
    ttl_seconds: Annotated[
        float, Field(ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS, allow_inf_nan=False, strict=True)
    ] = TTL_SECONDS
    """How long the shards are its own from now on, and how long it counts as living."""
    held: Annotated[dict[ShardName, Token], Field(max_length=SHARDS, default_factory=dict)]
    """The shards that it believes to hold, each with its fencing token."""
    companions: Annotated[int, Field(ge=0, lt=SHARDS, strict=True), INTEGRAL_FLOAT] = 0
    """How many others begin at the same time: their share is left to them though they do not live yet.
    It counts for a minute, up to the number of the key's living workers."""
    reached_classes: Annotated[list[NetworkClassName], Field(max_length=MAX_CLASSES)] | None = None
    """Network classes in which a witness answered this worker within its last interval."""
    wanted_witnesses: dict[NetworkClassName, Annotated[int, Field(ge=1, le=MAX_WITNESSES)]] = Field(
        default_factory=dict, max_length=MAX_CLASSES
    )
    """Network classes without canaries in which this worker knows fewer than three targets that answer,
    each with how many more it wants."""
    interval_s: Annotated[float, Field(ge=10, le=86_400, allow_inf_nan=False)] | None = None
    """Interval of the crawl in seconds."""
    sent_at: Time | None = None
    """The worker's wall clock when it asked. It decides nothing: a wrong clock is reported."""


@fast_dataclass()
class GrantedShard:
    """A shard that the caller owns from now on."""

    shard: int
    fencing_token: int
    """Shown with every batch of results."""
    expires_at: Time


class HandedOutWitness(BaseModel):
    """A target of another shard that answered lately: the caller may ask it once as a witness."""

    url: str
    network_class: str


class ShardGrant(BaseModel):
    """The answer to a claim."""

    shards: list[GrantedShard]
    """All that the caller holds; a shard that it believed to hold and that is missing is lost."""
    workers: int
    """How many workers live, the caller counted."""
    share: int
    """How many shards the caller may have at most: the part of its key, divided by the key's workers. If it
    has fewer, it gets more as others give them up."""
    witnesses: list[HandedOutWitness] = []
    """For `wanted_witnesses`; each is handed out to one worker at a time, at most once in 60 s."""
    silent_classes: list[str] = []
    """As in the answer to a batch of observations."""
    confirmed_classes: dict[str, Time] = {}
    """As in the answer to a batch of observations."""
    clock_offset_s: float | None = None
    """The caller's wall clock minus the registry's, in seconds; absent if the caller sent no time."""
    reason: str | None = None
    """Why the caller holds nothing, if it is not for lack of free shards: `reaches_less` (another living
    worker of its key reaches a strict superset of its network classes) or `no_progress` (it reported no
    result for two intervals while another worker did)."""


class LivingProber(BaseModel):
    """A worker that lives."""

    holder: str
    """Holder of its leases: its key, a slash, and its own name."""
    joined_at: Time
    expires_at: Time
    interval_s: float | None = None
    """Interval of its crawl in seconds; absent if it does not report it."""
    reached_classes: list[str] | None = None
    """Network classes in which a witness answered it within its last interval; absent before it knows."""
    clock_offset_s: float | None = None
    """Its wall clock minus the registry's, in seconds, at its last claim; absent if it does not report it."""
    reported_at: Time | None = None
    """When it last reported a result of any kind; absent: it never did."""
    makes_no_progress: bool = False
    """Whether it keeps no shard, since it reported no result while another worker did."""


class ShardsShown(BaseModel):
    """The answer to `GET /api/v1/shards`."""

    version: int
    """Version of the last change of any target that did not come from its prober."""
    changed: dict[str, int]
    """The shards in which anything changed since the version that was named, each with its newest one."""
    probers: list[LivingProber]
    share: int
    """How many shards a worker may have at most, of the key with the fewest workers."""
    unprobed: int | None = None
    """How many targets were not probed since the time that was named."""


class ProbeTarget(BaseModel):
    """A target to probe."""

    subject_id: str
    """`tgt_...`, or the agent's id where an agent registered itself to be probed."""
    url: str
    memory: ProbeMemory | None = None
    """Memory of its last probe, for the next one; absent if it was never probed."""
    recheck_at: Time | None = None
    """When a recheck was last requested."""
    version: int
    confirmed_at: Time | None = None
    """When an operator confirmed that this target may be down; see `ObservationAnswer.confirmed_classes`."""
    thresholds_s: tuple[float, float] | None = None
    """Silence after which its agent is unhealthy, and dead, in seconds; absent: the defaults of probing."""
    entered_at: Time | None = None
    """When its URL changed, or its agent registered again: start with `memory`, drop earlier results."""


class ShardTargets(BaseModel):
    """One page of what a shard holds."""

    targets: list[ProbeTarget]
    gone: list[str]
    """Ids that are none of this shard's targets any more; told only where changes are asked for."""
    version: int
    """Ask for what comes after this one, once all pages are read."""
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""
