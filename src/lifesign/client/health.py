"""Is there an agent, how is it, and should I call it? (draft 5.1 and appendix A)"""

import asyncio
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from lifesign.client.candidate_urls import (
    ANOTHERS_CARD,
    ANOTHERS_DOCUMENT,
    NO_ANNOUNCEMENT,
    Announced,
    CandidateUrl,
    ParsedAgentUrl,
    announced_health,
    health_places,
    is_anothers,
    is_named_by,
    parse_entered_url,
    place_under,
    server_health_url,
)
from lifesign.client.server_detection import DetectedServer, detect_server
from lifesign.domain.a2a.agent_card import MAX_CARD_BYTES, AgentCard
from lifesign.domain.a2a.announcement import DEFAULT_HEALTH_PATH
from lifesign.domain.common.finding import Finding
from lifesign.domain.health.document import HealthDocument
from lifesign.domain.health.document_reader import MAX_DOCUMENT_BYTES
from lifesign.domain.observation.decision import Decision, age_seconds, decide, is_stale
from lifesign.domain.observation.login import Login, login_of
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.served_body import classify_card, classify_document, is_absent
from lifesign.domain.observation.server_answer import may_be_server
from lifesign.domain.targets.target import TargetKind
from lifesign.domain.text.durations import duration_text
from lifesign.errors import InvalidValue
from lifesign.http_client.answer import Answer
from lifesign.http_client.bounded_get import Ask, Get, bounded_get
from lifesign.http_client.guarded_sessions import GuardedSessions
from lifesign.http_client.redirects import is_same_origin, parsed

if TYPE_CHECKING:
    from lifesign.domain.net.allowed_addresses import Network

TIMEOUT_SECONDS = 10.0
MAX_TIMEOUT_SECONDS = 300.0
CARD_SHARE = 0.5
"""Share of the time for the card: a slow one must not hide the health document."""
MAX_CLOCK_DIFFERENCE_SECONDS = 300
"""A peer's `Date` that differs more from our clock is worth a finding."""
MAX_TOKEN_CHARS = 4096

_TOKEN = re.compile(r"[!-~]+")
_NOT_HTTPS = Finding(
    "not_https", "", "read over plain HTTP, which any host on the way can change", "draft 4.1"
)
_NO_CARD = "an MCP server has no card"
# The server is unreachable: a second request is useless.
_UNREACHABLE = frozenset({ResultClass.REFUSED, ResultClass.DNS_FAILURE, ResultClass.TLS_FAILURE})


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """Findings about one agent."""

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
    most five requests. They are POSTs, so that a person must have chosen the URL. A URL with a document of a
    server beside it gets them anyway, unless the document names the URL or `kind` is `a2a`.

    `timeout_seconds` (above 0, at most 300) is for all requests together. `detail_token` is sent as Bearer to
    the health document on the origin of `url`, and nowhere else. A session of the caller keeps its cookies,
    proxies and default headers, and only sends the requests to the origin of `url`; the default session has
    none. With a session of the caller, only aiohttp's limits apply to the header of an answer.

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
    started_s = asyncio.get_running_loop().time()
    visit = _HealthCheck(url, given, started_s, timeout_seconds, detail_token, kind, identify)
    if get is not None:
        return await _check(get, visit)
    async with GuardedSessions(networks, trusted=given.url, session=session) as sessions:
        return await _check(partial(bounded_get, sessions), visit)


async def fetch_document(
    url: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[Answer, tuple[Finding, ...]]:
    """Get the content at `url`, without assessment; a URL without a path means its health path.

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
    findings = [] if answer.url.scheme == "https" else [_NOT_HTTPS]
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
    if detail_token is not None and (
        len(detail_token) > MAX_TOKEN_CHARS or not _TOKEN.fullmatch(detail_token)
    ):
        expected = f"1 to {MAX_TOKEN_CHARS} visible ASCII characters"
        raise InvalidValue("detail_token", "something else (not shown)", expected)


def _networks(allowed: Sequence[str]) -> "Sequence[Network]":
    if not allowed:
        return ()
    from lifesign.domain.net.allowed_addresses import read_networks  # noqa: PLC0415 - few name any

    return read_networks(allowed, "allowed_networks")


@dataclass(frozen=True, slots=True)
class _HealthCheck:
    """One check and its deadline."""

    url: str
    given: ParsedAgentUrl
    started_s: float
    timeout_seconds: float
    token: str | None
    kind: str | None
    identify: bool

    @property
    def card_deadline_s(self) -> float:
        return self.started_s + CARD_SHARE * self.timeout_seconds

    @property
    def deadline_s(self) -> float:
        return self.started_s + self.timeout_seconds


@dataclass(frozen=True, slots=True)
class _CardAnswer:
    answer: Answer
    card: AgentCard | None


@dataclass(frozen=True, slots=True)
class _HealthAnswer:
    answer: Answer
    place: CandidateUrl
    document: HealthDocument | None = None
    findings: tuple[Finding, ...] = ()
    is_at_root: bool = False
    """Whether there is a document at the origin's root, where it counts for another agent."""


@dataclass(frozen=True, slots=True)
class _Server:
    """An MCP server: that the URL is one, and its answer if it was asked."""

    health: _HealthAnswer
    is_server: bool
    answer: DetectedServer | None = None


async def _check(get: Get, visit: _HealthCheck) -> HealthCheck:
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
            visit, card, server.health, _findings(visit, announced, card, server.health), server=server
        )
    return _conclude(visit, card, health, _findings(visit, announced, card, health))


