"""Layer discovery: the agent card and the URLs in it.

A known card is requested conditionally. If it is unchanged, by its ETag or byte for byte, it is not parsed
again: its facts are remembered with the target.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from yarl import URL

from lifesign.client.candidate_urls import (
    ANOTHERS_CARD,
    CandidateUrl,
    announced_health,
    health_places,
    is_anothers,
    is_named_by,
)
from lifesign.domain.a2a.agent_card import AgentCard
from lifesign.domain.a2a.interfaces import MAX_URL_CHARS, AgentInterface, askable
from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.credentials.secret import Scrubber
from lifesign.domain.observation.results import MAX_ETAG_CHARS, LayerResult, ResultClass
from lifesign.domain.observation.served_body import classify_card, is_absent
from lifesign.domain.text.safe_text import harmless
from lifesign.http_client.redirects import parsed, resolve_url
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.interface_reading import note_card, note_same_interface
from lifesign.prober.probe.session import ProbeSession

MAX_WORD_CHARS: Final = 64
"""Maximum length of an unknown binding or version in a card."""
MAX_TENANT_CHARS: Final = 128

_OF_A_CARD: Final = (
    "card_url", "card_redirect", "card_etag", "card_digest", "interface_url", "health_url", "link_registry",
    "link_agent_id", "interface_address", "interface_digest", "card_schemes",
)  # fmt: skip
"""Facts that are forgotten if the card turns out to be another agent's."""
# RFC 9110 8.8.3, only ASCII characters: the value is sent back unchanged.
_ETAG: Final = re.compile(r'(?:W/)?"[!#-~]*"')


async def discover(visit: ProbeSession) -> LayerResult | None:
    """Probe the layer discovery: request the agent card at its possible URLs; None if nothing was sent.

    If no URL has a card, the answer of the first one counts, unless the origin's root has another agent's
    card. If the first URL does not answer, further URLs are not tried.
    """
    first = None
    for url in _places(visit):
        # A card at the root is parsed each time: only its content shows whether it is this agent's.
        is_known = str(url) == visit.recall("card_url") and not visit.given.is_at_root(url)
        # Assertions need the card itself, not the answer that it has not changed.
        is_enough = is_known and all(check.of != "card" for check in visit.checks)
        etag = visit.recall("card_etag") if is_enough else None
        is_guess = not is_known and url == visit.given.guessed_card_url
        fetched = await visit.ask(
            url,
            max_bytes=visit.definition.limits.max_card_bytes,
            etag=etag,
            may_leave_origin=True,
            is_aside=is_guess,
            # A card is no event stream.
            is_enough=_is_anything if is_guess else None,
            purpose=Purpose.CARD,
        )
        if fetched is None:
            break
        layer = _classify(visit, url, fetched, etag)
        if is_guess and layer.result is not ResultClass.OK:
            continue
        first = first or layer
        if visit.has_found_another or not _may_be_elsewhere(layer, fetched):
            return layer
    return first


def _may_be_elsewhere(layer: LayerResult, fetched: Fetched) -> bool:
    """Return whether the next possible URL may have the card.

    Without a token, 404 may hide a card: it counts unless another URL has one. So does a redirect to sign in
    despite a credential.
    """
    is_redirected = fetched.result is ResultClass.REDIRECT_REFUSED and fetched.credential is not None
    is_missing = is_absent(layer.result, layer.status_code) or is_absent(fetched.result, fetched.status)
    return is_redirected or is_missing


def _is_anything(_piece: bytes, _scrubber: Scrubber) -> bool:
    return True


def _places_of_health(visit: ProbeSession, card: AgentCard, fetched: Fetched) -> tuple[CandidateUrl, ...]:
    """Return the possible URLs of the health document by a card, in the order of requests."""
    given, place = visit.given, fetched.url
    if given.prefix and is_named_by(card, given):
        # The card is this agent's own, whatever its URL: no URL is a guess any more.
        given = replace(given, prefix="")
    announced = announced_health(card, place, fetched.status_links)
    if announced.url is not None:
        announced = replace(announced, url=visit.unless_secret(announced.url, fetched))
    return health_places(given, place, announced)


def _places(visit: ProbeSession) -> Iterator[URL]:
    """Yield where the card may be, the place where it was first.

    No probe finds a card elsewhere: another prober invented such a place, perhaps that of another agent.
    """
    known = visit.recall("card_url")
    others = []
    for url in visit.given.each_card_url():
        if known is None or str(url) == known:
            yield url
        else:
            others.append(url)
    yield from others


