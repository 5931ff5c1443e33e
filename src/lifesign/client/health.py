"""Is there an agent, how is it, and should I call it? (draft 5.1 and appendix A)"""

import asyncio
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from lifesign.client.candidate_urls import (
    ANOTHERS_CARD,
    NO_ANNOUNCEMENT,
    CandidateUrl,
    announced_health,
    health_places,
    is_anothers,
    is_named_by,
    parse_entered_url,
    place_under,
    server_health_url,
)
from lifesign.client.health_answers import (
    CardAnswer,
    CheckRequest,
    HealthAnswer,
    ServerAnswer,
    assess_card,
    assess_document,
    may_get_token,
    with_document_at_root,
)
from lifesign.client.health_findings import NOT_HTTPS, check_findings
from lifesign.client.server_detection import DetectedServer, detect_server
from lifesign.domain.a2a.agent_card import MAX_CARD_BYTES, AgentCard
from lifesign.domain.a2a.announcement import DEFAULT_HEALTH_PATH
from lifesign.domain.common.finding import Finding
from lifesign.domain.credentials.secret import MIN_SECRET_CHARS, Scrubber
from lifesign.domain.health.document import HealthDocument
from lifesign.domain.health.document_reader import MAX_DOCUMENT_BYTES
from lifesign.domain.net.allowed_addresses import MAX_URL_CHARACTERS, is_in
from lifesign.domain.net.public_url import is_address
from lifesign.domain.observation.decision import Decision, age_seconds, decide, is_stale
from lifesign.domain.observation.login import Login, login_of
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.served_body import is_absent
from lifesign.domain.observation.server_answer import may_be_server
from lifesign.domain.targets.target import TargetKind, is_in_the_clear
from lifesign.errors import InvalidValue
from lifesign.http_client.answer import Answer, head_without_secrets
from lifesign.http_client.bounded_get import Ask, Get, bounded_get
from lifesign.http_client.guarded_sessions import GuardedSessions

if TYPE_CHECKING:
    from lifesign.domain.net.allowed_addresses import Network

TIMEOUT_SECONDS = 10.0
MAX_TIMEOUT_SECONDS = 300.0
MAX_TOKEN_CHARS = 4096

_TOKEN = re.compile(r"[!-~]+")
_NO_CARD = "an MCP server has no card"
# The server is unreachable: a second request is useless.
_UNREACHABLE = frozenset({ResultClass.REFUSED, ResultClass.DNS_FAILURE, ResultClass.TLS_FAILURE})


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """Result of a check of one agent: its card, its health document, the findings and the decision."""

    url: str
    """The URL as the caller gave it."""
    card_url: str
    """URL of the card; without one, the last requested URL."""
    is_server: bool
    """Whether the URL is that of an MCP server, which has no card."""
    server: DetectedServer | None
    """Answer to the requests of MCP; None if the URL got none."""
    card: AgentCard | None
    """The card, with its own findings; None unless `card_result` is `ok`."""
    card_result: ResultClass
    card_reason: str
    """Reason why there is no card, for people; empty if there is one."""
    health_url: str | None
    """URL of the health document, or the last requested one; None if no server could be reached."""
    document: HealthDocument | None
    """The health document, also a stale one."""
    document_result: ResultClass
    document_reason: str
    """Reason why there is no usable document, for people; empty if there is one."""
    findings: tuple[Finding, ...]
    """Findings about the document and its transport; for an invalid document, its faults come first."""
    age_seconds: float | None
    """Age of the document by the server's clock; negative if it comes from the future."""
    refresh_in_seconds: int | None
    """The document's `max-age`: when it may be computed again. None without one."""
    latency_ms: float | None
    """Latency of the request for the document, including redirects; None without one."""
    decision: Decision
    login: Login | None = None
    """Login that the server asks for before it sends card or document; None if it refused neither."""


