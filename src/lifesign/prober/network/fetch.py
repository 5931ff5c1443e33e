"""One request to a peer that may be hostile.

The connector first connects to a vetted address: most targets of a directory have no address or nothing
listens there. Redirects are followed here, and each is vetted again. Bytes and seconds are limited. A fault
of the peer is a `ResultClass`, never an exception.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

import aiohttp
from yarl import URL

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.secret import NO_SECRETS, SEPARATOR, Scrubber, scrubber_of, united
from lifesign.domain.mcp.conversation import EVENT_STREAM
from lifesign.domain.net.allowed_addresses import (
    Address,
    AddressRefused,
    Network,
    TargetUrl,
    is_in,
    vet_address,
)
from lifesign.domain.observation.results import MAX_ETAG_CHARS, Phases, ResultClass
from lifesign.errors import InvalidValue
from lifesign.http_client.address_guard import AddressGuard
from lifesign.http_client.answer import (
    Answer,
    classify_status,
    head_without_secrets,
    in_ms,
    read_head,
    unread_coding,
)
from lifesign.http_client.bounded_body import read_beginning, read_bounded, read_until
from lifesign.http_client.failures import (
    FAILURES,
    MAX_CERTIFICATE_PAGE_BYTES,
    certificate_alert,
    classify_failure,
    is_certificate_page,
    too_large,
)
from lifesign.http_client.headers import media_type
from lifesign.http_client.redirects import REDIRECTS, next_hop
from lifesign.prober.network.connection import HttpConnection, ReplyHead
from lifesign.prober.network.connection_pool import ConnectionPool
from lifesign.prober.network.connector import Unreached, VettedConnector
from lifesign.prober.network.exclusion_list import OptOuts
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.secrets.client_tls import ClientTls
from lifesign.prober.secrets.credential_store import Credential, CredentialStore

if TYPE_CHECKING:
    from lifesign.prober.definition.pacing_settings import Timeouts

Method = Literal["GET", "POST", "OPTIONS", "DELETE"]

HARMLESS_HEADERS: Final = frozenset({
    "accept", "content-type", "a2a-version", "a2a-extensions", "mcp-method", "mcp-protocol-version",
})  # fmt: skip
"""Headers that may be sent to another origin.

Any other header may contain a secret and stays with its origin.
"""
KEEPS_METHOD: Final = frozenset({307, 308})
"""A POST that is redirected otherwise would become a GET."""
ACCEPT_ENCODING: Final = "gzip, deflate"
"""Encodings that aiohttp unpacks in pieces of bounded size without further packages."""
MAX_ADDRESSES: Final = 4_096
"""Maximum number of addresses of which it is cached whether they are private."""
MAX_ACCEPTED: Final = 16
"""Maximum number of cached `Accept` fields."""
BAD_REQUEST: Final = 400
WANTS_CERTIFICATE: Final = "it demands a client certificate, or does not accept that of the request"
UNSEARCHED: Final = "the answer has too many escapes to be searched for secrets of the prober"
MAX_TIME_CHARS: Final = 64
"""Maximum length of a time in a header."""

_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(r"[ -~]*")
_BROKE_WHILE_IDLE: Final = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
"""Errors of a connection that the server closed while it was idle. They are normal."""


@fast_dataclass(kw_only=True)
class Request:
    """One HTTP request, with its limits of size and time."""

    url: URL
    method: Method = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers besides those of every request."""
    etag: str | None = None
    """ETag of the known version: the answer that it has not changed is `ok`, without a body."""
    modified_since: str | None = None
    """The same by `Last-Modified`, as sent, if there is no entity tag."""
    max_bytes: int
    """The largest body that is read, after decompression."""
    is_head_enough: bool = False
    """Whether the body is not needed: it is not read."""
    needs_any_body: bool = False
    """Whether a GET reads the body with every status except redirects; else only if the result is `ok`."""
    is_part_enough: bool = False
    """Whether the beginning of a body is enough: its first `max_bytes`, or the bytes until it broke off."""
    is_enough: Callable[[bytes], bool] | None = None
    """Called with each piece of an event stream: whether nothing more need be read; None: all is read."""
    deadline_s: float
    """Deadline on the event loop's clock; `total_seconds` from now if that is sooner."""
    may_leave_origin: bool = False
    """Whether a redirect may lead to another origin; from http to https of one host it always may."""
    accept: str = "application/json"
    credential: Credential | None = None
    """Sent as far as its scope allows, and never to another origin."""
    card_schemes: Sequence[str] = ()
    """Security schemes of the agent card, which name the place of an API key."""
    target: URL | None = None
    """URL of the probed target: its secrets are removed from answers of all origins."""
    own_secret: str | None = None
    """Secret in its headers that is no credential: it is removed from all answers."""
    is_shown: bool = False
    """Whether parts of the body are shown without invisible characters, which may split a secret."""
    has_secret: bool = False
    """Whether headers or body have a secret: sent over TLS, or to an allowed private network only."""
    tls: ClientTls | None = None
    """TLS settings of its connection; None: those of the credentials."""
    needs_new_connection: bool = False
    """Whether no open connection is used, so that all addresses are tried again."""
    kept_out: Callable[[URL], Awaitable[str | None]] | None = None
    """Called with the target of a redirect before it is followed: returns why it is excluded, None if it is
    not.
    """


