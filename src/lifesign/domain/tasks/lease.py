"""Leases: duration of a claim, and refusal of late writes.

A worker that was believed dead may still write. A clock cannot prevent it, since the worker may have slept
through its own deadline; the fencing token can: the present holder has a higher one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.errors import InvalidResource, TokensExhausted
from lifesign.domain.lifecycle.heartbeat_timeout import may_have_jumped
from lifesign.domain.lifecycle.status_table import ALIVE, Status
from lifesign.errors import InvalidValue

TTL_SECONDS = 300
"""Default duration of a lease, in seconds (lease protocol, "Lease renewal")."""
MIN_TTL_SECONDS = 1
MAX_TTL_SECONDS = 86_400
TTL_TOLERANCE_SECONDS = 0.002
"""Rounding error of a lease's duration between two times with milliseconds."""

COUNTERS_PER_EPOCH = 2**32
MAX_EPOCH = 2**31 - 1
"""The highest epoch whose tokens all fit into a signed 64-bit integer."""

_EPOCH_SECONDS = 600
_EPOCHS_BEGAN_AT_S = 1_767_225_600
"""2026-01-01."""
_LAST_EPOCH_BY_TIME = 2**21 - 2**16
"""Leaves room below the largest epoch in events (`event.MAX_LOGGED_EPOCH`)."""
COUNTERS_PER_MS = 2**9
"""Increase of the first counter of a raised epoch per millisecond of its 10 minutes."""
_COUNTERS_BEFORE_SPAN = 2**29
"""More than 10 minutes have: room for epochs that were raised before their own time has come."""

MAX_RESOURCE_CHARACTERS = 512


class ResourceKind(StrEnum):
    """Kind of a resource, which decides which callers may lease it."""

    INTENT_SCOPE = "intent"
    """`intent:{id}/{scope}`; the id contains no slash, the scope may."""
    TASK = "task"
    """`task:{id}`"""
    SHARD = "shard"
    """`shard:{n}`; n is decimal without leading zeros, so that a shard has one name."""
    OTHER = "other"
    """Any other name: whatever the callers agree on."""


# A name with one of these prefixes must have the form of its kind, or two names could mean one resource.
_FORMS: Mapping[ResourceKind, re.Pattern[str]] = MappingProxyType({
    ResourceKind.INTENT_SCOPE: re.compile(r"intent:[^/]+/.+"),
    ResourceKind.TASK:         re.compile(r"task:.+"),
    ResourceKind.SHARD:        re.compile(r"shard:(?:0|[1-9][0-9]{0,8})"),
})  # fmt: skip

_KINDS = MappingProxyType({f"{kind}:": kind for kind in _FORMS})
_DOT_SEGMENTS = frozenset({".", ".."})
"""As a part of a path: clients and proxies resolve a/../b to b before they send it (RFC 3986 5.2.4).
Percent-encoded too (URL Standard 4.3): a name contains such text literally if it was encoded once too often.
"""

# Printable ASCII without space and without the three quotes.
_CHARACTERS = re.compile(rf"[!#-&(-_a-~]{{1,{MAX_RESOURCE_CHARACTERS}}}")


class EndReason(StrEnum):
    """Reason why a lease ended, as events name it. The list is closed."""

    RELEASED = "released"
    """Ended by its holder."""
    REVOKED = "revoked"
    """Ended by a coordinator or an operator."""
    EXPIRED = "expired"
    """The lease was not renewed in time, which is no evidence about the agent (RFC-0016 9.1)."""
    AGENT_DEAD = "agent_dead"
    AGENT_DEREGISTERED = "agent_deregistered"
    EPOCH_RAISED = "epoch_raised"
    """The database was restored or failed over: earlier grants are void."""


@fast_dataclass(kw_only=True)
class Claim:
    """What is stored about a resource: its last lease, which may have ended.

    A resource that was never leased has `lease_id` and `holder` None and everything else 0.
    """

    resource: str
    lease_id: str | None = None
    holder: str | None = None
    """Agent id; the key's name where no agent is behind it, such as a prober."""
    holder_incarnation: int = 0
    """The life of the agent that took it, from 1; 0 without an agent."""
    token: int = 0
    """The last fencing token granted; stays when the lease ends."""
    acquired_at_s: float = 0.0
    expires_at_s: float = 0.0
    ended_at_s: float | None = None
    end_reason: EndReason | None = None
    """None also for an overdue lease that was not ended yet."""
    id_secret: str | None = field(default=None, repr=False)
    """Secret from which the ids of this resource's leases are derived; never shown. None before the first
    lease.
    """