async def fetch_health(
    url: str,
    *,
    session: aiohttp.ClientSession | None = None,
    get: Get | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    detail_token: str | None = None,
    allowed_networks: Sequence[str] = (),
    kind: str | None = None,
    identify: bool = False,
) -> HealthCheck:
    """Read an agent's card and its health document, and decide whether to call it.

    `url` is the agent's base URL, its card's, or its health document's. The health document is requested at
    the place in the card, then at `/.well-known/agent-health` below the same prefix; never on another origin
    than the card's. The card at the origin's root counts for a path only if it names an address at or below
    it, and so does the document there: else that is a finding, and the agent is unknown. There is always a
    result: InvalidValue is only raised for the caller's arguments.

    `kind` is `a2a` or `mcp` (the URL of an MCP server's endpoint, which has no card); without it, the card
    and the document show the kind. `identify` asks a URL that has neither whether it is an MCP server, by at
    most six requests. They are POSTs, so that a person must have chosen the URL. A URL with a document of a
    server beside it gets them anyway, unless the document names the URL or `kind` is `a2a`.

    `timeout_seconds` (above 0, at most 300) is for all requests together. `detail_token` is sent as Bearer to
    the health document at or below the path of `url` (of an MCP server: of the path's parent), and nowhere
    else. If the answer contains it, the result has `REMOVED-SECRET` in its place. With a token, `url` needs
    https, unless its host is this machine, or an address in `allowed_networks`. A session of the caller keeps
    its cookies, proxies and default headers, and only sends the requests to the origin of `url`; the default
    session has none. With a session of the caller, only aiohttp's limits apply to the header of an answer.

    The host of `url` may be anywhere, since the caller chose it. The agent chooses other hosts: they are only
    requested at public addresses, and in `allowed_networks` (such as `10.1.0.0/16`; never a cloud's metadata
    address). If strangers choose `url` as well, pass a `get` that checks every address; it replaces the
    session, and `allowed_networks` is then its own concern.
    """
    given = parse_entered_url(url)
    _check_settings(timeout_seconds, detail_token)
    if kind is not None and kind not in set(TargetKind):
        raise InvalidValue("kind", kind, "a2a or mcp")
    networks = _networks(allowed_networks)
    if detail_token is not None and _is_readable_on_the_way(given.url, networks):
        expected = "https, because the token must not be sent unencrypted"
        raise InvalidValue("url", url[:MAX_URL_CHARACTERS], expected)
    started_s = asyncio.get_running_loop().time()
    visit = CheckRequest(url, given, started_s, timeout_seconds, detail_token, kind, identify)
    if get is not None:
        return await _check(get, visit)
    async with GuardedSessions(networks, trusted=given.url, session=session) as sessions:
        return await _check(partial(bounded_get, sessions), visit)


def _is_readable_on_the_way(url: URL, networks: Sequence["Network"]) -> bool:
    """Return whether a token in a request to this URL would cross a network other than these unencrypted."""
    host = url.host or ""
    return is_in_the_clear(str(url)) and not (is_address(host) and is_in(ip_address(host), networks))


def _without_secrets(get: Get, scrubber: Scrubber) -> Get:
    """Return a `get` without the token in answers to requests with the token, and in their redirects.

    The other answers for card and document are public, and are not searched.
    """

    async def scrubbed(url: URL, ask: Ask) -> Answer:
        if ask.token is None:
            return await get(url, ask)
        return _cleaned(await get(url, replace(ask, scrubber=scrubber)), scrubber)

    return scrubbed


def _cleaned(answer: Answer, scrubber: Scrubber) -> Answer:
    shown = answer.url if scrubber.clean_text(str(answer.url)) == str(answer.url) else answer.url.origin()
    body = scrubber.clean_shown(answer.body)
    return replace(answer, url=shown, body=body, **head_without_secrets(answer, scrubber))


async def _detect_server(get: Get, visit: CheckRequest) -> DetectedServer:
    """Ask the given URL whether it is an MCP server. It may repeat the token that it got for a document."""
    server, scrubber = await detect_server(get, visit.given.url, visit.deadline_s), visit.scrubber
    version = server.version and scrubber.clean_cut(server.version)
    name = scrubber.clean_cut(server.name)
    return replace(server, answer=_cleaned(server.answer, scrubber), version=version, name=name)


