"""Findings of one check about the health document and its transport."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from yarl import URL

from lifesign.client.candidate_urls import ANOTHERS_DOCUMENT, Announced
from lifesign.client.health_answers import CardAnswer, CheckRequest, HealthAnswer, may_get_token
from lifesign.domain.common.finding import Finding
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.text.durations import duration_text
from lifesign.http_client.redirects import is_same_origin, parsed

MAX_CLOCK_DIFFERENCE_SECONDS: Final = 300
"""A peer's `Date` that differs more from our clock is worth a finding."""
NOT_HTTPS = Finding(
    "not_https", "", "read over plain HTTP, which any host on the way can change", "draft 4.1"
)


def check_findings(
    visit: CheckRequest, announced: Announced, card: CardAnswer, health: HealthAnswer
) -> tuple[Finding, ...]:
    """Return all findings of a check: those about the health document, then those about HTTP and TLS."""
    found = list(health.findings)
    is_answer = health.answer.status is not None and health.answer.result is not ResultClass.NOT_AN_AGENT
    if is_answer and health.answer.url.scheme != "https":
        found.append(NOT_HTTPS)
    found.extend(_access_findings(visit, health))
    if health.is_at_root:
        found.append(Finding("found_at_origin_root", "", ANOTHERS_DOCUMENT))
    if announced.elsewhere is not None:
        message = f"the card announces {announced.elsewhere!a}, which is not followed"
        found.append(Finding("health_on_other_origin", "", message, "draft 4.1"))
    if announced.passed_over is not None:
        message = (
            f"the card announces {announced.passed_over!a}; its Link header names another URL, which is used"
        )
        found.append(Finding("announcements_differ", "", message, "RFC 8631"))
    if card.card is not None and not is_same_origin(card.answer.url, visit.given.url):
        found.append(Finding("card_on_other_origin", "", f"the card was read at {_origin(card.answer.url)}"))
    if (named := _named_elsewhere(visit, card, health)) is not None:
        message = f"it names the host {named}, but the document was read at {_origin(health.answer.url)}"
        found.append(Finding("agent_id_elsewhere", "/agent_id", message, "draft 4.2"))
    served_at = health.answer.served_at
    if served_at is not None:
        difference_s = abs((served_at - datetime.now(UTC)).total_seconds())
        if difference_s > MAX_CLOCK_DIFFERENCE_SECONDS:
            message = f"by the answer's Date, its clock and ours differ by {duration_text(difference_s)}"
            found.append(Finding("clocks_differ", "", message))
    return tuple(found)


def _named_elsewhere(visit: CheckRequest, card: CardAnswer, health: HealthAnswer) -> str | None:
    """Return the host in the document's agent id, if nothing was read from that host.

    Scheme and port do not count, nor a name that is no URL.
    """
    if health.document is None:
        return None
    try:
        named = parsed(health.document.agent_id)
    except ValueError:
        return None
    read_at = {visit.given.url.raw_host, health.answer.url.raw_host}
    if card.card is not None:
        read_at.add(card.answer.url.raw_host)
    is_url = named.scheme in {"http", "https"} and named.raw_host is not None
    return named.raw_host if is_url and named.raw_host not in read_at else None


def _access_findings(visit: CheckRequest, health: HealthAnswer) -> Iterator[Finding]:
    """Return whether the token was accepted, and whether the document is readable without one."""
    has_sent_token = visit.token is not None and may_get_token(visit, health.place)
    if health.answer.result is ResultClass.GATED and has_sent_token:
        message = "the server refused the token; without it, the basic state may be readable"
        yield Finding("token_refused", "", message)
    elif health.answer.result is ResultClass.GATED:
        message = "the basic state must be readable without credentials"
        yield Finding("health_is_gated", "", message, "draft 4.1")
    if visit.token is not None and not has_sent_token:
        message = "the token is sent only at or below the path of the given URL; the document is elsewhere"
        yield Finding("token_not_sent", "", message)


def _origin(url: URL) -> str:
    return f"{url.scheme}://{url.raw_authority}"
