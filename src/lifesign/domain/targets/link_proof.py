"""Links between registered agents and crawled targets: when a claim exists, and when it is proven.

An agent claims a target by the URLs that it registered. The target's own card proves the claim, or a token
that the target's origin serves. Only a proven claim links the two records, and only while no other agent has
proven a claim for the same target. Times are seconds since the epoch by the registry's clock.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lifesign.domain.targets.target import host_of, is_on_origin_of, read_target

PROOF_GRACE_SECONDS: Final = 7 * 86_400.0
"""A proof counts for this long after it was last seen.

A target that cannot be reached neither proves nor disproves a claim.
"""
CHECK_SECONDS: Final = 86_400.0
"""Time between two checks of a proof."""
RELINK_SECONDS: Final = 3_600.0
"""Shortest time between the end of a link and the next link of the same two records."""


class Proof(StrEnum):
    """Kind of proof that a target is an agent: by its card, or by a token."""

    CARD = "card"
    """The health extension of the target's card names this registry and the agent."""
    TOKEN = "token"  # noqa: S105 - the name of a kind of proof
    """The target's origin serves a token that was given to the agent."""


class LinkState(StrEnum):
    """State of an agent's claim that it is a target: only claimed, proven, or linked."""

    CLAIMED = "claimed"
    """The claim is not proven, and has no effect."""
    PROVEN = "proven"
    """The claim is proven but not linked: another agent proved one too, or a link ended in the last hour."""
    LINKED = "linked"


class UnlinkReason(StrEnum):
    """Reason why the link between a target and an agent ended."""

    PROOF_FAILED = "proof_failed"
    """The card or the file was read and no longer contains the proof."""
    PROOF_EXPIRED = "proof_expired"
    """The proof could not be read for `PROOF_GRACE_SECONDS`."""
    CLAIM_ENDED = "claim_ended"
    """The agent registered other URLs, or the target's card was found at another URL."""
    TWO_CLAIMS = "two_claims"
    """Another agent proved a claim for the same target."""
    AGENT_DEREGISTERED = "agent_deregistered"
    TARGET_GONE = "target_gone"
    """The target left its directories, or its owner opted out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClaim:
    """An agent's claim that it is a target, with the proofs found for it."""

    agent: int
    is_registered: bool
    """Whether the agent is registered, not deregistered."""
    is_claimed: bool
    """Whether one of the agent's URLs is the target's (`is_claim`)."""
    card_at_s: float | None = None
    """When the target's card last named this registry and the agent; None: it does not."""
    token_at_s: float | None = None
    """When the token was last found; None: it is not served."""
    unlinked_at_s: float | None = None
    """When the last link of the two ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDecision:
    """Decision to which agent a target is linked, and why a link ended."""

    agent: int | None = None
    """The agent that it is linked to."""
    reason: UnlinkReason | None = None
    """Reason for the end of an earlier link; None if it continues, or if there was none."""
    conflicting: frozenset[int] = frozenset()
    """Agents that have proven a claim, if there are several."""


def claimed_urls(card_url: str | None, endpoint: str | None) -> frozenset[str]:
    """Return the URLs at which an agent says that it is, in the form of `read_target`."""
    read = (read_target(url) for url in (card_url, endpoint) if url is not None)
    return frozenset(url for url in read if isinstance(url, str))


def is_claim(urls: Collection[str], target_url: str, found_card_url: str | None) -> bool:
    """Return whether an agent with these URLs (`claimed_urls`) claims to be this target.

    They are compared exactly with the target's URL and with the URL at which the prober requested its card.
    That URL counts on the target's own origin only, since the prober reports it. The destination of a
    redirect does not count: otherwise a target that redirects to another agent's card would appear as that
    agent.
    """
    if target_url in urls:
        return True
    found = None if found_card_url is None else read_target(found_card_url)
    return isinstance(found, str) and found in urls and is_on_origin_of(found, target_url)


def can_card_prove(card_url: str | None, target_url: str) -> bool:
    """Return whether the card of a target can prove the claim of an agent that registered this card URL.

    The prober reports the content of a card, and all targets of a host are in one shard. On the host of the
    agent's own card the prober observes the agent anyway. On another host it could take over an agent outside
    its share.
    """
    own = None if card_url is None else read_target(card_url)
    return not isinstance(own, str) or host_of(own) == host_of(target_url)


def is_same_registry(named: str | None, public_url: str | None) -> bool:
    """Return whether a card names the registry with this public URL; False for a registry without one."""
    if named is None or public_url is None:
        return False
    own = read_target(public_url)
    return isinstance(own, str) and read_target(named) == own


def proof_of(claim: LinkClaim, now_s: float) -> Proof | None:
    """Return which proof of a claim is valid now; None if there is none."""
    if not (claim.is_registered and claim.is_claimed):
        return None
    if _counts(claim.card_at_s, now_s):
        return Proof.CARD
    return Proof.TOKEN if _counts(claim.token_at_s, now_s) else None


def decide(claims: Collection[LinkClaim], linked: int | None, *, is_gone: bool, now_s: float) -> LinkDecision:
    """Return to which agent a target is linked. `linked`: the agent until now; `is_gone`: the target is."""
    if is_gone:
        return LinkDecision(reason=None if linked is None else UnlinkReason.TARGET_GONE)
    proven = [claim for claim in claims if proof_of(claim, now_s) is not None]
    if len(proven) > 1:
        conflicting = frozenset(claim.agent for claim in proven)
        if linked is None or linked in conflicting:
            reason = None if linked is None else UnlinkReason.TWO_CLAIMS
        else:
            reason = _unproven_reason(claims, linked)
        return LinkDecision(reason=reason, conflicting=conflicting)
    one = proven[0] if proven else None
    if one is not None and one.agent == linked:
        return LinkDecision(agent=linked)
    reason = None if linked is None else _unproven_reason(claims, linked)
    if one is None or (one.unlinked_at_s is not None and now_s - one.unlinked_at_s < RELINK_SECONDS):
        return LinkDecision(reason=reason)
    return LinkDecision(agent=one.agent, reason=reason)


def next_check_s(claims: Collection[LinkClaim], now_s: float) -> float:
    """Return the time at which `decide` may return another decision without any new proof."""
    moments = [now_s + CHECK_SECONDS]
    for claim in claims:
        proofs_at_s = (claim.card_at_s, claim.token_at_s)
        moments += [at_s + PROOF_GRACE_SECONDS for at_s in proofs_at_s if at_s is not None]
        if claim.unlinked_at_s is not None:
            moments.append(claim.unlinked_at_s + RELINK_SECONDS)
    return min(at_s for at_s in moments if at_s > now_s)


def _counts(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and now_s - at_s < PROOF_GRACE_SECONDS


def _unproven_reason(claims: Collection[LinkClaim], agent: int) -> UnlinkReason:
    claim = next((claim for claim in claims if claim.agent == agent), None)
    if claim is None or not claim.is_registered:
        return UnlinkReason.AGENT_DEREGISTERED
    if not claim.is_claimed:
        return UnlinkReason.CLAIM_ENDED
    was_seen = claim.card_at_s is not None or claim.token_at_s is not None
    return UnlinkReason.PROOF_EXPIRED if was_seen else UnlinkReason.PROOF_FAILED