def _classify(visit: ProbeSession, url: URL, fetched: Fetched, etag: str | None) -> LayerResult:
    if fetched.is_unchanged:
        visit.card_etag, visit.card_place = etag, fetched.url
        visit.learned["card_read_at_s"] = visit.at_s
        note_same_interface(visit)
        evidence = visit.recall("card_digest") if visit.keeps_evidence else None
        return visit.layer(fetched, ResultClass.OK, "", evidence)
    if fetched.result is not ResultClass.OK:
        return visit.layer(fetched)
    digest = sha256(fetched.body).hexdigest()
    place = str(url)
    may_be_anothers = visit.given.is_at_root(url)
    if not may_be_anothers and _is_as_it_was(visit, place, fetched, digest):
        visit.card_place = fetched.url
        _remember_reading(visit, place, fetched, digest)
        note_same_interface(visit)
        return visit.layer(fetched, evidence=visit.keep(fetched.body))
    served = classify_card(fetched.body, is_json=fetched.is_json)
    if served.card is None:
        evidence = visit.keep(fetched.body) if fetched.is_json else None
        return visit.layer(fetched, served.result, served.reason, evidence)
    if is_anothers(served.card, url, visit.given):
        visit.has_found_another = True
        visit.learned |= dict.fromkeys(_OF_A_CARD)
        return visit.layer(fetched, ResultClass.NOT_AN_AGENT, ANOTHERS_CARD)
    visit.card_place = fetched.url
    visit.health_places = _places_of_health(visit, served.card, fetched)
    _remember_reading(visit, place, fetched, digest)
    interface = _interface_memory(visit, served.card, fetched)
    if interface["interface_url"] != visit.recall("interface_url"):
        interface["interface_address"] = None
    visit.learned |= interface
    visit.learned |= _claimed_agent(served.card)
    visit.learned["card_schemes"] = served.card.security_schemes or None
    visit.learned["health_url"] = _first_health_url(visit)
    if not fetched.is_altered:
        # A token may be a word of the card: the next one would change the interface.
        note_card(visit, fetched, digest, served.card.interfaces)
    return visit.layer(fetched, reason=_oddities(served.card), evidence=visit.keep(fetched.body))


def _oddities(card: AgentCard) -> str:
    """Return the rules that a readable card breaks; empty if none."""
    if not card.findings:
        return ""
    more = f", and {len(card.findings) - 1} more" if len(card.findings) > 1 else ""
    return f"read leniently: {card.findings[0]}{more}"


def _is_as_it_was(visit: ProbeSession, place: str, fetched: Fetched, digest: str) -> bool:
    """Return whether this is the remembered card, so that its remembered facts are valid too.

    A `Link` header is not part of the card; if there is one, it must have the known URL of the document.
    """
    if digest != visit.recall("card_digest") or place != visit.recall("card_url"):
        return False
    health_url = visit.recall("health_url")
    return all(str(resolve_url(fetched.url, link)) == health_url for link in fetched.status_links)


def _remember_reading(visit: ProbeSession, place: str, fetched: Fetched, digest: str) -> None:
    etag, led_to = fetched.etag or "", str(fetched.url)
    visit.card_etag = etag if len(etag) <= MAX_ETAG_CHARS and _ETAG.fullmatch(etag) else None
    visit.learned |= {
        "card_read_at_s": visit.at_s,
        # The requested URL is remembered, not its destination: the redirect may change.
        "card_url": place,
        "card_redirect": None if led_to == place or len(led_to) > MAX_URL_CHARS else led_to,
        "card_etag": visit.card_etag,
        "card_digest": digest,
    }


def _interface_memory(visit: ProbeSession, card: AgentCard, fetched: Fetched) -> dict[str, Any]:
    """Return the remembered facts about the interface to request."""
    interface = askable(card.interfaces)
    url = None if interface is None else _plain(visit, interface, fetched)
    if interface is None or url is None:
        return {
            "interface_url": None,
            "interface_binding": None,
            "interface_tenant": None,
            "protocol_version": card.generation,
        }
    tenant, version = interface.tenant, interface.protocol_version or card.generation or ""
    return {
        "interface_url": url,
        "interface_binding": None if interface.binding is None else interface.binding[:MAX_WORD_CHARS],
        # A tenant that was cut is another tenant.
        "interface_tenant": tenant if tenant and len(tenant) <= MAX_TENANT_CHARS else None,
        # The registry shows this form: characters that it removes must not put a secret together.
        "protocol_version": harmless(version[:MAX_WORD_CHARS]) or None,
    }


def _claimed_agent(card: AgentCard) -> dict[str, Any]:
    """Return the registered agent that the card names as its own; the registry compares it."""
    registration = None if card.health is None else card.health.registration
    if registration is None:
        return {"link_registry": None, "link_agent_id": None}
    return {"link_registry": registration.registry, "link_agent_id": registration.agent_id}


def _plain(visit: ProbeSession, interface: AgentInterface, fetched: Fetched) -> str | None:
    """Return an interface's URL in the form of the request, None if it is too long."""
    try:
        url = str(visit.unless_secret(parsed(interface.url).with_fragment(None), fetched))
    except ValueError:
        return None
    return url if len(url) <= MAX_URL_CHARS else None


def _first_health_url(visit: ProbeSession) -> str | None:
    """Return the first URL of the health document to request, without guesses."""
    urls = (str(place.url) for place in visit.health_places if not place.is_guess)
    return next((url for url in urls if len(url) <= MAX_URL_CHARS), None)
