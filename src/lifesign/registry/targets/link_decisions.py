"""Links between registered agents and crawled targets: how they begin and end.

`link_proof` decides from the stored claims. A link ends the target's own record. The agent's own target, if
it has one, is not probed any more: the crawled target is, and its results go into the agent's record. The end
of a link restores both. The target's record begins again with its next liveness signal. Each time, the
back-off of the target that is probed from then on ends, since it concerned another record.
"""

from collections.abc import Sequence
from dataclasses import replace

from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.events.agent_payloads import (
    AgentLinkConflict,
    AgentLinked,
    AgentUnlinked,
    MaintenanceChanged,
    StatusOverrideChanged,
)
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.payload_fields import Payload
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import ALIVE, Signal, Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence, is_in_force
from lifesign.domain.models.base import moment
from lifesign.domain.targets.link_proof import (
    RELINK_SECONDS,
    LinkClaim,
    LinkDecision,
    UnlinkReason,
    can_card_prove,
    claimed_urls,
    decide,
    is_claim,
    is_same_registry,
    next_check_s,
    proof_of,
)
from lifesign.domain.targets.target import read_target
from lifesign.registry.status_changes.agent_status import change_status
from lifesign.registry.status_changes.agent_verdicts import Change
from lifesign.registry.targets import probed_agents
from lifesign.registry.targets.opt_out_origins import has_opted_out, note_opted_out
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.targets import target_links, target_rows
from lifesign.storage.targets.target_links import CardClaimant, CardFound, StoredClaim, StoredLink
from lifesign.storage.targets.target_rows import GoneReason, StoredTarget

ACTOR = OwnActor.SERVER.value
MAX_CARDS = 16
"""Maximum number of targets whose cards may prove that they are one agent."""
_TAKEN_OVER = "continues from the record that was linked"
"""Reason of a maintenance or an override that an operator began for the other record."""


def claim_of(stored: StoredClaim, public_url: str | None) -> LinkClaim:
    """Return a stored claim in the form that the rule for links takes; `public_url` is this registry's."""
    urls = claimed_urls(stored.card_url, stored.endpoint)
    is_proof = is_same_registry(stored.registry, public_url) and can_card_prove(stored.card_url, stored.url)
    return LinkClaim(
        agent=stored.agent,
        is_registered=stored.status != Status.DEREGISTERED,
        is_claimed=is_claim(urls, stored.url, stored.found_card_url),
        card_at_s=stored.card_at_s if is_proof else None,
        token_at_s=stored.token_at_s,
        unlinked_at_s=stored.unlinked_at_s,
    )


def note_cards(transaction: Transaction, cards: Sequence[CardFound]) -> None:
    """Store the claims in cards that were read, at most one per target.

    Only what can prove a claim is stored: the agent claims the target, and is not named by the cards of
    `MAX_CARDS` others. Cards of strangers that name an agent leave nothing.
    """
    named = sorted({card.agent_id for card in cards if card.agent_id is not None})
    claimants = target_links.claimants(transaction, named)
    naming = [card.target for card in cards if card.agent_id in claimants]
    urls = {target.id: target.url for target in target_rows.find_many(transaction, naming)}
    others: dict[str, set[int]] = {}
    noted: list[CardFound] = []
    for card in cards:
        claimant, url = claimants.get(card.agent_id or ""), urls.get(card.target)
        if claimant is not None and url is not None and _can_prove(claimant, url, card.card_url):
            known = others.get(claimant.agent_id)
            if known is None:
                known = target_links.named_by_cards(transaction, claimant.agent, MAX_CARDS)
                others[claimant.agent_id] = known
            if card.target in known or len(known) < MAX_CARDS:
                known.add(card.target)
                noted.append(card)
                continue
        noted.append(replace(card, registry=None, agent_id=None))
    target_links.note_cards(transaction, noted)


def _can_prove(claimant: CardClaimant, url: str, card_url: str | None) -> bool:
    urls = claimed_urls(claimant.card_url, claimant.endpoint)
    return is_claim(urls, url, card_url) and can_card_prove(claimant.card_url, url)


