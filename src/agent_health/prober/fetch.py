"""What comes back from one request to somebody who may be hostile?

The connection is made first, to an address that was judged, before there is any HTTP: most of what a
directory lists has no address, or nobody listens there. Redirects are followed by hand, each judged anew.
Everything has a bound in bytes and in seconds; what a peer does wrong is a `ResultClass`, never an exception.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, cast

import aiohttp
from yarl import URL

from agent_health.client.bounded_get import (
    FAILURES,
    MAX_HEADER_LINE_BYTES,
    MAX_HEADERS,
    MAX_REDIRECTS,
    REDIRECTS,
    Answer,
    judge_failure,
    judge_status,
    read_bounded,
    read_head,
    too_large,
)
from agent_health.client.redirects import joined, refusal
from agent_health.observation import MAX_ETAG_CHARS, Phases, ResultClass
from agent_health.prober.connector import JudgedConnector, Line, NotReached, Unreached
from agent_health.prober.opt_out import OptOuts
from agent_health.prober.resolve import Resolver
from agent_health.target_address import Address, Network, Refused, TargetUrl

if TYPE_CHECKING:
    from aiohttp.connector import Connection

    from agent_health.prober.definition import Timeouts

Method = Literal["GET", "POST", "OPTIONS"]

HARMLESS_HEADERS: Final = frozenset({"accept", "content-type", "a2a-version", "a2a-extensions"})
"""Whoever is asked for a request with any other header may be told a secret: it stays with the origin."""
KEEPS_METHOD: Final = frozenset({307, 308})
"""A POST that is redirected otherwise would become a GET."""
ACCEPT_ENCODING: Final = "gzip, deflate"
"""What aiohttp unpacks in pieces of bounded size without further packages."""
MAX_TIME_CHARS: Final = 64
"""Of a time in a header."""

_MS: Final = 1000.0
_BROKE_WHILE_IDLE: Final = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
"""Nobody's fault: servers close what waits for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for, and how far we go for it."""

    url: URL
    method: Method = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Besides those that every request has."""
    etag: str | None = None
    """Of what is known already: an answer that it has not changed is `ok`, and has no body."""
    modified_since: str | None = None
    """The same by its `Last-Modified`, as sent, where there is no entity tag."""
    max_bytes: int
    """The largest body that is read, after decompression."""
    is_head_enough: bool = False
    """Whether nobody wants the body: it is not read, however long it takes to come."""
    deadline_s: float
    """When to give up, on the event loop's clock; `total_seconds` from now if that is sooner."""
    may_leave_origin: bool = False
    """Whether a redirect may lead to another origin; from http to https of one host it always may."""
    accept: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Answer):
    """What came back: to a GET a body with `ok` alone, to a POST with every status."""

    etag: str | None = None
    """As sent; None if it is longer than an observation takes."""
    last_modified: str | None = None
    """`Last-Modified`, as sent; None if it is too long to be a time."""
    is_unchanged: bool = False
    """Whether it is what the request's `etag` or `modified_since` stands for (304)."""
    phases: Phases | None = None
    """Of the last request; None if nothing was tried."""
    address: Address | None = None
    """Who was asked last."""
    certificate_expires_at: datetime | None = None
    """Of the last connection's certificate, be it too old; None if none was shown that could be trusted."""
    is_reached: bool = True
    """Whether the request was sent: False if there was no connection, or none was tried."""
    is_resolver_fault: bool = False
    """Whether it failed as no name server did its work for us."""
    allow: str = ""
    """The methods that `Allow` names, as sent (RFC 9110 10.2.1)."""


