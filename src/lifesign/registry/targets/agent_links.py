"""Links and claims of an agent, as its record shows them."""

from collections.abc import Sequence

from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.base import moment
from lifesign.domain.models.links import LinkShown
from lifesign.domain.net.allowed_addresses import AddressRefused, Network, vet_url
from lifesign.domain.targets.link_proof import (
    LinkState,
    Proof,
    claimed_urls,
    is_claim,
)
from lifesign.domain.targets.opt_out_proof import origin_of
from lifesign.domain.targets.target import target_id
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_links, target_rows
from lifesign.storage.targets.target_links import StoredClaim


def shown_links(
    transaction: Transaction, agent: StoredAgent, allowed: Sequence[Network]
) -> list[LinkShown] | None:
    """Return the targets that an agent claims; None if it claims none.

    `allowed`: private networks in which the registry looks for tokens (`webhook_networks`).
    """
    urls = claimed_urls(agent.card_url, agent.endpoint)
    if agent.target_url is not None or agent.status == Status.DEREGISTERED or not urls:
        return None
    linked = {link.target: link.linked_at_s for link in target_links.links_to(transaction, agent.id)}
    shown = {
        claim.target: _shown(claim, allowed, linked.get(claim.target))
        for claim in target_links.claims_by(transaction, agent.id)
        if not claim.target_is_gone and is_claim(urls, claim.url, claim.found_card_url)
    }
    # The target of a claim without proof is the URL itself, or the origin whose card it is.
    places = {target_id(place) for url in urls for place in (url, f"{origin_of(url)}/")}
    for name in sorted(places):
        target = target_rows.find(transaction, name)
        if target is None or target.gone_at_s is not None or target.id in shown:
            continue
        if is_claim(urls, target.url, target_links.found_card_url(transaction, target.id)):
            shown[target.id] = LinkShown(target_id=target.subject_id, url=target.url, state=LinkState.CLAIMED)
    return [shown[number] for number in sorted(shown)] or None


def _shown(claim: StoredClaim, allowed: Sequence[Network], linked_at_s: float | None) -> LinkShown:
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
        token_requested_at=None
        if claim.token is None or claim.requested_at_s is None
        else moment(claim.requested_at_s),
        token_checked_at=None if claim.checked_at_s is None else moment(claim.checked_at_s),
        token_refusal=None if claim.token is None else _refusal(claim.url, allowed),
    )


def _refusal(url: str, allowed: Sequence[Network]) -> str | None:
    """Return why the registry does not contact a target's host; the addresses of names are checked later."""
    refused = vet_url(url, allowed)
    if not isinstance(refused, AddressRefused):
        return None
    return f"the registry does not look for it: {refused.reason} (webhook_networks allows private networks)"
