"""Links and claims of an agent, as its record shows them."""

from agent_health.agent_record import moment
from agent_health.lifecycle import Status
from agent_health.link_record import LinkShown
from agent_health.link_rule import LinkState, Proof, claimed_urls, is_claim
from agent_health.opt_out_proof import origin_of
from agent_health.storage import links, targets
from agent_health.storage.agents import StoredAgent
from agent_health.storage.database import Transaction
from agent_health.storage.links import StoredClaim
from agent_health.target import target_id


def shown_links(transaction: Transaction, agent: StoredAgent) -> list[LinkShown] | None:
    """Return the targets that an agent claims; None if it claims none."""
    urls = claimed_urls(agent.card_url, agent.endpoint)
    if agent.target_url is not None or agent.status == Status.DEREGISTERED or not urls:
        return None
    linked = {link.target: link.linked_at_s for link in links.links_to(transaction, agent.id)}
    shown = {
        claim.target: _shown(claim, linked.get(claim.target))
        for claim in links.claims_by(transaction, agent.id)
        if not claim.target_is_gone and is_claim(urls, claim.url, claim.found_card_url)
    }
    # The target of a claim without proof stands at the URL itself, or is the origin whose card it is.
    places = {target_id(place) for url in urls for place in (url, f"{origin_of(url)}/")}
    for name in sorted(places):
        target = targets.find(transaction, name)
        if target is None or target.gone_at_s is not None or target.id in shown:
            continue
        if is_claim(urls, target.url, links.found_card_url(transaction, target.id)):
            shown[target.id] = LinkShown(target_id=target.subject_id, url=target.url, state=LinkState.CLAIMED)
    return [shown[number] for number in sorted(shown)] or None


def _shown(claim: StoredClaim, linked_at_s: float | None = None) -> LinkShown:
    proof = None if claim.proof is None else Proof(claim.proof)
    seen_at_s = claim.card_at_s if proof is Proof.CARD else claim.token_at_s
    state = LinkState.CLAIMED if proof is None else LinkState.PROVEN
    return LinkShown(
        target_id=claim.target_id,
        url=claim.url,
        state=state if linked_at_s is None else LinkState.LINKED,
        proof=proof,
        proven_at=None if proof is None or seen_at_s is None else moment(seen_at_s),
        linked_at=None if linked_at_s is None else moment(linked_at_s),
    )