async def _check_server(get: Get, visit: _HealthCheck) -> HealthCheck:
    """Check a URL that the caller says is the endpoint of an MCP server."""
    url = visit.given.url
    card = _CardAnswer(Answer(url=url, result=ResultClass.NOT_MEASURED, reason=_NO_CARD), None)
    health = await _ask_server_health(get, visit)
    if health.answer.result in _UNREACHABLE:
        return _conclude(visit, card, None, (), server=_Server(health, is_server=True))
    answer = None
    if health.document is None:
        answer = await detect_server(get, url, visit.deadline_s)
    server = _Server(health, is_server=True, answer=answer)
    return _conclude(visit, card, health, _findings(visit, NO_ANNOUNCEMENT, card, health), server=server)


async def _find_card(get: Get, visit: _HealthCheck) -> _CardAnswer:
    """Ask for the card in its places until one has an answer; the first place's answer if none has."""
    first = None
    ask = Ask(max_bytes=MAX_CARD_BYTES, deadline_s=visit.card_deadline_s, may_leave_origin=True)
    for url in visit.given.card_urls:
        found = _assess_card(await get(url, ask))
        if found.card is not None and is_anothers(found.card, url, visit.given):
            answer = replace(found.answer, result=ResultClass.NOT_AN_AGENT, reason=ANOTHERS_CARD)
            return _CardAnswer(answer, None)
        first = first or found
        if not is_absent(found.answer.result, found.answer.status):
            return found
    assert first is not None  # noqa: S101 - there is always a place
    return first


async def _find_health(get: Get, visit: _HealthCheck, places: Iterable[CandidateUrl]) -> _HealthAnswer:
    """Ask for the document in its places until one has an answer; the first place's answer if none has."""
    first = None
    for place in places:
        ask = Ask(
            max_bytes=MAX_DOCUMENT_BYTES,
            deadline_s=visit.deadline_s,
            token=visit.token if _takes_token(visit, place) else None,
        )
        found = _assess_document(place, await get(place.url, ask))
        first = first or found
        if place.is_root:
            if found.document is not None:
                return _with_document_at_root(first)
        elif found.document is not None or not (
            place.is_guess or is_absent(found.answer.result, found.answer.status)
        ):
            return found
    assert first is not None  # noqa: S101 - there is always a place
    return first


async def _find_server(get: Get, visit: _HealthCheck, card: _CardAnswer, health: _HealthAnswer) -> _Server:
    """Ask a URL without a card and a document of its own whether it is an MCP server.

    A document at the usual URL of servers may be that of another agent there. It counts if it names the given
    URL, or if that URL is the endpoint of an MCP server.
    """
    given, none = visit.given, _Server(health, is_server=False)
    if given.is_card or given.is_health:
        return none
    # Without a path, that document was requested already.
    own = await _ask_server_health(get, visit) if given.prefix else health
    if own.document is not None and own.document.agent_id == str(given.url):
        return _Server(own, is_server=True)
    is_asked = visit.identify and may_be_server(card.answer.result, card.answer.status)
    if own.document is None and not is_asked:
        return none
    answer = await detect_server(get, given.url, visit.deadline_s)
    if not answer.is_server:
        return replace(none, answer=answer)
    return _Server(own, is_server=True, answer=answer)


async def _ask_server_health(get: Get, visit: _HealthCheck) -> _HealthAnswer:
    """Ask for the document below the parent of an endpoint's path."""
    # Unless the caller says that this is a server, the document may be that of another agent.
    is_known = visit.kind == TargetKind.MCP
    place = CandidateUrl(server_health_url(visit.given.url), is_root=not is_known)
    token = visit.token if _takes_token(visit, place) else None
    ask = Ask(max_bytes=MAX_DOCUMENT_BYTES, deadline_s=visit.deadline_s, token=token)
    return _assess_document(place, await get(place.url, ask))