@fast_dataclass(kw_only=True)
class Fetched(Answer):
    """Result of a request, with its answer."""

    etag: str | None = None
    """ETag as sent; None if it is too long for an observation."""
    last_modified: str | None = None
    """`Last-Modified`, as sent; None if it is too long to be a time."""
    is_part: bool = False
    """Whether `body` is only the beginning of the whole body."""
    is_body_unread: bool = False
    """Whether the body was not read, or dropped: `body` is empty."""
    is_unchanged: bool = False
    """Whether the server answered that nothing changed since `etag` or `modified_since` (304)."""
    phases: Phases | None = None
    """Phases of the last request; None if none was tried."""
    address: Address | None = None
    """Address of the last request."""
    certificate_expires_at: datetime | None = None
    """Expiry of the last connection's certificate, also if it is past; None without a trusted certificate."""
    is_reached: bool = True
    """Whether the request was sent: False if there was no connection, or none was tried."""
    is_resolver_fault: bool = False
    """Whether it failed because all name servers failed."""
    is_network_fault: bool = False
    """Whether it failed because name servers, this machine or its network are or may be at fault."""
    is_date_fault: bool = False
    """Whether only the date of the certificate was wrong, by this machine's calendar."""
    tried: tuple[Address, ...] = ()
    """Addresses to which no connection could be made, for this URL or for those that redirected to it.

    Another address may have accepted the connection afterwards. If the connection was used before, they were
    tried when it was made.
    """
    redirected_from: URL | None = None
    """URL of the request, if redirects led to `url`."""
    redirected_by: Address | None = None
    """Address that sent a redirect without TLS to another host; anybody on the route may have sent it."""
    is_opted_out: bool = False
    """Whether nothing was sent because of an opt-out."""
    allow: str = ""
    """The methods that `Allow` names, as sent (RFC 9110 10.2.1)."""
    credential: str | None = None
    """Name of the credential that the last request carried."""
    token_fault: str | None = None
    """Why there was no token: the request was sent without its credential, or with a rejected token."""
    is_certificate_refused: bool = False
    """Whether the server demands a client certificate, or refuses that of `credential`.

    It says so by a TLS alert, or by a page of nginx.
    """

    @property
    def is_foreign(self) -> bool:
        """Whether a redirect over plain HTTP led to another host, which may not belong to the target."""
        return self.redirected_by is not None