def settle(transaction: Transaction, number: int, public_url: str | None) -> None:
    """Decide again which agent a target is linked to, and apply the decision."""
    found = target_rows.find_many(transaction, [number])
    if not found:
        return
    target = found[0]
    names = {claim.agent_id for claim in target_links.claims_of(transaction, number)} | {target.subject_id}
    locked = {
        agent.agent_id: agent for agent in agent_rows.find_named(transaction, sorted(names), to_change=True)
    }
    version = target_rows.next_version(transaction)
    # All of it may have changed before the locks were there.
    transaction = transaction.after_waiting()
    now_s = transaction.now_s
    target = target_rows.find_many(transaction, [number])[0]
    stored = [
        claim
        for claim in target_links.claims_of(transaction, number, to_change=True)
        if claim.agent_id in locked
    ]
    link = target_links.link_of(transaction, number)
    claims = [claim_of(claim, public_url) for claim in stored]
    decision = decide(
        claims, None if link is None else link.agent, is_gone=target.gone_at_s is not None, now_s=now_s
    )
    drafts: list[EventDraft] = []
    if link is not None and decision.reason is not None:
        agent = locked.get(link.agent_id)
        drafts.append(_end(transaction, link, target, decision.reason, version=version, agent=agent))
        drafts += _take_over(transaction, agent, locked.get(target.subject_id))
        link = None
    drafts += _conflicts(transaction, target, list(zip(stored, claims, strict=True)), decision)
    linked = next((claim for claim in stored if claim.agent == decision.agent), None)
    if linked is not None:
        if link is None:
            target_links.link(transaction, number, linked.agent)
            # The agent may be alive, however long the target failed before it was registered.
            probed_agents.restart_probing(transaction, [number], version)
            drafts.append(_linked(linked, next(one for one in claims if one.agent == linked.agent), now_s))
            drafts += _take_over(transaction, locked.get(target.subject_id), locked.get(linked.agent_id))
        _retire_own_target(transaction, linked.agent_id, version)
        _end_record(transaction, locked.get(target.subject_id), linked.agent_id)
    target_links.remove_empty(transaction, number, now_s - RELINK_SECONDS)
    target_links.set_due(transaction, number, next_check_s(claims, now_s))
    event_log.append(transaction, drafts)


def end_link(transaction: Transaction, target_id: str) -> None:
    """End the link of a target that is about to be removed, if it has one; agents must not be locked yet."""
    target = target_rows.find(transaction, target_id)
    link = None if target is None else target_links.link_of(transaction, target.id)
    if target is None or link is None:
        return
    locked = agent_rows.find_named(transaction, sorted({target_id, link.agent_id}), to_change=True)
    agent = next((agent for agent in locked if agent.agent_id == link.agent_id), None)
    version = target_rows.next_version(transaction)
    draft = _end(transaction, link, target, UnlinkReason.TARGET_GONE, version=version, agent=agent)
    event_log.append(transaction, [draft])


def _end(
    transaction: Transaction,
    link: StoredLink,
    target: StoredTarget,
    reason: UnlinkReason,
    *,
    version: int,
    agent: StoredAgent | None,
) -> EventDraft:
    target_links.unlink(transaction, link.target, link.agent)
    target_rows.touch_targets(transaction, [link.target], version)
    if agent is not None and not target_links.links_to(transaction, link.agent):
        _restore_own_target(transaction, agent, version)
    payload = AgentUnlinked(agent_id=link.agent_id, target_id=target.subject_id, reason=reason)
    return _event(EventType.AGENT_UNLINKED, payload, link.agent_id)


def _restore_own_target(transaction: Transaction, agent: StoredAgent, version: int) -> None:
    """Probe an agent at its own URL again, if it registered for that; otherwise forget the observations."""
    url = None if agent.card_url is None else read_target(agent.card_url)
    if agent.status == Status.DEREGISTERED:
        target_rows.end_linked(transaction, agent.agent_id)
    elif agent.monitoring == DecidingEvidence.HEARTBEAT or not isinstance(url, str):
        target_links.forget_observed(transaction, agent.id)
        agent_rows.set_verdict_due(transaction, {agent.id: transaction.now_s})
    else:
        target_rows.enter(transaction, agent.agent_id, url, version)
        own = target_rows.present(transaction, [agent.agent_id])
        probed_agents.restart_probing(transaction, own, version)
        if has_opted_out(transaction, url):
            target_rows.leave(transaction, own, GoneReason.OPTED_OUT, version)
            note_opted_out(transaction, [agent.agent_id])


