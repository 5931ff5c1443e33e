"""One request to a peer that may be hostile.

The connector first connects to a vetted address: most targets of a directory have no address or nothing
listens there. Redirects are followed here, and each is vetted again. Bytes and seconds are limited. A fault
of the peer is a `ResultClass`, never an exception.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from yarl import URL

from lifesign.domain.credentials.secret import Scrubber, scrubber_of, united
from lifesign.domain.mcp.conversation import EVENT_STREAM
from lifesign.domain.net.allowed_addresses import (
    Address,
    AddressRefused,
    Network,
    TargetUrl,
    is_in,
    vet_address,
)
from lifesign.domain.observation.results import MAX_ETAG_CHARS, ResultClass
from lifesign.errors import InvalidValue
from lifesign.http_client.address_guard import AddressGuard
from lifesign.http_client.answer import classify_status, in_ms, read_head, unread_coding
from lifesign.http_client.bounded_body import read_beginning, read_bounded, read_until
from lifesign.http_client.failures import (
    FAILURES,
    MAX_ERROR_PAGE_BYTES,
    is_certificate_page,
    is_header_page,
    too_large,
)
from lifesign.http_client.headers import media_type
from lifesign.http_client.redirects import KEEPS_METHOD, REDIRECTS, SECRET_IN_URL, next_hop
from lifesign.loopback.listeners import IN_THIS_PROCESS
from lifesign.prober.network.connection import HttpConnection, Place, ReplyHead
from lifesign.prober.network.connection_pool import ConnectionPool
from lifesign.prober.network.connector import Unreached, VettedConnector
from lifesign.prober.network.exclusion_list import OptOuts
from lifesign.prober.network.fetched import Fetched, failed, phases_of, scrubbed, unreached
from lifesign.prober.network.host_limiter import AddressBusy, admit, book_visit
from lifesign.prober.network.request import (
    HARMLESS_HEADERS,
    MAX_TIME_CHARS,
    Request,
    accept_field,
    echoable,
    header_fields,
)
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.secrets.client_tls import ClientTls
from lifesign.prober.secrets.credential_store import Credential, CredentialStore

if TYPE_CHECKING:
    from lifesign.prober.definition.pacing_settings import Timeouts

ACCEPT_ENCODING: Final = "gzip, deflate"
"""Encodings that aiohttp unpacks in pieces of bounded size without further packages."""
MAX_ADDRESSES: Final = 4_096
"""Maximum number of addresses of which it is cached whether they are private."""
BAD_REQUEST: Final = 400
HEAD_TOO_LARGE: Final = frozenset({414, 431})
"""Answers to a request whose URL or headers are too large."""
WANTS_CERTIFICATE: Final = "it demands a client certificate, or does not accept that of the request"
_BROKE_WHILE_IDLE: Final = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
"""Errors of a connection that the server closed while it was idle. They are normal."""


@dataclass(slots=True)
class _Hop:
    """One requested URL: the request's own, or the target of a redirect."""

    url: URL
    request: Request
    deadline_s: float
    """Deadline on the event loop's clock."""
    began_s: float
    """Start of the first hop, by the performance counter."""
    own_secret: Scrubber
    """Removes the secret in the request's headers."""
    own: Credential | None = None
    """The credential for `url`, if the probe has any."""
    credential: Credential | None = None
    """The request's credential, if it is the one for `url`."""
    sent: list[Credential] = field(default_factory=list)
    """The credentials that were sent so far, also before redirects."""
    is_withheld: bool = False
    """Whether an earlier URL did not get the credential: later ones do not get it either."""

    @property
    def is_redirect(self) -> bool:
        return self.url is not self.request.url

    def note_sent(self, credential: Credential | None) -> None:
        """Note that the server at `url` receives this credential, None for none."""
        if credential is not None:
            self.sent.append(credential)