@dataclass(slots=True)
class _Hop:
    """One requested URL: the request's own, or the target of a redirect."""

    url: URL
    request: Request
    deadline_s: float
    """Deadline on the event loop's clock."""
    began_s: float
    """Start of the first hop, by the performance counter."""
    credential: Credential | None = None
    """The request's credential, if it covers `url`."""

    @property
    def is_redirect(self) -> bool:
        return self.url is not self.request.url


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
        hosts, both as targets and as destinations of cards and redirects. `credentials`: their secrets are
        removed from all answers.
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
        self._common_header = _header(
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
        hop = _Hop(request.url, request, deadline_s, perf_counter())
        followed = 0
        redirected_by: Address | None = None
        tried: tuple[Address, ...] = ()
        asked = [] if request.target is None else [request.target]
        own = scrubber_of(request.own_secret)
        while True:
            fetched, location = await self._ask(hop)
            if hop.is_redirect:
                tried = (*tried, *fetched.tried)
                fetched = replace(
                    fetched, redirected_from=request.url, redirected_by=redirected_by, tried=tried
                )
            # An origin that redirects may have passed on what it received.
            asked.append(hop.url)
            scrubber = self._credentials.scrubber_of(*asked) if self._credentials else NO_SECRETS
            if own:
                scrubber = united((own, scrubber))
            if scrubber:
                fetched = _scrubbed(fetched, scrubber, is_shown=request.is_shown)
            if location is None:
                return fetched
            target = await self._next_hop(hop, fetched, location, followed, scrubber)
            if isinstance(target, str):
                return replace(fetched, result=ResultClass.REDIRECT_REFUSED, reason=target)
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
        if self._loop.time() >= hop.deadline_s:
            reason = "no time was left"
            result = ResultClass.NOT_MEASURED
            return Fetched(url=hop.url, result=result, reason=reason, is_reached=False), None
        target = self._admitted(hop.url, is_redirect=hop.is_redirect)
        if isinstance(target, Fetched):
            return target, None
        # A POST is not sent twice: on a connection that breaks, its effect would be unknown.
        credential = hop.credential = _covering(hop)
        owner = "" if credential is None or credential.shares_connections else credential.name
        place = (target.scheme, target.host, target.port, owner)
        is_shared = hop.request.method == "GET" and not hop.request.needs_new_connection
        line = self._lines.waiting_at(place) if is_shared else None
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
            return _failed(hop.url, error, line, credential, self._tls_of(hop)), None

    async def _open(
        self, hop: _Hop, target: TargetUrl, credential: Credential | None
    ) -> HttpConnection | Fetched:
        """Return a new connection, or why there is none."""
        opened = await self.connector.open(target, hop.deadline_s, self._tls_of(hop))
        if isinstance(opened, Unreached):
            return _unreached(hop.url, opened, credential)
        self._lines.add(opened)
        if hop.request.has_secret and not self._keeps_secrets(hop.url, opened.address):
            self._lines.cut(opened)
            reason = "a secret is sent over TLS, or to a private network of networks.allow"
            result = ResultClass.BLOCKED_ADDRESS
            return Fetched(url=hop.url, result=result, reason=reason, is_reached=False)
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
                    is_enough = request.is_enough
                    body, is_part = await read_until(reply, request.max_bytes, reply.counter, is_enough)
                else:
                    body = await read_bounded(reply, request.max_bytes, reply.counter)
                if body is None:
                    result, reason = too_large(request.max_bytes)
            is_certificate_refused = hop.url.scheme == "https" and await _is_certificate_refused(reply, body)
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
            etag=_short(reply.headers.get("ETag"), MAX_ETAG_CHARS),
            last_modified=_short(reply.headers.get("Last-Modified"), MAX_TIME_CHARS),
            is_part=is_part,
            is_body_unread=body is None,
            is_unchanged=is_unchanged,
            allow=reply.headers.get("Allow", ""),
            phases=_phases(line, ended_s),
            address=line.address,
            tried=line.tried,
            certificate_expires_at=line.certificate_expires_at,
            credential=None if credential is None else credential.name,
            is_certificate_refused=is_certificate_refused,
            **read_head(reply),
        )
        return fetched, reply.headers.get("Location") if reply.status in REDIRECTS else None

    def _credential_for(self, hop: _Hop, address: Address) -> Credential | None:
        """Return the credential that goes to this place, over TLS or to an allowed private network."""
        credential = hop.credential
        if credential is None:
            return None
        return credential if self._keeps_secrets(hop.url, address) else None

    def _keeps_secrets(self, url: URL, address: Address) -> bool:
        """Return whether a secret may be sent there: over TLS, or to an allowed private network."""
        return url.scheme == "https" or self._is_private(address)

    def _written(self, hop: _Hop, credential: Credential | None) -> bytes:
        """Return a request in its wire form; InvalidValue for invalid headers."""
        url, request = hop.url, hop.request
        fields = _accept_header(request.accept) + _header(request.headers, "headers")
        target = url.raw_path_qs
        if credential is not None:
            target = credential.request_target(target, request.card_schemes)
        if credential is not None and (header := credential.header(request.card_schemes)) is not None:
            fields += self._credential_field(credential.name, header)
        # A value that came from a peer, or from stored memory, may be an invalid header.
        if etag := _short(request.etag, MAX_ETAG_CHARS):
            fields += f"If-None-Match: {etag}\r\n"
        elif modified := _short(request.modified_since, MAX_TIME_CHARS):
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
            known = header, _header(dict([header]), f"credentials.{name}")
            self._credential_fields[name] = known
        return known[1]


async def _is_certificate_refused(reply: ReplyHead, body: bytes | None) -> bool:
    """Return whether an answer is that of nginx to a client without an accepted certificate."""
    if reply.status != BAD_REQUEST or media_type(reply.headers) != "text/html":
        return False
    page = body or (await read_beginning(reply, MAX_CERTIFICATE_PAGE_BYTES, reply.counter))[0]
    return is_certificate_page(page)


def _is_private(address: Address, *, networks: Sequence[Network]) -> bool:
    """Return whether an address is private, and lies in an allowed network."""
    return is_in(address, networks) and vet_address(address) is not None


def _covering(hop: _Hop) -> Credential | None:
    """Return the credential of a request if it covers the present URL."""
    credential = hop.request.credential
    return credential if credential is not None and credential.scope.covers(str(hop.url)) else None