class RefusalCode(StrEnum):
    """Reason why a lease request or a protected write is refused."""

    LEASE_HELD = "lease_held"
    """The resource is leased, perhaps to the caller itself: a lease is not re-entrant."""
    AGENT_DRAINING = "agent_draining"
    """The agent finishes its work and gets no new lease (RFC-0016 9.3)."""
    AGENT_GONE = "agent_gone"
    """The agent is dead or deregistered, and must register first."""
    LEASE_NOT_FOUND = "lease_not_found"
    LEASE_ENDED = "lease_ended"
    """The caller's lease has expired or was ended, and another holder may have the resource now."""
    STALE_TOKEN = "stale_token"  # noqa: S105 - the name of a code
    """The resource was granted again since, or another holder has it."""
    TOKEN_NOT_ISSUED = "token_not_issued"  # noqa: S105 - the name of a code
    """Higher than any granted: made up, or granted by a store that has since been restored."""
    NOT_HOLDER = "not_holder"
    """The token is right and the asker is another."""
    WRONG_RUN = "wrong_run"
    """The token is right and the run is another one: these are the credentials of another task."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused lease request or write, with the reason."""

    code: RefusalCode
    claim: Claim | None = None
    """Row of the resource at the decision; None without one."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A new lease, to be stored. The caller adds its id."""

    token: int
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Renewal:
    """A lease with a new deadline, to be stored. Its token stays."""

    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """An ended lease, to be stored."""

    end_reason: EndReason
    is_repeat: bool
    """True if it had ended in the same way before: the request is repeated, and nothing is written."""


def read_resource(text: str) -> ResourceKind:
    """Return the kind of a resource by its name; InvalidResource if the name is invalid.

    InvalidResource unless it is 1 to 512 printable ASCII characters without space, quote and
    backquote, of its kind's form if it begins like `intent:`, `task:` or `shard:`, in any case, and no
    part between slashes is `.` or `..`, with `%2e` for a dot too.
    """
    if not _CHARACTERS.fullmatch(text):
        expected = f"1 to {MAX_RESOURCE_CHARACTERS} printable ASCII characters without spaces and quotes"
        raise InvalidResource(text, expected)
    # INTENT:a/b too: readers confuse it with intent:a/b, which is another resource.
    kind = kind_of(text.casefold())
    if kind in _FORMS and not _FORMS[kind].fullmatch(text):
        raise InvalidResource(text, "intent:{id}/{scope}, task:{id} or shard:{n}, in lower case")
    named = text if kind is ResourceKind.OTHER else text.partition(":")[2]
    if not _DOT_SEGMENTS.isdisjoint(named.casefold().replace("%2e", ".").split("/")):
        expected = "no part . or .. between slashes, nor %2e: clients and proxies resolve them away"
        raise InvalidResource(text, expected)
    return kind


def kind_of(resource: str) -> ResourceKind:
    """Return the kind of a resource from its stored name, which was checked when it was granted.

    The rules of that time may have been laxer: this function refuses nothing.
    """
    beginning, colon, _ = resource.partition(":")
    return _KINDS.get(beginning + colon, ResourceKind.OTHER)


def intent_scope_resource(intent_id: str, scope: str) -> str:
    """Return the resource name of an intent's scope; InvalidResource if they are invalid.

    An id with a slash is refused: `a/b` with `c` would be the same resource as `a` with `b/c`.
    """
    resource = f"intent:{intent_id}/{scope}"
    if "/" in intent_id:
        raise InvalidResource(resource, "an intent id without a slash")
    read_resource(resource)
    return resource


def shard_resource(shard: int) -> str:
    """Return the resource name of a shard."""
    return f"{ResourceKind.SHARD}:{shard}"