class Fetcher:
    """Sends requests, one session for all; made within a running loop, and used as a context manager.

    How many requests are under way is for its user to bound. A connection serves the next request to the
    same place if that comes within a few seconds.
    """

    def __init__(
        self,
        *,
        timeouts: "Timeouts",
        networks: Sequence[Network] = (),
        user_agent: str,
        resolver: Resolver,
        opt_outs: OptOuts | None = None,
    ) -> None:
        """`networks`: those that may be contacted besides the public internet; the resolver stays open.

        `opt_outs`: who is not contacted, neither at once nor where a card or a redirect leads.
        """
        self.connector = JudgedConnector(resolver, timeouts, networks)
        self._timeouts = timeouts
        self._opt_outs = opt_outs or None
        self._loop = asyncio.get_running_loop()
        self._session = aiohttp.ClientSession(
            connector=self.connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            response_class=_TimedResponse,
            headers={"User-Agent": user_agent, "Accept-Encoding": ACCEPT_ENCODING},
            # Deadlines are kept here; aiohttp would need a timer of its own for each.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            trust_env=False,
            max_line_size=MAX_HEADER_LINE_BYTES,
            max_field_size=MAX_HEADER_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )
        # It would ask anybody twice who hangs up; here only connections that waited are worth it.
        self._session._retry_connection = False  # noqa: SLF001 - there is no public switch; a test watches it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def fetch(self, request: Request) -> Fetched:
        """Send a request and follow where it leads; never raises for what a peer does.

        AddressBusy passes through: nothing was sent to that address, and whoever paces the probes knows what
        to do.
        """
        began_s = perf_counter()
        deadline_s = min(request.deadline_s, self._loop.time() + self._timeouts.total_seconds)
        url = request.url
        followed = 0
        while True:
            fetched, location = await self._ask(url, request, deadline_s, began_s)
            if location is None:
                return fetched
            reason = None
            target = joined(url, location)
            if request.method == "POST" and fetched.status not in KEEPS_METHOD:
                reason = f"redirected with {fetched.status}: it would no longer be a POST"
            elif followed == MAX_REDIRECTS:
                reason = f"more than {MAX_REDIRECTS} redirects"
            else:
                reason = refusal(
                    url,
                    target,
                    has_token=not HARMLESS_HEADERS.issuperset(map(str.lower, request.headers)),
                    may_leave_origin=request.may_leave_origin,
                )
            if target is None or reason is not None:
                return replace(fetched, result=ResultClass.REDIRECT_REFUSED, reason=reason or "")
            url = target
            followed += 1

    async def _ask(
        self, url: URL, request: Request, deadline_s: float, began_s: float
    ) -> tuple[Fetched, str | None]:
        """Return what one place answers, and where it redirects to if it does."""
        if self._loop.time() >= deadline_s:
            reason = "no time was left"
            return Fetched(url=url, result=ResultClass.NOT_MEASURED, reason=reason, is_reached=False), None
        target = self._admitted(url, is_redirect=url is not request.url)
        if isinstance(target, Fetched):
            return target, None
        if (url.raw_host or "").endswith("."):
            # As certificates have it, and `connector`.
            url = url.with_host(target.host)
        line = None
        try:
            if self.connector.has_idle(target):
                # A POST is not sent twice: what became of it on a connection that breaks is not known.
                if request.method == "GET":
                    with contextlib.suppress(*_BROKE_WHILE_IDLE):
                        return await self._exchange(url, request, deadline_s, began_s)
                self.connector.drop_idle(target)
            opened = await self.connector.open(target, deadline_s)
            if isinstance(opened, Unreached):
                return _unreached(url, opened), None
            line = opened
            self.connector.hand_over(line)
            return await self._exchange(url, request, deadline_s, began_s)
        except FAILURES as error:
            return _failed(url, error, line), None
        finally:
            self.connector.take_back()

    def _admitted(self, url: URL, *, is_redirect: bool) -> TargetUrl | Fetched:
        """Say whom a URL leads to, or why nothing is sent there."""
        target = _read_alike(url, self.connector.judged(str(url)))
        if isinstance(target, Refused):
            is_bad_redirect = is_redirect and target.name == "invalid_url"
            result = ResultClass.REDIRECT_REFUSED if is_bad_redirect else ResultClass.BLOCKED_ADDRESS
            return Fetched(url=url, result=result, reason=target.reason, is_reached=False)
        entry = None if self._opt_outs is None else self._opt_outs.entry_for(str(url))
        if entry is None:
            return target
        result = ResultClass.REDIRECT_REFUSED if is_redirect else ResultClass.NOT_MEASURED
        return Fetched(url=url, result=result, reason=f"opted out: {entry}", is_reached=False)

    async def _exchange(
        self, url: URL, request: Request, deadline_s: float, began_s: float
    ) -> tuple[Fetched, str | None]:
        """Send one request and read the answer; raises one of FAILURES."""
        headers = {"Accept": request.accept, **request.headers}
        if request.etag is not None:
            headers["If-None-Match"] = request.etag
        elif request.modified_since is not None:
            headers["If-Modified-Since"] = request.modified_since
        limit = asyncio.timeout_at(min(deadline_s, self._loop.time() + self._timeouts.first_byte_seconds))
        async with (
            limit,
            self._session.request(
                request.method, url, headers=headers, data=request.body, allow_redirects=False
            ) as response,
        ):
            limit.reschedule(deadline_s)
            assert isinstance(response, _TimedResponse)  # noqa: S101 - the session makes no others
            is_conditional = request.etag is not None or request.modified_since is not None
            is_unchanged = response.status == 304 and is_conditional
            result, reason = judge_status(response.status, request.method)
            if is_unchanged:
                result, reason = ResultClass.OK, ""
            body: bytes | None = b""
            is_wanted = request.method == "POST" and response.status not in REDIRECTS
            if (result is ResultClass.OK or is_wanted) and not request.is_head_enough:
                body = await read_bounded(response, request.max_bytes)
                if body is None:
                    result, reason = too_large(request.max_bytes)
            ended_s = perf_counter()
            etag = response.headers.get("ETag")
            modified = response.headers.get("Last-Modified")
            line = response.line
            fetched = Fetched(
                url=url,
                result=result,
                reason=reason,
                body=body or b"",
                latency_ms=(ended_s - began_s) * _MS,
                etag=etag if etag is not None and len(etag) <= MAX_ETAG_CHARS else None,
                last_modified=modified if modified is not None and len(modified) <= MAX_TIME_CHARS else None,
                is_unchanged=is_unchanged,
                allow=response.headers.get("Allow", ""),
                phases=response.phases(ended_s),
                address=line.address,
                certificate_expires_at=line.certificate_expires_at,
                **read_head(response),
            )
            location = response.headers.get("Location") if response.status in REDIRECTS else None
            return fetched, location