class Fetcher:
    """Sends all HTTP requests of a prober. A context manager, to be created within a running loop.

    How many requests are under way is for its user to bound. A connection serves the next request to the
    same place if that comes within a few seconds.
    """

    def __init__(
        self,
        *,
        timeouts: "Timeouts",
        networks: Sequence[Network] = (),
        is_public_allowed: bool = True,
        user_agent: str,
        resolver: Resolver,
        opt_outs: OptOuts | None = None,
        credentials: CredentialStore | None = None,
    ) -> None:
        """`networks`: the private networks that may be contacted; the resolver stays open.

        `is_public_allowed`: False to contact `networks` only, since there is no contact. `opt_outs`: excluded
        hosts, both as targets and as destinations of cards and redirects. `credentials`: the secret of a
        request is removed from its answer.
        """
        self._is_private = lru_cache(maxsize=MAX_ADDRESSES)(partial(_is_private, networks=networks))
        self._credentials = credentials or CredentialStore()
        guard = AddressGuard(networks, is_public_allowed=is_public_allowed)
        self.connector = VettedConnector(resolver, timeouts, guard)
        self._timeouts = timeouts
        self._opt_outs = opt_outs or None
        self._loop = asyncio.get_running_loop()
        self._lines = ConnectionPool()
        self._credential_fields: dict[str, tuple[tuple[str, str], str]] = {}
        """The newest header of each credential, and its wire form."""
        self._common_header = header_fields(
            {"User-Agent": user_agent, "Accept-Encoding": ACCEPT_ENCODING}, "user_agent"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._lines.close()

    async def fetch(self, request: Request) -> Fetched:
        """Send a request and follow redirects. Failures of the peer are part of the result, and not raised.

        AddressBusy passes through: nothing was sent to that address, and the code that schedules probes
        handles it.
        """
        deadline_s = min(request.deadline_s, self._loop.time() + self._timeouts.total_seconds)
        hop = _Hop(request.url, request, deadline_s, perf_counter(), scrubber_of(request.own_secret))
        followed = 0
        redirected_by: Address | None = None
        tried: tuple[Address, ...] = ()
        while True:
            fetched, location = await self._ask(hop)
            if hop.is_redirect:
                tried = (*tried, *fetched.tried)
                fetched = replace(
                    fetched,
                    redirected_from=request.url,
                    redirected_by=redirected_by,
                    tried=tried,
                )
            if request.credential is not None and fetched.credential is None and fetched.status is not None:
                fetched = replace(fetched, withheld=_why_withheld(hop, request.credential))
                hop.is_withheld = True
            if scrubber := fetched.scrubber or self._scrubber_at(hop, fetched.address):
                fetched = scrubbed(fetched, scrubber)
            if location is None:
                return fetched
            target = await self._next_hop(hop, fetched, location, followed, scrubber)
            if isinstance(target, str):
                is_altered = fetched.is_altered or target == SECRET_IN_URL
                return replace(
                    fetched, result=ResultClass.REDIRECT_REFUSED, reason=target, is_altered=is_altered
                )
            if redirected_by is None and hop.url.scheme == "http" and hop.url.raw_host != target.raw_host:
                redirected_by = fetched.address
            tried = fetched.tried
            hop.url = target
            followed += 1

    async def _next_hop(
        self, hop: _Hop, fetched: Fetched, location: str, followed: int, scrubber: Scrubber
    ) -> URL | str:
        """Return the target of a redirect if it is followed, else the reason."""
        request = hop.request
        if request.method == "POST" and fetched.status not in KEEPS_METHOD:
            return f"redirected with {fetched.status}, which would change the POST to a GET"
        target = next_hop(
            hop.url,
            location,
            followed=followed,
            has_token=request.credential is not None
            or not HARMLESS_HEADERS.issuperset(map(str.lower, request.headers)),
            may_leave_origin=request.may_leave_origin,
            scrubber=scrubber,
        )
        if isinstance(target, URL) and request.kept_out is not None:
            why = await request.kept_out(target)
            return target if why is None else f"redirected to where {why}"
        return target

    async def _ask(self, hop: _Hop) -> tuple[Fetched, str | None]:
        """Return the answer of one URL, and its redirect if there is one."""
        if hop.request.credential is not None or hop.request.known_credentials:
            hop.own = self._credentials.for_url(str(hop.url))
        if self._loop.time() >= hop.deadline_s:
            reason = "no time was left"
            result = ResultClass.NOT_MEASURED
            return Fetched(url=hop.url, result=result, reason=reason, is_reached=False), None
        target = self._admitted(hop.url, is_redirect=hop.is_redirect)
        if isinstance(target, TargetUrl):
            target = await self._after_wait(hop, target)
        if isinstance(target, Fetched):
            return target, None
        credential = hop.credential = self._credential_at(hop)
        place = (target.scheme, target.host, target.port, _owner(hop.request, credential))
        # A POST is not sent twice: on a connection that breaks, its effect would be unknown.
        is_shared = hop.request.method == "GET" and not hop.request.needs_new_connection
        line = self._idle_line(place) if is_shared else None
        if line is not None and _has_plain_secret(hop) and _refusal(line, is_new=False) is not None:
            self._lines.cut(line)
            line = None
        try:
            if line is not None:
                with contextlib.suppress(*_BROKE_WHILE_IDLE):
                    return await self._exchange(hop, line)
            opened = await self._open(hop, target, credential)
            if isinstance(opened, Fetched):
                return opened, None
            line = opened
            line.place = place
            return await self._exchange(hop, line)
        except InvalidValue:
            # The caller's fault, though it is a ValueError too.
            raise
        except FAILURES as error:
            return failed(hop.url, error, line, credential, self._tls_of(hop)), None

    async def _after_wait(self, hop: _Hop, target: TargetUrl) -> TargetUrl | Fetched:
        """Return a destination when its host may get a request; or that too many others wait for that.

        The wait counts neither for the request's time limit nor for its measured time.
        """
        wait_s = book_visit(target.host, self._loop.time(), hop.request.deadline_s - hop.deadline_s)
        if wait_s is None:
            reason = f"too many requests to {target.host} wait: other targets lead there too"
            result = ResultClass.NOT_MEASURED
            return Fetched(url=hop.url, result=result, reason=reason, is_reached=False, is_put_off=True)
        if wait_s:
            await asyncio.sleep(wait_s)
            hop.deadline_s += wait_s
            hop.began_s += wait_s
        return target

    def _idle_line(self, place: Place) -> HttpConnection | None:
        """Return an open connection for this host and port, counted at its address; None if there is none."""
        line = self._lines.waiting_at(place)
        if line is not None:
            try:
                admit(line.address)
            except AddressBusy:
                self._lines.give_back(line)
                raise
        return line

    def _credential_at(self, hop: _Hop) -> Credential | None:
        """Return the request's credential if it is the one for the present URL.

        Never another one: the agent of one path could choose requests with the credential of another path.
        """
        given = hop.request.credential
        if given is None or hop.is_withheld:
            return None
        if given is hop.own:
            return given
        return given if not hop.is_redirect and given.scope.covers(str(hop.url)) else None

    def _scrubber_at(self, hop: _Hop, address: Address | None) -> Scrubber:
        """Return what removes the secrets that the server at the present URL receives, and no others.

        It receives a credential of the probe with another request, if that is the one for this URL. A server
        that receives none of them could guess the secrets of another one. So nothing is searched for what was
        sent before a redirect only.
        """
        if not (hop.sent or hop.request.known_credentials):
            return hop.own_secret
        own = hop.own
        received = [each for each in hop.sent if each is own or each is hop.credential]
        if own is not None and own not in received and own in hop.request.known_credentials:
            received += [own] if self._keeps_secrets(hop.url, address) else []
        if len(received) == 1 and not hop.own_secret:
            return received[0].scrubber
        return united([hop.own_secret, *(each.scrubber for each in received)])

    async def _open(
        self, hop: _Hop, target: TargetUrl, credential: Credential | None
    ) -> HttpConnection | Fetched:
        """Return a new connection, or why there is none."""
        opened = await self.connector.open(target, hop.deadline_s, self._tls_of(hop))
        if isinstance(opened, Unreached):
            return unreached(hop.url, opened, credential)
        self._lines.add(opened)
        if hop.request.has_secret and not self._keeps_secrets(hop.url, opened.address):
            self._lines.cut(opened)
            reason = "a secret is sent over TLS, or to a private network of networks.allow"
            result = ResultClass.BLOCKED_ADDRESS
            return Fetched(url=hop.url, result=result, reason=reason, is_reached=False)
        if _has_plain_secret(hop) and (refusal := _refusal(opened, is_new=True)) is not None:
            self._lines.cut(opened)
            result = ResultClass.NOT_MEASURED
            return Fetched(url=hop.url, result=result, reason=refusal, is_reached=False)
        return opened

    def _tls_of(self, hop: _Hop) -> ClientTls | None:
        return hop.request.tls or self._credentials.tls_for(hop.url, hop.credential)

    def _admitted(self, url: URL, *, is_redirect: bool) -> TargetUrl | Fetched:
        """Return the destination of a URL, or why nothing is sent there."""
        target = self.connector.guard.vet_url(url)
        if isinstance(target, AddressRefused):
            is_bad_redirect = is_redirect and target.name == "invalid_url"
            result = ResultClass.REDIRECT_REFUSED if is_bad_redirect else ResultClass.BLOCKED_ADDRESS
            return Fetched(url=url, result=result, reason=target.reason, is_reached=False)
        entry = None if self._opt_outs is None else self._opt_outs.entry_for(str(url))
        if entry is None:
            return target
        result = ResultClass.REDIRECT_REFUSED if is_redirect else ResultClass.NOT_MEASURED
        reason = f"opted out: {entry}"
        return Fetched(url=url, result=result, reason=reason, is_reached=False, is_opted_out=True)

    async def _exchange(self, hop: _Hop, line: HttpConnection) -> tuple[Fetched, str | None]:
        """Send one request and read the answer; raises one of FAILURES."""
        request = hop.request
        line.expire_at(min(hop.deadline_s, self._loop.time() + self._timeouts.first_byte_seconds))
        try:
            credential = self._credential_for(hop, line.address)
            hop.note_sent(credential)
            reply = await line.ask(self._written(hop, credential))
            if not reply.content.is_eof():
                line.expire_at(hop.deadline_s)
            is_conditional = request.etag is not None or request.modified_since is not None
            is_unchanged = reply.status == 304 and is_conditional
            result, reason = classify_status(reply.status, request.method)
            if is_unchanged:
                result, reason = ResultClass.OK, ""
            body: bytes | None = None
            is_part = False
            needs_any = request.needs_any_body or request.method == "POST"
            is_wanted = needs_any and reply.status not in REDIRECTS
            unread = unread_coding(reply)
            if unread is not None and not request.is_head_enough:
                result, reason = unread if result is ResultClass.OK and not is_unchanged else (result, reason)
            elif result is ResultClass.OK and request.is_part_enough:
                body, is_part = await read_beginning(reply, request.max_bytes, reply.counter)
            elif (result is ResultClass.OK or is_wanted) and not request.is_head_enough:
                if request.is_enough is not None and media_type(reply.headers) == EVENT_STREAM:
                    is_enough = partial(self._is_enough, hop, line.address, request.is_enough)
                    body, is_part = await read_until(reply, request.max_bytes, reply.counter, is_enough)
                else:
                    body = await read_bounded(reply, request.max_bytes, reply.counter)
                if body is None:
                    result, reason = too_large(request.max_bytes)
            page = await _error_page(reply, body) if reply.status == BAD_REQUEST else b""
            is_certificate_refused = hop.url.scheme == "https" and is_certificate_page(page)
            if is_certificate_refused:
                result, reason = ResultClass.GATED, f"HTTP {BAD_REQUEST}: {WANTS_CERTIFICATE}"
        except BaseException:
            self._lines.cut(line)
            raise
        ended_s = perf_counter()
        (self._lines.cut if is_part else self._lines.give_back)(line)
        fetched = Fetched(
            url=hop.url,
            result=result,
            reason=reason,
            body=body or b"",
            latency_ms=in_ms(ended_s - hop.began_s),
            etag=echoable(reply.headers.get("ETag"), MAX_ETAG_CHARS),
            last_modified=echoable(reply.headers.get("Last-Modified"), MAX_TIME_CHARS),
            is_part=is_part,
            is_body_unread=body is None,
            is_unchanged=is_unchanged,
            allow=reply.headers.get("Allow", ""),
            phases=phases_of(line, ended_s),
            address=line.address,
            tried=line.tried,
            certificate_expires_at=line.certificate_expires_at,
            credential=None if credential is None else credential.name,
            is_certificate_refused=is_certificate_refused,
            is_head_too_large=reply.status in HEAD_TOO_LARGE or is_header_page(page),
            scrubber=self._scrubber_at(hop, line.address),
            **read_head(reply),
        )
        return fetched, reply.headers.get("Location") if reply.status in REDIRECTS else None

    def _is_enough(
        self, hop: _Hop, address: Address, is_enough: Callable[[bytes, Scrubber], bool], piece: bytes
    ) -> bool:
        # A token may change while the stream is open.
        return is_enough(piece, self._scrubber_at(hop, address))

    def _credential_for(self, hop: _Hop, address: Address) -> Credential | None:
        """Return the credential that goes to this place, over TLS or to an allowed private network."""
        credential = hop.credential
        if credential is None:
            return None
        return credential if self._keeps_secrets(hop.url, address) else None

    def _keeps_secrets(self, url: URL, address: Address | None) -> bool:
        """Return whether a secret may be sent there: over TLS, or to an allowed private network."""
        return url.scheme == "https" or (address is not None and self._is_private(address))

    def _written(self, hop: _Hop, credential: Credential | None) -> bytes:
        """Return a request in its wire form; InvalidValue for invalid headers."""
        url, request = hop.url, hop.request
        headers = request.headers
        if hop.is_redirect and request.credential is not None and credential is None:
            # A session of the credential's server may be as secret as the credential.
            headers = {name: headers[name] for name in headers if name.lower() in HARMLESS_HEADERS}
        fields = accept_field(request.accept) + header_fields(headers, "headers")
        target = url.raw_path_qs
        if credential is not None:
            target = credential.request_target(target, request.card_schemes)
        if credential is not None and (header := credential.header(request.card_schemes)) is not None:
            fields += self._credential_field(credential.name, header)
        # A value that came from a peer, or from stored memory, may be an invalid header.
        if etag := echoable(request.etag, MAX_ETAG_CHARS):
            fields += f"If-None-Match: {etag}\r\n"
        elif modified := echoable(request.modified_since, MAX_TIME_CHARS):
            fields += f"If-Modified-Since: {modified}\r\n"
        if request.body is not None:
            fields += f"Content-Length: {len(request.body)}\r\n"
        place = f"{request.method} {target} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
        head = f"{place}{self._common_header}{fields}\r\n"
        return head.encode("ascii") + (request.body or b"")

    def _credential_field(self, name: str, header: tuple[str, str]) -> str:
        """Return the header of a credential in its wire form; it is checked once for each value."""
        known = self._credential_fields.get(name)
        if known is None or known[0] != header:
            known = header, header_fields(dict([header]), f"credentials.{name}")
            self._credential_fields[name] = known
        return known[1]


def _owner(request: Request, credential: Credential | None) -> str:
    """Return whose connections a request uses; empty: those of all requests to its origin.

    A key may belong to a folder of its origin, like a credential of a path.
    """
    if request.own_secret is not None:
        return f"key {request.own_secret}"
    return "" if credential is None or credential.shares_connections else credential.name


def _has_plain_secret(hop: _Hop) -> bool:
    """Return whether a request carries a secret without TLS."""
    request = hop.request
    has_secret = hop.credential is not None or request.has_secret or request.own_secret is not None
    return has_secret and hop.url.scheme == "http"


def _refusal(line: HttpConnection, *, is_new: bool) -> str | None:
    """Return why no secret may be sent over a connection without TLS; None if it may.

    Any user can listen on a port of this machine while its usual server is down.
    """
    if line.has_trusted_server:
        return None
    refusal = IN_THIS_PROCESS.refusal(*line.ends(), is_new=is_new)
    line.has_trusted_server = refusal is None
    return refusal


def _why_withheld(hop: _Hop, credential: Credential) -> str:
    """Return why a request's credential was not sent to the present URL."""
    if hop.credential is None:
        return f"redirected to where credential {credential.name} is not sent"
    return f"credential {credential.name} is sent over TLS, or to a private network of networks.allow"


async def _error_page(reply: ReplyHead, body: bytes | None) -> bytes:
    """Return the beginning of the page of an answer with status 400, as of nginx; empty if it is no HTML."""
    if media_type(reply.headers) != "text/html":
        return b""
    return body or (await read_beginning(reply, MAX_ERROR_PAGE_BYTES, reply.counter))[0]


def _is_private(address: Address, *, networks: Sequence[Network]) -> bool:
    """Return whether an address is private, and lies in an allowed network."""
    return is_in(address, networks) and vet_address(address) is not None