async def fetch_document(
    url: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[Answer, tuple[Finding, ...]]:
    """Fetch a health document without assessing it. A URL without a path means the health path.

    For programs that report why it is no health document. InvalidValue as in `fetch_health`.
    """
    given = parse_entered_url(url)
    _check_settings(timeout_seconds, None)
    has_path = given.url.raw_path != "/"
    place = given.url if has_path else place_under(given.url, "", DEFAULT_HEALTH_PATH)
    deadline_s = asyncio.get_running_loop().time() + timeout_seconds
    async with GuardedSessions(trusted=given.url) as sessions:
        # Redirects stay on the named host, so no other host has to be vetted.
        ask = Ask(max_bytes=MAX_DOCUMENT_BYTES, deadline_s=deadline_s)
        answer = await bounded_get(sessions, place, ask)
    findings = [] if answer.url.scheme == "https" else [NOT_HTTPS]
    if not answer.is_json:
        message = f"expected application/json; got {answer.content_type or 'none'}"
        findings.append(Finding("wrong_content_type", "", message, "draft 4.1"))
    return answer, tuple(findings)


def check_timeout(timeout_seconds: float) -> None:
    """Raise InvalidValue unless the time limit is above 0 and at most 300 seconds."""
    if not (math.isfinite(timeout_seconds) and 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS):
        expected = f"seconds above 0, at most {MAX_TIMEOUT_SECONDS:g}"
        raise InvalidValue("timeout_seconds", timeout_seconds, expected)


def _check_settings(timeout_seconds: float, detail_token: str | None) -> None:
    check_timeout(timeout_seconds)
    if detail_token is not None and not (
        MIN_SECRET_CHARS <= len(detail_token) <= MAX_TOKEN_CHARS and _TOKEN.fullmatch(detail_token)
    ):
        # A shorter one could not be removed from the answers.
        expected = (
            f"{MIN_SECRET_CHARS} to {MAX_TOKEN_CHARS} visible ASCII characters (the given token is not shown)"
        )
        raise InvalidValue("detail_token", None, expected)


def _networks(allowed: Sequence[str]) -> "Sequence[Network]":
    if not allowed:
        return ()
    from lifesign.domain.net.allowed_addresses import read_networks  # noqa: PLC0415 - few name any

    return read_networks(allowed, "allowed_networks")


async def _check(get: Get, visit: CheckRequest) -> HealthCheck:
    if scrubber := visit.scrubber:
        get = _without_secrets(get, scrubber)
    if visit.kind == TargetKind.MCP:
        return await _check_server(get, visit)
    card = await _find_card(get, visit)
    if card.answer.result in _UNREACHABLE:
        return _conclude(visit, card, None, ())
    if card.card is None:
        announced, card_url = NO_ANNOUNCEMENT, None
    else:
        card_url = card.answer.url
        announced = announced_health(card.card, card_url, card.answer.status_links)
    given = visit.given
    if card.card is not None and is_named_by(card.card, given):
        # The card is this agent's own, whatever its URL: no URL is a guess any more.
        given = replace(given, prefix="")
    places = health_places(given, card_url, announced)
    health = await _find_health(get, visit, places)
    if health.document is None and card.card is None and visit.kind is None:
        server = await _find_server(get, visit, card, health)
        return _conclude(
            visit, card, server.health, check_findings(visit, announced, card, server.health), server=server
        )
    return _conclude(visit, card, health, check_findings(visit, announced, card, health))


async def _check_server(get: Get, visit: CheckRequest) -> HealthCheck:
    """Check a URL that the caller says is the endpoint of an MCP server."""
    url = visit.given.url
    card = CardAnswer(Answer(url=url, result=ResultClass.NOT_MEASURED, reason=_NO_CARD), None)
    health = await _ask_server_health(get, visit)
    if health.answer.result in _UNREACHABLE:
        return _conclude(visit, card, None, (), server=ServerAnswer(health, is_server=True))
    answer = None
    if health.document is None:
        answer = await _detect_server(get, visit)
    server = ServerAnswer(health, is_server=True, answer=answer)
    return _conclude(visit, card, health, check_findings(visit, NO_ANNOUNCEMENT, card, health), server=server)


async def _find_card(get: Get, visit: CheckRequest) -> CardAnswer:
    """Ask for the card in its places until one has an answer; the first place's answer if none has."""
    first = None
    ask = Ask(max_bytes=MAX_CARD_BYTES, deadline_s=visit.card_deadline_s, may_leave_origin=True)
    for url in visit.given.card_urls:
        found = assess_card(await get(url, ask))
        if found.card is not None and is_anothers(found.card, url, visit.given):
            answer = replace(found.answer, result=ResultClass.NOT_AN_AGENT, reason=ANOTHERS_CARD)
            return CardAnswer(answer, None)
        if found.card is None and url == visit.given.guessed_card_url:
            continue
        first = first or found
        if not is_absent(found.answer.result, found.answer.status):
            return found
    assert first is not None  # noqa: S101 - there is always a place
    return first


async def _find_health(get: Get, visit: CheckRequest, places: Iterable[CandidateUrl]) -> HealthAnswer:
    """Ask for the document in its places until one has an answer; the first place's answer if none has."""
    first = None
    for place in places:
        ask = Ask(
            max_bytes=MAX_DOCUMENT_BYTES,
            deadline_s=visit.deadline_s,
            token=visit.token if may_get_token(visit, place) else None,
            token_scope=visit.token_scope,
        )
        found = assess_document(place, await get(place.url, ask))
        first = first or found
        if place.is_root:
            if found.document is not None:
                return with_document_at_root(first)
        elif found.document is not None or not (
            place.is_guess or is_absent(found.answer.result, found.answer.status)
        ):
            return found
    assert first is not None  # noqa: S101 - there is always a place
    return first


async def _find_server(get: Get, visit: CheckRequest, card: CardAnswer, health: HealthAnswer) -> ServerAnswer:
    """Ask a URL without a card and a document of its own whether it is an MCP server.

    A document at the usual URL of servers may be that of another agent there. It counts if it names the given
    URL, or if that URL is the endpoint of an MCP server.
    """
    given, none = visit.given, ServerAnswer(health, is_server=False)
    if given.is_card or given.is_health:
        return none
    # Without a path, that document was requested already.
    own = await _ask_server_health(get, visit) if given.prefix else health
    if own.document is not None and own.document.agent_id == str(given.url):
        return ServerAnswer(own, is_server=True)
    is_asked = visit.identify and may_be_server(card.answer.result, card.answer.status)
    if own.document is None and not is_asked:
        return none
    answer = await _detect_server(get, visit)
    if not answer.is_server:
        return replace(none, answer=answer)
    return ServerAnswer(own, is_server=True, answer=answer)


async def _ask_server_health(get: Get, visit: CheckRequest) -> HealthAnswer:
    """Ask for the document below the parent of an endpoint's path."""
    # Unless the caller says that this is a server, the document may be that of another agent.
    is_known = visit.kind == TargetKind.MCP
    place = CandidateUrl(server_health_url(visit.given.url), is_root=not is_known)
    token = visit.token if may_get_token(visit, place) else None
    ask = Ask(
        max_bytes=MAX_DOCUMENT_BYTES,
        deadline_s=visit.deadline_s,
        token=token,
        token_scope=visit.token_scope,
    )
    return assess_document(place, await get(place.url, ask))


def _login(card: CardAnswer, health: HealthAnswer | None, server: DetectedServer | None) -> Login | None:
    """Return the login that refused requests ask for; None if no request was refused."""
    answers = [card.answer] if health is None else [card.answer, health.answer]
    answers += [] if server is None else [server.answer]
    refused = [answer for answer in answers if answer.result is ResultClass.GATED]
    if not refused:
        return None
    fields = [field for answer in refused for field in answer.challenges]
    return login_of(fields, () if card.card is None else card.card.security_schemes)


def _conclude(
    visit: CheckRequest,
    card: CardAnswer,
    health: HealthAnswer | None,
    findings: tuple[Finding, ...],
    server: ServerAnswer | None = None,
) -> HealthCheck:
    """Combine the results, and decide; `health` is None if no server could be reached."""
    last = card.answer if server is None else server.health.answer
    answer = last if health is None else health.answer
    document = None if health is None else health.document
    result, now = answer.result, answer.served_at or datetime.now(UTC)
    age = None if document is None else age_seconds(document, now)
    if age is not None and is_stale(age, answer.max_age_seconds):
        result = ResultClass.STALE_DOCUMENT
    decision = decide(
        result,
        document,
        now=now,
        max_age_seconds=answer.max_age_seconds,
        failure=_document_failure(answer),
        retry_after_seconds=answer.retry_after_seconds,
    )
    document_reason = "" if result is ResultClass.OK else decision.reasons[0]
    is_server = server is not None and server.is_server
    asked = None if server is None else server.answer
    if is_server and asked is not None and result is not ResultClass.OK:
        decision = replace(decision, reasons=(_server_reason(asked), *decision.reasons))
    return HealthCheck(
        url=visit.url,
        card_url=str(card.answer.url),
        is_server=is_server,
        server=asked,
        card=card.card,
        card_result=card.answer.result,
        card_reason=card.answer.reason,
        health_url=None if health is None else str(answer.url),
        document=document,
        document_result=result,
        document_reason=document_reason,
        findings=findings,
        age_seconds=age,
        refresh_in_seconds=None if document is None else answer.max_age_seconds,
        latency_ms=None if health is None else answer.latency_ms,
        decision=decision,
        login=_login(card, health, asked),
    )


def _document_failure(answer: Answer) -> str:
    """Return why there is no health document, as a statement about the document; empty without a reason."""
    if answer.reason and answer.result is ResultClass.NOT_AN_AGENT:
        return f"no health document: {answer.reason}"
    if answer.reason and answer.result is ResultClass.GATED:
        return f"the health document could not be read: {answer.reason}"
    return answer.reason


def _server_reason(asked: DetectedServer) -> str:
    """Return what an MCP server without a usable document answered to the requests of MCP."""
    if asked.is_gated:
        return "an MCP server answers, and its endpoint requires credentials"
    if asked.is_server:
        return "an MCP server answers"
    if asked.answer.result is ResultClass.GATED:
        return f"the endpoint requires credentials or payment (HTTP {asked.answer.status})"
    return f"no MCP server answers: {asked.answer.reason}"