def _with_document_at_root(own: _HealthAnswer) -> _HealthAnswer:
    """Return the answer of the agent's own URL, with the finding that another agent has a document."""
    reason = f"{own.answer.reason}; {ANOTHERS_DOCUMENT}"
    return replace(own, answer=replace(own.answer, reason=reason), is_at_root=True)


def _takes_token(visit: _HealthCheck, place: CandidateUrl) -> bool:
    """Return whether a token for the given URL may be sent there."""
    return is_same_origin(place.url, visit.given.url) and not place.is_root


def _assess_card(answer: Answer) -> _CardAnswer:
    if answer.result is not ResultClass.OK:
        return _CardAnswer(answer, None)
    served = classify_card(answer.body, is_json=answer.is_json)
    return _CardAnswer(replace(answer, result=served.result, reason=served.reason), served.card)


def _assess_document(place: CandidateUrl, answer: Answer) -> _HealthAnswer:
    if answer.result is not ResultClass.OK:
        return _HealthAnswer(answer, place)
    served = classify_document(answer.body, content_type=answer.content_type, is_json=answer.is_json)
    classified = replace(answer, result=served.result, reason=served.reason)
    return _HealthAnswer(classified, place, served.document, served.findings)


def _findings(
    visit: _HealthCheck, announced: Announced, card: _CardAnswer, health: _HealthAnswer
) -> tuple[Finding, ...]:
    """Return the findings about the document, then those about its transport."""
    found = list(health.findings)
    is_answer = health.answer.status is not None and health.answer.result is not ResultClass.NOT_AN_AGENT
    if is_answer and health.answer.url.scheme != "https":
        found.append(_NOT_HTTPS)
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
        message = f"it belongs to {named} by its name, and was read at {_origin(health.answer.url)}"
        found.append(Finding("agent_id_elsewhere", "/agent_id", message, "draft 4.2"))
    served_at = health.answer.served_at
    if served_at is not None:
        difference_s = abs((served_at - datetime.now(UTC)).total_seconds())
        if difference_s > MAX_CLOCK_DIFFERENCE_SECONDS:
            message = f"by the answer's Date, its clock and ours differ by {duration_text(difference_s)}"
            found.append(Finding("clocks_differ", "", message))
    return tuple(found)


def _named_elsewhere(visit: _HealthCheck, card: _CardAnswer, health: _HealthAnswer) -> str | None:
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


def _access_findings(visit: _HealthCheck, health: _HealthAnswer) -> Iterator[Finding]:
    """Return whether the token was accepted, and whether the document is readable without one."""
    has_sent_token = visit.token is not None and _takes_token(visit, health.place)
    if health.answer.result is ResultClass.GATED and has_sent_token:
        message = "the server refused the token; without it, the basic state may be readable"
        yield Finding("token_refused", "", message)
    elif health.answer.result is ResultClass.GATED:
        message = "the basic state must be readable without credentials"
        yield Finding("health_is_gated", "", message, "draft 4.1")
    if visit.token is not None and not has_sent_token:
        message = "the document is not at the URL for which the token is meant"
        yield Finding("token_not_sent", "", message)


def _origin(url: URL) -> str:
    return f"{url.scheme}://{url.raw_authority}"


def _login(card: _CardAnswer, health: _HealthAnswer | None, server: DetectedServer | None) -> Login | None:
    """Return the login that refused requests ask for; None if no request was refused."""
    answers = [card.answer] if health is None else [card.answer, health.answer]
    answers += [] if server is None else [server.answer]
    refused = [answer for answer in answers if answer.result is ResultClass.GATED]
    if not refused:
        return None
    fields = [field for answer in refused for field in answer.challenges]
    return login_of(fields, () if card.card is None else card.card.security_schemes)


def _conclude(
    visit: _HealthCheck,
    card: _CardAnswer,
    health: _HealthAnswer | None,
    findings: tuple[Finding, ...],
    server: _Server | None = None,
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
        failure=answer.reason,
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


def _server_reason(asked: DetectedServer) -> str:
    """Return what an MCP server without a usable document answered to the requests of MCP."""
    if asked.is_gated:
        return "an MCP server answers, and asks for a login"
    if asked.is_server:
        return "an MCP server answers"
    return f"no MCP server answers: {asked.answer.reason}"
