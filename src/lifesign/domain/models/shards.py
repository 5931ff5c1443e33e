"""Shards in requests of probers and in the registry's answers (protocol 8; `/api/v1/shards`)."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.request_scope import MAX_CREDENTIALS
from lifesign.domain.health.document import INTEGRAL_FLOAT, Time
from lifesign.domain.models.base import Body
from lifesign.domain.models.credentials import CredentialPlace, MissingCredential
from lifesign.domain.models.leases import Token
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import NetworkClassName
from lifesign.domain.probing.shard_share import MAX_TTL_SECONDS
from lifesign.domain.targets.target import SHARDS, StatedKind
from lifesign.domain.tasks.lease import MIN_TTL_SECONDS

TTL_SECONDS = 60.0
"""Default duration of a worker's lease on its shards, in seconds."""

MAX_CLASSES = 1_000
MAX_WITNESSES = 3

WorkerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,48}$")]
Shard = Annotated[int, Field(ge=0, lt=SHARDS)]


def _check_shard_name(value: object) -> object:
    """Refuse a member name such as `07`, which would mean the same shard as `7`."""
    if isinstance(value, str) and value != str(int(value) if value.isdecimal() and len(value) < 8 else ""):
        raise PydanticCustomError("shard_name", "expected a shard as digits without a leading zero")
    return value


ShardName = Annotated[Shard, BeforeValidator(_check_shard_name)]
"""A shard as the name of a member in JSON."""


class ShardClaimRequest(Body):
    """The body of `POST /api/v1/shards/claim`."""

    worker: WorkerName
    """Name of the worker, unique among the workers that use the key at the same time."""
    ttl_seconds: Annotated[
        float, Field(ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS, allow_inf_nan=False, strict=True)
    ] = TTL_SECONDS
    """Time for which the shards are leased and the worker counts as living, in seconds."""
    held: Annotated[dict[ShardName, Token], Field(max_length=SHARDS, default_factory=dict)]
    """Shards that the worker believes it holds, with their fencing tokens."""
    companions: Annotated[int, Field(ge=0, lt=SHARDS, strict=True), INTEGRAL_FLOAT] = 0
    """Number of workers that start at the same time: their share is left for them before they join. It counts
    for a minute, up to the number of the key's living workers.
    """
    reached_classes: Annotated[list[NetworkClassName], Field(max_length=MAX_CLASSES)] | None = None
    """Network classes in which a witness answered this worker within its last interval."""
    wanted_witnesses: dict[NetworkClassName, Annotated[int, Field(ge=1, le=MAX_WITNESSES)]] = Field(
        default_factory=dict, max_length=MAX_CLASSES
    )
    """Network classes without canaries in which this worker knows fewer than three answering targets, with
    the number of targets that it needs.
    """
    interval_s: Annotated[float, Field(ge=10, le=86_400, allow_inf_nan=False)] | None = None
    """Interval of the crawl in seconds."""
    sent_at: Time | None = None
    """Wall clock of the worker when it sent the claim. It affects no verdict; a wrong clock is reported."""
    credentials: list[CredentialPlace] = Field(default_factory=list, max_length=MAX_CREDENTIALS)
    """Names and places of the worker's credentials, never their secrets."""


@fast_dataclass()
class GrantedShard:
    """A shard whose lease the registry granted to the caller."""

    shard: int
    fencing_token: int
    """Fencing token, which the worker sends with every batch of results."""
    expires_at: Time


class HandedOutWitness(BaseModel):
    """A target that answered lately: the caller may request it once, to learn whether the network works."""

    url: str
    network_class: str


class ShardGrant(BaseModel):
    """The answer to `POST /api/v1/shards/claim`."""

    shards: list[GrantedShard]
    """All shards that the caller holds. A shard of `held` that is missing here is lost."""
    workers: int
    """Number of living workers, including the caller."""
    share: int
    """Maximum number of shards for the caller: the share of its key, divided by the key's workers. If it
    holds fewer, it gets more as others release them.
    """
    witnesses: list[HandedOutWitness] = []
    """Targets for `wanted_witnesses`. Each is given to one worker at a time, at most once in 60 s."""
    silent_classes: list[str] = []
    """Network classes in mass silence: none of their targets is a witness."""
    confirmed_classes: dict[str, Time] = {}
    """Network classes in mass silence: none of their targets is a witness."""
    clock_offset_s: float | None = None
    """The caller's wall clock minus the registry's, in seconds; absent if the caller sent no time."""
    reason: str | None = None
    """Reason why the caller holds no shard, unless none is free: `reaches_less` (another living worker of its
    key reaches a strict superset of its network classes) or `no_progress` (it reported no result for two
    intervals while another worker did).
    """
    missing_credentials: list[MissingCredential] = []
    """Places for which another worker has a credential, and the caller has none that works: what is behind a
    login there is not measured (`no_credential`). At most 1,000."""
    working_credentials: list[MissingCredential] = []
    """Places where the caller's credential has no known fault, and that of another worker worked later. If a
    target refuses the caller's credential there, the result is `no_credential`. At most 1,000."""


class LivingProber(BaseModel):
    """A worker of a prober whose shards' leases are valid."""

    holder: str
    """Holder of the leases: id of the key, a slash, and the name of the worker."""
    joined_at: Time
    expires_at: Time
    interval_s: float | None = None
    """Interval of its crawl in seconds; absent if it does not report it."""
    reached_classes: list[str] | None = None
    """Network classes in which a witness answered the worker within its last interval; absent until it knows.
    """
    clock_offset_s: float | None = None
    """Wall clock of the worker minus the registry's, in seconds, at its last claim; absent if unknown."""
    reported_at: Time | None = None
    """Time of its last result of any kind; absent without one."""
    makes_no_progress: bool = False
    """True if it gets no shards because it reported no result while another worker did."""


class ShardsShown(BaseModel):
    """The answer to `GET /api/v1/shards`."""

    version: int
    """Version of the latest change of any target that did not come from the target's prober."""
    changed: dict[str, int]
    """Shards that changed since the requested version, each with its latest version."""
    probers: list[LivingProber]
    share: int
    """Maximum number of shards of a worker, for the key with the fewest workers."""
    unprobed: int | None = None
    """Number of targets without a probe since the requested time."""


class ProbeTarget(BaseModel):
    """A target to probe, with what the next probe needs."""

    subject_id: str
    """Id of the target: `tgt_...`, or the agent's id if an agent registered itself to be probed."""
    url: str
    kind: Annotated[StatedKind, Field(strict=False)] | None = None
    """Kind of the target as its directories state it; absent if none does."""
    memory: ProbeMemory | None = None
    """Memory of the last probe for the next one; absent if it was never probed."""
    recheck_at: Time | None = None
    """Time of the last request for a recheck."""
    version: int
    confirmed_at: Time | None = None
    """Time at which an operator confirmed that this target may be down; see
    `ObservationAnswer.confirmed_classes`.
    """
    thresholds_s: tuple[float, float] | None = None
    """Silence in seconds after which its agent is unhealthy, and dead; absent: the defaults for probed
    agents.
    """
    entered_at: Time | None = None
    """Time at which its URL or agent changed, or it registered again: drop earlier results and start with
    `memory`.
    """


class ShardTargets(BaseModel):
    """One page of the targets of a shard."""

    targets: list[ProbeTarget]
    gone: list[str]
    """Ids that are no longer targets of this shard; only if changes were requested."""
    version: int
    """Version from which to request the next changes, after all pages are read."""
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""