def fencing_token(epoch: int, counter: int) -> int:
    """Return a fencing token, epoch · 2^32 + counter: above all tokens of earlier epochs.

    Epoch 0 to 2^31 - 1, else InvalidValue; counter 1 to 2^32 - 1, else TokensExhausted.
    """
    if not 0 <= epoch <= MAX_EPOCH:
        raise InvalidValue("epoch", epoch, f"0 to {MAX_EPOCH}")
    if not 1 <= counter < COUNTERS_PER_EPOCH:
        raise TokensExhausted(epoch)
    return epoch * COUNTERS_PER_EPOCH + counter


def raised_epoch(epochs: Iterable[int], now_s: float) -> int:
    """Return an epoch for fencing tokens above all known ones, and above any that a restore has lost.

    A store that is lost twice may be restored twice from one backup: the epoch in between is in neither.
    So an epoch is at least the number of 10 minutes since 2026, which lasts until 2065; later it only
    counts on. InvalidValue beyond MAX_EPOCH.
    """
    by_time = min(int((now_s - _EPOCHS_BEGAN_AT_S) // _EPOCH_SECONDS), _LAST_EPOCH_BY_TIME)
    epoch = max(*(known + 1 for known in epochs), by_time, 1)
    if epoch > MAX_EPOCH:
        raise InvalidValue("epoch", epoch, f"at most {MAX_EPOCH}")
    return epoch


def raised_floor(floors: Iterable[int], now_s: float, salt: int) -> int:
    """Return a fencing token in a raised epoch, above which all new tokens lie.

    One backup may be restored to two stores that do not know of each other, within the same 10 minutes: then
    both have the same epoch. So its counter does not begin at 1, but rises by `COUNTERS_PER_MS` for each
    millisecond. If the backup already has the epoch of a future time, its counter stays below all that this
    time will give. `salt`, random, 0 to COUNTERS_PER_MS - 1, distinguishes restores within the same
    millisecond. At least 3/4 of the counters are left.
    """
    epoch = raised_epoch((floor // COUNTERS_PER_EPOCH for floor in floors), now_s)
    span, ms_of_span = divmod(int((now_s - _EPOCHS_BEGAN_AT_S) * 1_000), _EPOCH_SECONDS * 1_000)
    begin = _COUNTERS_BEFORE_SPAN if epoch == span else 0
    return epoch * COUNTERS_PER_EPOCH + begin + ms_of_span * COUNTERS_PER_MS + salt


def next_token(last_token: int, floor: int) -> int:
    """Return the fencing token of the next lease, above `last_token` (0: none yet).

    It is above `floor` too, which rises with each epoch. A lower floor (read before it was raised) does
    not lead back. TokensExhausted once an epoch's 2^32 - 1 counters are used up.
    """
    epoch, counter = divmod(max(last_token, floor), COUNTERS_PER_EPOCH)
    return fencing_token(epoch, counter + 1)


def read_window_s(reported_s: float) -> float | None:
    """Return for how long a lease of this stated duration may be used; None if the duration is impossible."""
    window_s = min(max(reported_s, MIN_TTL_SECONDS), MAX_TTL_SECONDS)
    return window_s if abs(reported_s - window_s) <= TTL_TOLERANCE_SECONDS else None


def is_unexpired(claim: Claim, now_s: float) -> bool:
    """Return whether a lease is valid now: not ended, and before its deadline.

    At the deadline it has expired.
    """
    return claim.lease_id is not None and claim.ended_at_s is None and claim.expires_at_s > now_s


def is_end_uncertain(claim: Claim, now_s: float, swept_at_s: float | None) -> bool:
    """Return whether an overdue lease may still be valid: only the next sweep decides.

    If no sweep has run for a while, the clock may have been set ahead, and a sweep then moves the deadline.
    """
    return (
        claim.lease_id is not None
        and claim.ended_at_s is None
        and swept_at_s is not None
        and swept_at_s < claim.expires_at_s <= now_s
        and may_have_jumped(swept_at_s, now_s)
    )


def decide_acquire(
    claim: Claim | None,
    holder_status: Status | None,
    *,
    token_floor: int,
    now_s: float,
    ttl_seconds: float = TTL_SECONDS,
) -> Grant | Refusal:
    """Decide a request to lease a resource (RFC-0016 9.2, 9.3): grant or refusal.

    `claim` is the resource's row, None if it has none; `holder_status` the asking agent's, None for a
    key without an agent; the new token is above `token_floor`. An unhealthy agent is granted: it may well
    be working.
    """
    if holder_status is Status.DRAINING:
        return Refusal(RefusalCode.AGENT_DRAINING, claim)
    if holder_status is not None and holder_status not in ALIVE:
        return Refusal(RefusalCode.AGENT_GONE, claim)
    if claim is not None and is_unexpired(claim, now_s):
        return Refusal(RefusalCode.LEASE_HELD, claim)
    last_token = 0 if claim is None else claim.token
    return Grant(next_token(last_token, token_floor), _deadline_s(now_s, ttl_seconds))


def decide_renew(
    claim: Claim | None,
    lease_id: str,
    *,
    holder: str,
    token: int,
    now_s: float,
    ttl_seconds: float = TTL_SECONDS,
) -> Renewal | Refusal:
    """Decide a request to renew a lease. An expired lease is not renewed.

    `claim` is the row of the leased resource; None if there never was one.
    """
    if claim is None:
        return Refusal(RefusalCode.LEASE_NOT_FOUND)
    if claim.lease_id != lease_id:
        return Refusal(RefusalCode.LEASE_ENDED, claim)
    return check_write(claim, holder, token, now_s) or Renewal(_deadline_s(now_s, ttl_seconds))


def decide_release(
    claim: Claim | None, lease_id: str, *, holder: str, now_s: float, is_for_another: bool = False
) -> Release | Refusal:
    """Decide a request to end a lease. `is_for_another`: the caller may end leases of others.

    The end of another holder's lease is a revocation, that of an own lease a release. A repeated request is
    granted again; a lease that ended in another way can no longer be released.
    """
    if claim is None:
        return Refusal(RefusalCode.LEASE_NOT_FOUND)
    if claim.lease_id != lease_id:
        return Refusal(RefusalCode.LEASE_ENDED, claim)
    if claim.holder != holder and not is_for_another:
        return Refusal(RefusalCode.NOT_HOLDER, claim)
    end_reason = EndReason.RELEASED if claim.holder == holder else EndReason.REVOKED
    if is_unexpired(claim, now_s):
        return Release(end_reason, is_repeat=False)
    if claim.end_reason is end_reason:
        return Release(end_reason, is_repeat=True)
    return Refusal(RefusalCode.LEASE_ENDED, claim)


def check_write(claim: Claim | None, holder: str, token: int, now_s: float) -> Refusal | None:
    """Return why a write with this token is refused; None if the token is that of the holder's valid lease.

    Call it in the transaction of the write, or the answer may be outdated.
    """
    if claim is None:
        return Refusal(RefusalCode.TOKEN_NOT_ISSUED)
    # The token is checked first: to a late writer that was replaced it says more than "not you".
    if token != claim.token:
        is_higher = token > claim.token
        return Refusal(RefusalCode.TOKEN_NOT_ISSUED if is_higher else RefusalCode.STALE_TOKEN, claim)
    if holder != claim.holder:
        return Refusal(RefusalCode.NOT_HOLDER, claim)
    if not is_unexpired(claim, now_s):
        return Refusal(RefusalCode.LEASE_ENDED, claim)
    return None


def for_stranger(refusal: Refusal) -> Refusal:
    """Return a refusal without details, for a caller that is not permitted to see the lease.

    It is the same for every token: by trying tokens, the caller must not find the current one.
    """
    return refusal if refusal.claim is None else Refusal(RefusalCode.STALE_TOKEN)


def ended(claim: Claim, end_reason: EndReason, now_s: float) -> Claim:
    """Return the stored lease as ended. If it has ended before, the first reason and time stay.

    A lease whose time is over ended as `expired` at its deadline, whatever ends it later.
    """
    if claim.lease_id is None or claim.ended_at_s is not None:
        return claim
    if not is_unexpired(claim, now_s):
        return replace(claim, ended_at_s=claim.expires_at_s, end_reason=EndReason.EXPIRED)
    return replace(claim, ended_at_s=now_s, end_reason=end_reason)


def _deadline_s(now_s: float, ttl_seconds: float) -> float:
    if not MIN_TTL_SECONDS <= ttl_seconds <= MAX_TTL_SECONDS:
        raise InvalidValue("ttl_seconds", ttl_seconds, f"{MIN_TTL_SECONDS} to {MAX_TTL_SECONDS}")
    return now_s + ttl_seconds
