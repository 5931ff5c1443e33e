"""What comes back from one GET, whatever the peer does?

Everything is bounded: the body after decompression, the header, the redirects, and the time for it
all. Whatever a peer can do wrong is a `ResultClass` with a reason, never an exception.
"""

import asyncio
import os
import re
import ssl
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from importlib import metadata
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypedDict

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from agent_health.client.http_headers import max_age_seconds, retry_after_seconds, status_links, whole_number
from agent_health.client.reach import LedInward, Reach
from agent_health.client.redirects import MAX_SHOWN_CHARS, joined, refusal
from agent_health.light_value import light_value
from agent_health.observation import ResultClass

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

MAX_REDIRECTS = 3
MAX_HEADER_LINE_BYTES = 8190
"""Of the status line, and of each header field."""
MAX_HEADERS = 128
UNPACKED = frozenset({"gzip", "deflate", "br", "zstd"})
"""What aiohttp takes off, or says that it cannot, without a library for it."""
MAX_DATES = 64
"""Times of answers that are remembered as they were read."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What a GET can raise, all of it the peer's or the network's doing. ValueError: host names that no
# resolver accepts (UnicodeError) and headers that are no text reach us as they are.
FAILURES = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError)
# aiohttp has no class of its own for these.
_NO_STATUS_LINE = "Bad status line"
_NO_LIBRARY = re.compile(r"^Can not decode content-encoding: \w+ \((\w+)\)")
_ASKED = "one of gzip and deflate was asked for"
_QUOTED_BYTES = re.compile(r"""^\s*b(?P<quote>['"])(?P<bytes>.*)(?P=quote)\s*$""", re.MULTILINE)
_HEADER_TOO_LARGE = ("Got more than", "Too many headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked for, and how far we go for it."""

    max_bytes: int
    """The largest body that is read."""
    deadline_s: float
    """When to give up, on the event loop's clock: for all hops and the whole body together."""
    token: str | None = None
    """Sent as Bearer, and never to another origin."""
    may_leave_origin: bool = False
    """Whether a redirect may lead to another origin; from http to https of one host it always may."""


@light_value(kw_only=True)
class Answer:
    """What came back. All but `url`, `result` and `reason` is empty if nothing did."""

    url: URL
    """Where it was found: the last address that was asked."""
    result: ResultClass
    """`ok` for a body that was read whole; what it is has yet to be judged."""
    reason: str = ""
    """What went wrong, for people; empty if `result` is `ok`. It may quote the peer, in ASCII."""
    status: int | None = None
    content_type: str = ""
    """Lower case, without parameters."""
    body: bytes = b""
    served_at: datetime | None = None
    """By the clock of whoever served it: `Date`, plus the time that a cache kept it (`Age`)."""
    max_age_seconds: int | None = None
    retry_after_seconds: int | None = None
    status_links: tuple[str, ...] = ()
    """Targets of `Link: rel="status"` (RFC 8631), as sent."""
    latency_ms: float = 0.0
    """From the first request to the last byte, redirects included."""

    @property
    def is_json(self) -> bool:
        """Whether the body claims to be JSON."""
        return self.content_type == "application/json" or self.content_type.endswith("+json")


def in_ms(seconds: float) -> float:
    """Return a duration in ms, to the microsecond: what would stand behind that was not measured."""
    return round(seconds * 1000.0, 3)


@cache
def user_agent() -> str:
    """Who we say that we are."""
    try:
        version = metadata.version("agent-health")
    except metadata.PackageNotFoundError:
        version = "0"
    return f"agent-health/{version} (+https://github.com/agent-health)"


async def bounded_get(reach: Reach, url: URL, ask: Ask) -> Answer:
    """Get `url`, following redirects by hand; never raises for what the peer does."""
    started_s = perf_counter()
    followed = 0
    while True:
        answer, location = await _ask_once(reach.session_for(url), url, ask)
        answer = replace(answer, latency_ms=in_ms(perf_counter() - started_s))
        if location is None:
            return answer
        target = joined(url, location)
        reason = refusal(url, target, has_token=ask.token is not None, may_leave_origin=ask.may_leave_origin)
        if followed == MAX_REDIRECTS:
            reason = f"more than {MAX_REDIRECTS} redirects"
        if target is None or reason is not None:
            return replace(answer, result=ResultClass.REDIRECT_REFUSED, reason=reason or "")
        url = target
        followed += 1


async def _ask_once(session: aiohttp.ClientSession, url: URL, ask: Ask) -> tuple[Answer, str | None]:
    """Return the answer to one request, and where it redirects to if it does."""
    headers = {"Accept": "application/json", "User-Agent": user_agent()}
    if ask.token is not None:
        headers["Authorization"] = f"Bearer {ask.token}"
    try:
        async with (
            asyncio.timeout_at(ask.deadline_s),
            session.get(
                url,
                headers=headers,
                allow_redirects=False,
                raise_for_status=False,
                # The one deadline counts, not what the session allows to each step.
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=True,
                max_line_size=MAX_HEADER_LINE_BYTES,
                max_field_size=MAX_HEADER_LINE_BYTES,
                max_headers=MAX_HEADERS,
            ) as response,
        ):
            result, reason = judge_status(response.status)
            body: bytes | None = b""
            if result is ResultClass.OK and (unread := unread_coding(response)) is not None:
                result, reason = unread
            elif result is ResultClass.OK:
                body = await read_bounded(response, ask.max_bytes)
                if body is None:
                    result, reason = too_large(ask.max_bytes)
            answer = Answer(url=url, result=result, reason=reason, body=body or b"", **read_head(response))
            return answer, response.headers.get("Location") if response.status in REDIRECTS else None
    except FAILURES as error:
        result, reason = judge_failure(url, error)
        return Answer(url=url, result=result, reason=reason), None


class Received(Protocol):
    """An answer whose header was read."""

    @property
    def status(self) -> int: ...  # noqa: D102 - see its name
    @property
    def headers(self) -> "CIMultiDictProxy[str]": ...  # noqa: D102
    @property
    def content(self) -> aiohttp.StreamReader: ...  # noqa: D102


async def read_bounded(response: Received, max_bytes: int) -> bytes | None:
    """Return the body, or None as soon as it turns out larger than `max_bytes`.

    What counts is what comes out of decompression, which aiohttp does in pieces of bounded size.
    """
    length = response.headers.get("Content-Length", "")
    if "Content-Encoding" not in response.headers and (whole_number(length) or 0) > max_bytes:
        return None
    if response.content.is_eof():
        # All of it is there, as most are that come in one piece.
        whole = response.content.read_nowait()
        return whole if len(whole) <= max_bytes else None
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            return None
    return bytes(body)


async def read_beginning(response: Received, max_bytes: int) -> tuple[bytes, bool]:
    """Return a body up to `max_bytes`, and whether that is a part: it has more, or broke off.

    One of FAILURES if nothing of it came.
    """
    body = bytearray()
    try:
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > max_bytes:
                return bytes(body[:max_bytes]), True
    except FAILURES:
        if not body:
            raise
        return bytes(body), True
    return bytes(body), False


def unread_coding(response: Received) -> tuple[ResultClass, str] | None:
    """Name what is wrong with a body that is packed in another way than was asked for; None if it is not.

    One coding is taken off, and no second one: what is packed twice would reach the reader packed.
    """
    fields = response.headers.getall("Content-Encoding", ())
    if not fields:
        return None
    codings = {coding.strip().lower() for field in fields for coding in field.split(",")}
    if codings <= {"", "identity"} or (len(fields) == 1 and fields[0].strip().lower() in UNPACKED):
        return None
    return ResultClass.HTTP_ERROR, _unread(", ".join(fields))


def _unread(coding: str) -> str:
    return f"the body cannot be unpacked: its Content-Encoding is {_in_ascii(coding)!r}, and only {_ASKED}"


class Head(TypedDict):
    """What the header of an answer says, as `Answer` has it."""

    status: int
    content_type: str
    served_at: datetime | None
    max_age_seconds: int | None
    retry_after_seconds: int | None
    status_links: tuple[str, ...]


def read_head(response: Received) -> Head:
    """Read the header of an answer; what cannot be read counts as absent."""
    headers = response.headers
    return {
        "status": response.status,
        "content_type": headers.get("Content-Type", "").partition(";")[0].strip().lower()[:MAX_SHOWN_CHARS],
        "served_at": _served_at(headers.get("Date", ""), headers.get("Age", "")),
        "max_age_seconds": max_age_seconds(headers.getall("Cache-Control", [])),
        "retry_after_seconds": retry_after_seconds(headers.get("Retry-After", ""), datetime.now(UTC)),
        "status_links": status_links(headers.getall("Link", [])),
    }


def _served_at(date: str, age: str) -> datetime | None:
    """Return when an answer was made; None for what is no time."""
    try:
        made_at = _read_date(date) if date else None
        return made_at and made_at + timedelta(seconds=whole_number(age) or 0)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=MAX_DATES)
def _read_date(text: str) -> datetime:
    """Return a time of HTTP; what hundreds of servers say within one second is the same."""
    date = parsedate_to_datetime(text)
    return date.replace(tzinfo=date.tzinfo or UTC)


def judge_status(status: int, method: str = "GET") -> tuple[ResultClass, str]:
    """Tell what a status means by itself, before there is a body; `ok` says nothing of the body."""
    match status:
        case 200 | 203:
            return ResultClass.OK, ""
        case 401 | 402 | 403 | 407:
            result, meaning = ResultClass.GATED, "it asks for credentials or money first"
        case 404 | 410:
            result, meaning = ResultClass.NOT_AN_AGENT, "nothing is served here"
        case 429:
            result, meaning = ResultClass.RATE_LIMITED, "asked too often"
        case _ if 200 <= status < 300:
            result, meaning = ResultClass.NOT_AN_AGENT, "an answer without a document"
        case _:
            result, meaning = ResultClass.HTTP_ERROR, f"no answer to a plain {method}"
    return result, f"HTTP {status}: {meaning}"


def too_large(max_bytes: int) -> tuple[ResultClass, str]:
    """Name what is wrong with a body that has more bytes."""
    return ResultClass.TOO_LARGE, f"the body has more than {max_bytes} bytes"


def judge_failure(url: URL, error: BaseException) -> tuple[ResultClass, str]:
    """Name what went wrong before there was an answer, or within it."""
    place = f"{url.raw_host}:{url.port}"
    cause = error.__cause__
    match error:
        case TimeoutError():
            found = ResultClass.TIMEOUT, f"no complete answer from {place} in time"
        case LedInward():
            found = ResultClass.BLOCKED_ADDRESS, str(error)
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            found = ResultClass.DNS_FAILURE, f"the host name {url.raw_host!a} has no address"
        case aiohttp.ClientSSLError() | aiohttp.ServerFingerprintMismatch() | ssl.SSLError():
            found = ResultClass.TLS_FAILURE, f"no trusted TLS connection to {place}: {told(cause or error)}"
        case aiohttp.ClientConnectorError():
            found = ResultClass.REFUSED, f"no connection to {place}: {told(error)}"
        case aiohttp.ClientResponseError() | HttpProcessingError() if error.message.startswith(
            _HEADER_TOO_LARGE
        ):
            limits = f"{MAX_HEADER_LINE_BYTES} bytes or {MAX_HEADERS} fields"
            found = ResultClass.TOO_LARGE, f"the header exceeds {limits}"
        case aiohttp.ClientResponseError() | HttpProcessingError() if (
            coding := _NO_LIBRARY.search(error.message)
        ) is not None:
            found = ResultClass.HTTP_ERROR, _unread(coding[1])
        case aiohttp.ClientPayloadError():
            found = ResultClass.HTTP_ERROR, f"the body is damaged or ends early: {told(error)}"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            found = ResultClass.HTTP_ERROR, f"not an HTTP answer: {_breach(error.message)}"
        case _:
            found = ResultClass.HTTP_ERROR, f"the connection broke: {told(error)}"
    return found


def _breach(message: str) -> str:
    """Tell in our words which rule of HTTP an answer broke, and by which line; aiohttp draws a picture."""
    is_start = message.startswith(_NO_STATUS_LINE)
    what = "it begins with no status line" if is_start else "its header is malformed"
    quoted = _QUOTED_BYTES.search(message)
    return what if quoted is None else f"{what}: {_in_ascii(quoted['bytes'])}"


def told(error: BaseException) -> str:
    """Tell an error in one short line of ASCII: it may quote the peer."""
    # OpenSSL counts its errors in a way of its own.
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        told = os.strerror(error.errno)
    else:
        told = str(error)
    return _in_ascii(told) or type(error).__name__


def _in_ascii(text: str) -> str:
    return " ".join(text.split())[: 2 * MAX_SHOWN_CHARS].encode("ascii", "backslashreplace").decode()
