"""Links between registered agents and crawled targets."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.targets.link_proof import (
    CHECK_SECONDS,
    PROOF_GRACE_SECONDS,
    RELINK_SECONDS,
    LinkClaim,
    LinkDecision,
    Proof,
    UnlinkReason,
    can_card_prove,
    claimed_urls,
    decide,
    is_claim,
    is_same_registry,
    next_check_s,
    proof_of,
)

NOW_S = 1_000_000_000.0
CARD = "https://agent.example/.well-known/agent-card.json"
ORIGIN = "https://agent.example/"


def claim(agent: int = 1, **members: Any) -> LinkClaim:
    return LinkClaim(agent=agent, **{"is_registered": True, "is_claimed": True, **members})


@pytest.mark.parametrize(
    ("url", "is_it"),
    [
        (CARD, True),
        ("HTTPS://AGENT.example:443/.well-known/agent-card.json", True),
        ("https://agent.example./.well-known/agent-card.json", True),
        (f"{CARD}/", False),
        (f"{CARD}?v=1", False),
        ("http://agent.example/.well-known/agent-card.json", False),
        ("https://agent.example:8443/.well-known/agent-card.json", False),
        ("https://www.agent.example/.well-known/agent-card.json", False),
    ],
)
def test_urls_are_normalised_and_then_compared_exactly(url: str, *, is_it: bool) -> None:
    assert is_claim(claimed_urls(url, None), CARD, None) is is_it
    assert is_claim(claimed_urls(None, url), ORIGIN, CARD) is is_it


@pytest.mark.parametrize(
    ("target_url", "is_it"),
    [
        (ORIGIN, True),
        ("https://agent.example/a/b", True),
        ("https://agent.example:8443/", False),
        ("http://agent.example/", False),
        ("https://evil.example/", False),
    ],
)
def test_a_card_that_was_found_on_another_origin_is_no_claim(target_url: str, *, is_it: bool) -> None:
    assert is_claim(claimed_urls(CARD, None), target_url, CARD) is is_it


@pytest.mark.parametrize(
    ("card_url", "can_it"),
    [
        (CARD, True),
        ("https://agent.example:8443/card.json", True),
        ("https://elsewhere.example/card.json", False),
        ("https://{tenant}.example/", True),
        (None, True),
    ],
)
def test_a_card_proves_a_claim_on_the_host_of_the_agents_own_card(
    card_url: str | None, *, can_it: bool
) -> None:
    assert can_card_prove(card_url, ORIGIN) is can_it


def test_an_international_host_is_one_host_in_both_spellings() -> None:
    assert is_claim(claimed_urls("https://bücher.example/", None), "https://xn--bcher-kva.example/", None)
    assert not is_claim(claimed_urls("https://bucher.example/", None), "https://xn--bcher-kva.example/", None)


def test_an_agent_without_urls_or_with_urls_that_are_no_targets_claims_nothing() -> None:
    for urls in (claimed_urls(None, None), claimed_urls("https://{tenant}.example/", "ftp://agent.example/")):
        assert not urls
        assert not is_claim(urls, CARD, CARD)


def test_a_card_proves_a_claim_in_the_registry_that_it_names() -> None:
    assert is_same_registry("https://Registry.example", "https://registry.example/")
    assert not is_same_registry("https://registry.example", "https://other.example")
    assert not is_same_registry("http://registry.example", "https://registry.example")
    assert not is_same_registry("https://registry.example", None)
    assert not is_same_registry(None, "https://registry.example")


@pytest.mark.parametrize("member", ["card_at_s", "token_at_s"])
def test_a_proof_counts_until_the_end_of_its_grace(member: str) -> None:
    for age_s, counts in ((0.0, True), (PROOF_GRACE_SECONDS - 1, True), (PROOF_GRACE_SECONDS, False)):
        assert (proof_of(claim(1, **{member: NOW_S - age_s}), NOW_S) is not None) is counts


def test_card_is_preferred_to_the_token_as_proof() -> None:
    assert proof_of(claim(card_at_s=NOW_S, token_at_s=NOW_S), NOW_S) is Proof.CARD
    assert proof_of(claim(token_at_s=NOW_S), NOW_S) is Proof.TOKEN


@pytest.mark.parametrize("missing", ["is_registered", "is_claimed"])
def test_a_proof_without_a_claim_of_a_registered_agent_proves_nothing(missing: str) -> None:
    stated = claim(card_at_s=NOW_S, token_at_s=NOW_S, **{missing: False})
    assert proof_of(stated, NOW_S) is None
    assert decide([stated], None, is_gone=False, now_s=NOW_S) == LinkDecision()


def test_a_proven_claim_links_and_an_unproven_one_does_not() -> None:
    assert decide([claim(1, card_at_s=NOW_S), claim(2)], None, is_gone=False, now_s=NOW_S).agent == 1
    assert decide([claim(1), claim(2)], None, is_gone=False, now_s=NOW_S) == LinkDecision()


def test_two_proven_claims_on_one_target_link_no_agent() -> None:
    claims = [claim(1, card_at_s=NOW_S), claim(2, token_at_s=NOW_S)]
    both = frozenset({1, 2})
    assert decide(claims, None, is_gone=False, now_s=NOW_S) == LinkDecision(conflicting=both)
    ended = decide(claims, 1, is_gone=False, now_s=NOW_S)
    assert ended == LinkDecision(reason=UnlinkReason.TWO_CLAIMS, conflicting=both)
    # The agent of the link until now has no proof any more.
    ended = decide([*claims, claim(3)], 3, is_gone=False, now_s=NOW_S)
    assert ended == LinkDecision(reason=UnlinkReason.PROOF_FAILED, conflicting=both)


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        (claim(1), UnlinkReason.PROOF_FAILED),
        (claim(1, card_at_s=NOW_S - PROOF_GRACE_SECONDS), UnlinkReason.PROOF_EXPIRED),
        (claim(1, card_at_s=NOW_S, is_claimed=False), UnlinkReason.CLAIM_ENDED),
        (claim(1, card_at_s=NOW_S, is_registered=False), UnlinkReason.AGENT_DEREGISTERED),
        (None, UnlinkReason.AGENT_DEREGISTERED),
    ],
)
def test_the_end_of_a_link_has_a_reason(stated: LinkClaim | None, reason: UnlinkReason) -> None:
    claims = [] if stated is None else [stated]
    assert decide(claims, 1, is_gone=False, now_s=NOW_S) == LinkDecision(reason=reason)
    assert decide(claims, None, is_gone=False, now_s=NOW_S) == LinkDecision()


def test_removed_target_is_linked_to_no_agent() -> None:
    proven = [claim(1, card_at_s=NOW_S)]
    assert decide(proven, 1, is_gone=True, now_s=NOW_S) == LinkDecision(reason=UnlinkReason.TARGET_GONE)
    assert decide(proven, None, is_gone=True, now_s=NOW_S) == LinkDecision()


def test_a_link_that_ended_begins_again_an_hour_later_at_the_earliest() -> None:
    ended = claim(1, card_at_s=NOW_S, unlinked_at_s=NOW_S)
    assert decide([ended], None, is_gone=False, now_s=NOW_S + RELINK_SECONDS - 1).agent is None
    assert next_check_s([ended], NOW_S) == NOW_S + RELINK_SECONDS
    assert decide([ended], None, is_gone=False, now_s=NOW_S + RELINK_SECONDS).agent == 1


def test_new_proven_claim_replaces_a_link_at_once() -> None:
    claims = [claim(1), claim(2, token_at_s=NOW_S)]
    decided = decide(claims, 1, is_gone=False, now_s=NOW_S)
    assert decided == LinkDecision(agent=2, reason=UnlinkReason.PROOF_FAILED)


_MOMENTS = st.none() | st.floats(-2 * PROOF_GRACE_SECONDS, 0).map(lambda age_s: NOW_S + age_s)
_CLAIMS = st.lists(
    st.builds(
        LinkClaim,
        agent=st.integers(1, 3),
        is_registered=st.booleans(),
        is_claimed=st.booleans(),
        card_at_s=_MOMENTS,
        token_at_s=_MOMENTS,
        unlinked_at_s=_MOMENTS,
    ),
    max_size=3,
    unique_by=lambda claim: claim.agent,
)


@settings(max_examples=examples(200))
@given(claims=_CLAIMS, linked=st.none() | st.integers(1, 3), is_gone=st.booleans())
def test_only_a_single_proven_claim_is_ever_linked(
    claims: list[LinkClaim], linked: int | None, *, is_gone: bool
) -> None:
    decided = decide(claims, linked, is_gone=is_gone, now_s=NOW_S)
    proven = [each.agent for each in claims if proof_of(each, NOW_S) is not None]
    if decided.agent is not None:
        assert proven == [decided.agent]
        assert not is_gone
    assert (decided.reason is not None) == (linked is not None and decided.agent != linked)
    assert NOW_S < next_check_s(claims, NOW_S) <= NOW_S + CHECK_SECONDS