class _TimedResponse(aiohttp.ClientResponse):
    """An answer that knows its connection, and when its parts came."""

    line: Line
    sent_at_s: float
    is_line_new: bool

    async def start(self, connection: "Connection") -> aiohttp.ClientResponse:
        self.line = cast("Line", connection.protocol)
        self.sent_at_s = perf_counter()
        self.is_line_new = not self.line.is_used
        if self.is_line_new:
            self.line.is_used = True
        else:
            self.line.expect_answer()
        return await super().start(connection)

    def phases(self, ended_s: float) -> Phases:
        line = self.line
        first_byte_at_s = line.first_byte_at_s or ended_s
        return Phases(
            dns_ms=line.dns_ms if self.is_line_new else None,
            connect_ms=line.connect_ms if self.is_line_new else None,
            tls_ms=line.tls_ms if self.is_line_new else None,
            first_byte_ms=max(0.0, first_byte_at_s - self.sent_at_s) * _MS,
            last_byte_ms=max(0.0, ended_s - first_byte_at_s) * _MS,
        )


def _read_alike(url: URL, target: TargetUrl | Refused) -> TargetUrl | Refused:
    """Refuse a URL that the judge reads in another way than whoever sends the request."""
    if isinstance(target, Refused):
        return target
    host = (url.raw_host or "").removesuffix(".")
    if (url.scheme, host, url.port) == (target.scheme, target.host, target.port):
        return target
    return Refused("invalid_url", "the URL is read in two ways")


def _unreached(url: URL, why: Unreached) -> Fetched:
    return Fetched(
        url=url,
        result=why.result,
        reason=why.reason,
        phases=why.phases,
        address=why.address,
        certificate_expires_at=why.certificate_expires_at,
        is_reached=False,
        is_resolver_fault=why.is_resolver_fault,
    )


def _failed(url: URL, error: BaseException, line: Line | None) -> Fetched:
    """Tell what went wrong after there was a connection."""
    if isinstance(error, NotReached):
        return _unreached(url, error.why)
    result, reason = judge_failure(url, error)
    if line is None:
        return Fetched(url=url, result=result, reason=reason)
    return Fetched(
        url=url,
        result=result,
        reason=reason,
        phases=Phases(dns_ms=line.dns_ms, connect_ms=line.connect_ms, tls_ms=line.tls_ms),
        address=line.address,
        certificate_expires_at=line.certificate_expires_at,
    )
