"""Events about leases (RFC-0016 9.1).

There are events for acquisition, release, expiry and a refused write; renewals are not logged. Shards change
hands by the hundred: one event covers many of them.
"""

from collections.abc import Iterable, Iterator, Sequence

from lifesign.domain.access.event_actor import is_reserved
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.lease_payloads import (
    FencedWriteRejected,
    LeaseAcquired,
    LeaseEnded,
    ShardLease,
    ShardsEnded,
    ShardsGranted,
)
from lifesign.domain.events.payload_fields import MAX_SHARDS
from lifesign.domain.models.base import moment
from lifesign.domain.tasks.lease import Claim, EndReason, Refusal, RefusalCode, ResourceKind, kind_of

MAX_INTENT_ID_CHARACTERS = 128
"""Maximum length of ids in events: their id members are not longer."""

_PREFIX = f"{ResourceKind.INTENT_SCOPE}:"
_SHARD_PREFIX = f"{ResourceKind.SHARD}:"


def acquired(claim: Claim, actor: str) -> EventDraft:
    """Return the event of an acquired lease."""
    payload = LeaseAcquired(
        resource=claim.resource,
        lease_id=claim.lease_id or "",
        holder=claim.holder or "",
        holder_incarnation=claim.holder_incarnation,
        fencing_token=claim.token,
        expires_at=moment(claim.expires_at_s),
    )
    return _draft(EventType.LEASE_ACQUIRED, claim, payload, actor)


def lease_ended(claim: Claim, actor: str) -> EventDraft:
    """Return the event of an ended lease: released by an entitled caller, or expired otherwise."""
    reason = claim.end_reason or EndReason.EXPIRED
    is_released = reason in {EndReason.RELEASED, EndReason.REVOKED}
    payload = LeaseEnded(
        resource=claim.resource,
        lease_id=claim.lease_id or "",
        holder=claim.holder or "",
        fencing_token=claim.token,
        reason=reason,
    )
    kind = EventType.LEASE_RELEASED if is_released else EventType.LEASE_EXPIRED
    return _draft(kind, claim, payload, actor)


def leases_ended(claims: Iterable[Claim], actor: str) -> Iterator[EventDraft]:
    """Return the events about ended leases; the shards of one prober share an event."""
    shards: dict[tuple[str, EndReason], list[Claim]] = {}
    for claim in claims:
        if kind_of(claim.resource) is ResourceKind.SHARD and not claim.holder_incarnation:
            reason = claim.end_reason or EndReason.EXPIRED
            shards.setdefault((claim.holder or "", reason), []).append(claim)
        else:
            yield lease_ended(claim, actor)
    for (holder, reason), several in shards.items():
        for some in _portions(sorted(several, key=_shard_number)):
            ended = ShardsEnded(holder=holder, shards=[_shard_lease(claim) for claim in some], reason=reason)
            yield EventDraft(type=EventType.SHARDS_ENDED, actor=actor, payload=ended)


def shards_granted(claims: Sequence[Claim], holder: str, actor: str) -> Iterator[EventDraft]:
    """Return the events of shards that were granted to one prober at once."""
    for some in _portions(claims):
        granted = ShardsGranted(
            holder=holder,
            shards=[_shard_lease(claim) for claim in some],
            expires_at=moment(some[0].expires_at_s),
        )
        yield EventDraft(type=EventType.SHARDS_GRANTED, actor=actor, payload=granted)


def write_rejected(
    refusal: Refusal, resource: str, *, writer: str, token: int, agent_id: str | None
) -> EventDraft:
    """Return the event of a guarded write that was refused and changed nothing."""
    without_claim = 0 if refusal.code is RefusalCode.TOKEN_NOT_ISSUED else None
    payload = FencedWriteRejected(
        resource=resource,
        writer=writer,
        fencing_token=token,
        current_token=without_claim if refusal.claim is None else refusal.claim.token,
        reason=refusal.code,
    )
    return EventDraft(
        type=EventType.FENCED_WRITE_REJECTED,
        actor=writer,
        payload=payload,
        agent_id=agent_id,
        intent_id=intent_of(resource),
    )


def intent_of(resource: str) -> str | None:
    """Return the intent's id in `intent:{id}/{scope}`; None for other resources, and for too long ids."""
    if kind_of(resource) is not ResourceKind.INTENT_SCOPE:
        return None
    intent_id = resource.removeprefix(_PREFIX).partition("/")[0]
    return intent_id if len(intent_id) <= MAX_INTENT_ID_CHARACTERS else None


def _draft(kind: EventType, claim: Claim, payload: LeaseAcquired | LeaseEnded, actor: str) -> EventDraft:
    return EventDraft(
        type=kind,
        actor=actor,
        payload=payload,
        agent_id=_agent_holding(claim),
        intent_id=intent_of(claim.resource),
    )


def _agent_holding(claim: Claim) -> str | None:
    """Return the agent of the event; None for a key. Without a registration it has no incarnation."""
    if claim.holder is None or (claim.holder_incarnation == 0 and is_reserved(claim.holder)):
        return None
    return claim.holder


def _portions(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    for first in range(0, len(claims), MAX_SHARDS):
        yield claims[first : first + MAX_SHARDS]


def _shard_number(claim: Claim) -> int:
    return int(claim.resource.removeprefix(_SHARD_PREFIX))


def _shard_lease(claim: Claim) -> ShardLease:
    return ShardLease(
        shard=_shard_number(claim),
        lease_id=claim.lease_id or "",
        fencing_token=claim.token,
    )