def _header(fields: Mapping[str, str], setting: str) -> str:
    """Return header fields in their wire form; InvalidValue for line breaks in them."""
    for name, value in fields.items():
        if not (_FIELD_NAME.fullmatch(name) and _FIELD_VALUE.fullmatch(value)):
            raise InvalidValue(setting, None, "header fields of printable ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())


@lru_cache(maxsize=MAX_ACCEPTED)
def _accept_header(types: str) -> str:
    """Return the `Accept` field: the same few values in all requests."""
    return _header({"Accept": types}, "headers")


def _scrubbed(fetched: Fetched, scrubber: Scrubber, *, is_shown: bool) -> Fetched:
    """Return an answer without the secrets that the peer may have sent back."""
    if is_shown and (shown := scrubber.clean_shown(fetched.body)) != fetched.body:
        fetched = replace(fetched, body=shown)
    usual = SEPARATOR.join((fetched.reason, fetched.content_type, fetched.allow))
    body = fetched.body
    if fetched.etag or fetched.last_modified or fetched.status_links or fetched.challenges:
        texts = (fetched.etag or "", fetched.last_modified or "", *fetched.status_links, *fetched.challenges)
        body = SEPARATOR.join(("", *texts)).encode("utf-8", "surrogatepass") + SEPARATOR.encode() + body
    if not (scrubber.may_be_in_cached(usual) or scrubber.may_be_in(body)):
        # Nearly all answers: a copy takes longer than the search.
        return fetched
    cleaned = scrubber.cleaned(fetched.body)
    if cleaned is None and fetched.result is ResultClass.OK:
        # What is wrong with the answer is unknown: it is not at fault.
        fetched = replace(fetched, result=ResultClass.NOT_MEASURED, reason=UNSEARCHED)
    return replace(
        fetched,
        **head_without_secrets(fetched, scrubber),
        body=cleaned or b"",
        is_body_unread=fetched.is_body_unread or cleaned is None,
        etag=None if fetched.etag is None else scrubber.clean_text(fetched.etag),
        last_modified=None if fetched.last_modified is None else scrubber.clean_text(fetched.last_modified),
        allow=scrubber.clean_text(fetched.allow),
    )


def _short(text: str | None, max_chars: int) -> str | None:
    """Return a value that can be sent back unchanged; None if it is too long or has odd characters."""
    return text if text is not None and len(text) <= max_chars and _FIELD_VALUE.fullmatch(text) else None


def _phases(line: HttpConnection, ended_s: float) -> Phases:
    """Return the time of each phase of the last request."""
    is_first = line.asked == 1
    first_byte_at_s = line.first_byte_at_s or ended_s
    return Phases(
        dns_ms=line.dns_ms if is_first else None,
        connect_ms=line.connect_ms if is_first else None,
        tls_ms=line.tls_ms if is_first else None,
        first_byte_ms=in_ms(max(0.0, first_byte_at_s - line.sent_at_s)),
        last_byte_ms=in_ms(max(0.0, ended_s - first_byte_at_s)),
    )


def _unreached(url: URL, why: Unreached, credential: Credential | None) -> Fetched:
    is_ours = why.is_certificate_refused and credential is not None
    return Fetched(
        url=url,
        result=why.result,
        reason=why.reason,
        phases=why.phases,
        address=why.address,
        certificate_expires_at=why.certificate_expires_at,
        credential=credential.name if is_ours and credential is not None else None,
        is_certificate_refused=why.is_certificate_refused,
        is_reached=why.is_certificate_refused,
        is_resolver_fault=why.is_resolver_fault,
        is_network_fault=why.is_resolver_fault or why.is_given_up or why.is_local_fault,
        is_date_fault=why.is_date_fault,
        tried=why.tried,
    )


def _failed(
    url: URL,
    error: BaseException,
    line: HttpConnection | None,
    credential: Credential | None,
    tls: ClientTls | None = None,
) -> Fetched:
    """Return the failure after a connection was established."""
    if line is None:
        result, reason = classify_failure(url, error)
        return Fetched(url=url, result=result, reason=reason)
    # A connection that the prober itself cancelled did not break.
    result, reason = classify_failure(url, TimeoutError() if line.is_late else error)
    refusal = certificate_alert(error, has_sent_one=credential is not None and credential.has_certificate)
    if refusal is None and tls is not None and line.first_byte_at_s is None and not line.is_late:
        # With TLS 1.3, a server looks at the certificate after the handshake, and some send no alert.
        refusal = tls.expiry_text
    if refusal is not None:
        result, reason = ResultClass.GATED, refusal
    is_first = line.asked == 1
    return Fetched(
        url=url,
        result=result,
        reason=reason,
        phases=Phases(
            dns_ms=line.dns_ms if is_first else None,
            connect_ms=line.connect_ms if is_first else None,
            tls_ms=line.tls_ms if is_first else None,
        ),
        address=line.address,
        tried=line.tried,
        certificate_expires_at=line.certificate_expires_at,
        credential=credential.name if refusal is not None and credential is not None else None,
        is_certificate_refused=refusal is not None,
    )