def _retire_own_target(transaction: Transaction, agent_id: str, version: int) -> None:
    if number := target_rows.present(transaction, [agent_id]):
        target_rows.leave(transaction, number, GoneReason.LINKED, version)


def _end_record(transaction: Transaction, record: StoredAgent | None, agent_id: str) -> None:
    """End the target's own record, if it has one."""
    if record is None or record.status == Status.DEREGISTERED:
        return
    change = Change(
        agent=record,
        signals=(Signal.LINKED,),
        explanation=f"linked: results of this target go into the record of {agent_id}",
        health=HealthStatus.UNKNOWN,
        assess_at_s=None,
    )
    change_status(transaction, [change], ACTOR)


def _take_over(
    transaction: Transaction, source: StoredAgent | None, destination: StoredAgent | None
) -> list[EventDraft]:
    """Continue an operator's maintenance and override in the record that the target's results go to now.

    The later maintenance counts. An override of the destination stays.
    """
    drafts: list[EventDraft] = []
    if source is None or destination is None:
        return drafts
    agent_id, now_s = destination.agent_id, transaction.now_s
    until_s = source.maintenance_until_s
    if (
        until_s is not None
        and is_in_force(until_s, now_s)
        and until_s > (destination.maintenance_until_s or 0)
    ):
        agent_rows.set_maintenance(transaction, [destination.id], until_s)
        maintained = MaintenanceChanged(agent_id=agent_id, until=moment(until_s), reason=_TAKEN_OVER)
        drafts.append(_event(EventType.AGENT_MAINTENANCE_CHANGED, maintained, agent_id))
    until_s, status = source.override_until_s, source.override_status
    is_overridden = is_in_force(destination.override_until_s, now_s)
    if status is not None and until_s is not None and is_in_force(until_s, now_s) and not is_overridden:
        columns = {"override_status": status, "override_until_s": until_s}
        agent_rows.change(transaction, destination.id, columns)
        overridden = StatusOverrideChanged(
            agent_id=agent_id, status=Status(status), until=moment(until_s), reason=_TAKEN_OVER
        )
        drafts.append(_event(EventType.AGENT_OVERRIDE_CHANGED, overridden, agent_id))
    if drafts and destination.status in ALIVE:
        agent_rows.set_verdict_due(transaction, {destination.id: now_s})
    return drafts


def _conflicts(
    transaction: Transaction,
    target: StoredTarget,
    claims: Sequence[tuple[StoredClaim, LinkClaim]],
    decision: LinkDecision,
) -> list[EventDraft]:
    """Record the proofs of the claims.

    One event if a further agent proves a claim that another has proven.
    """
    now_s = transaction.now_s
    proofs = {stored.agent: proof_of(claim, now_s) for stored, claim in claims}
    changed = {
        stored.agent: proofs[stored.agent] for stored, _ in claims if proofs[stored.agent] != stored.proof
    }
    target_links.set_proofs(transaction, target.id, changed)
    before = {stored.agent for stored, _ in claims if stored.proof is not None}
    new = decision.conflicting - before
    if not new:
        return []
    # One event, also if several are new: of the agent that registered last.
    stored = max((stored for stored, _ in claims if stored.agent in new), key=lambda stored: stored.agent)
    proof = proofs[stored.agent]
    assert proof is not None  # noqa: S101 - it is in conflict
    payload = AgentLinkConflict(agent_id=stored.agent_id, target_id=target.subject_id, proof=proof)
    return [_event(EventType.AGENT_LINK_CONFLICT, payload, stored.agent_id)]


def _linked(stored: StoredClaim, claim: LinkClaim, now_s: float) -> EventDraft:
    proof = proof_of(claim, now_s)
    assert proof is not None  # noqa: S101 - it is linked
    payload = AgentLinked(agent_id=stored.agent_id, target_id=stored.target_id, proof=proof)
    return _event(EventType.AGENT_LINKED, payload, stored.agent_id)


def _event(kind: EventType, payload: Payload, agent_id: str) -> EventDraft:
    return EventDraft(type=kind, actor=ACTOR, payload=payload, agent_id=agent_id)
