"""Connections to vetted addresses, and to no others.

The name is looked up once, each of its addresses is vetted (`http_client/address_guard.py`), and the
connection goes to a vetted address. Proxies and the environment are ignored. Each phase has its own deadline,
and is timed; a failure is a value.
"""

import asyncio
import errno
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Final

from lifesign.domain.net.allowed_addresses import Address, TargetUrl
from lifesign.domain.observation.results import Phases, ResultClass
from lifesign.http_client.address_guard import AddressGuard
from lifesign.http_client.answer import in_ms
from lifesign.http_client.failures import certificate_alert, error_text
from lifesign.prober.network.address_order import AddressOrder
from lifesign.prober.network.connection import HttpConnection
from lifesign.prober.network.host_limiter import admit
from lifesign.prober.network.resolver import NoAddress, Resolver
from lifesign.prober.network.source_address import last_family
from lifesign.prober.secrets.client_tls import ClientTls

if TYPE_CHECKING:
    from lifesign.prober.definition.pacing_settings import Timeouts

CLOSE_SECONDS: Final = 1.0
"""How long a TLS peer has for its close_notify."""
MAX_CERTIFICATE_TIMES: Final = 4096
"""Maximum number of cached expiry times of certificates, since reading one is slow."""

_NO_RESOURCES: Final = frozenset({
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM,
})  # fmt: skip
"""Errors of this machine's own firewall or routing."""
_UNREACHABLE_ERRNOS: Final = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
)
_CERTIFICATE_IS_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED"""
_WRONG_DATES: Final = frozenset({9, _CERTIFICATE_IS_EXPIRED})
"""OpenSSL errors for which only the date of a certificate is wrong."""

_HUNG_UP: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors of a handshake that the server ended without a reason. Some servers send no alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreached:
    """Reason why no connection could be made. No request was sent."""

    result: ResultClass
    reason: str
    """For people, in ASCII."""
    address: Address | None = None
    """The one that was tried last; None if none was."""
    tried: tuple[Address, ...] = ()
    """Addresses to which no connection could be made; `address` is not among them if only TLS failed."""
    phases: Phases | None = None
    certificate_expires_at: datetime | None = None
    """End of validity of a certificate that is refused because it expired; None for all other failures."""
    is_resolver_fault: bool = False
    """Whether the prober's name servers are at fault."""
    is_given_up: bool = False
    """Whether the name could not be looked up in the remaining time."""
    is_local_fault: bool = False
    """Whether this machine or its network is at fault, as far as known."""
    is_date_fault: bool = False
    """Whether only the date of a certificate is wrong, by this machine's calendar."""
    is_certificate_refused: bool = False
    """Whether the server demands a client certificate, or refuses ours."""


class VettedConnector:
    """Makes connections, only to addresses that may be contacted."""

    def __init__(self, resolver: Resolver, timeouts: "Timeouts", guard: AddressGuard) -> None:
        """`guard` vets each address before the connection."""
        self._loop = asyncio.get_running_loop()
        self._resolver = resolver
        self._timeouts = timeouts
        self.guard = guard
        self._public_tls = ClientTls()
        self._order = AddressOrder()

    async def open(
        self, target: TargetUrl, deadline_s: float, tls: ClientTls | None = None
    ) -> HttpConnection | Unreached:
        """Connect until `deadline_s` (on the loop's clock) and return the connection, or the failure.

        `tls`: that of a credential; None for the usual one. AddressBusy passes through to the code that
        schedules the probes.
        """
        dns_ms = None
        found: Sequence[Address] | NoAddress | None = None
        if target.address is not None:
            found = (target.address,)
        elif (found := self._resolver.remembered(target.host)) is None:
            began_s = perf_counter()
            found = await self._resolver.resolve(target.host, deadline_s)
            dns_ms = in_ms(perf_counter() - began_s)
        if isinstance(found, NoAddress):
            return _without_address(target, found, Phases(dns_ms=dns_ms))
        vetted, refused = self.guard.vetted(found)
        if not vetted:
            reason = "" if refused is None else refused.reason
            return Unreached(result=ResultClass.BLOCKED_ADDRESS, reason=reason, phases=Phases(dns_ms=dns_ms))
        last = last_family(vetted)
        addresses = self._order.of(target.host, vetted, None if last is None else last.version)
        unrouted = last.version if last is not None and not last.has_route else None
        opened = await self._connect(target, addresses, dns_ms, deadline_s, unrouted)
        answered = opened.address if isinstance(opened, HttpConnection) else None
        self._order.note(target.host, vetted, opened.tried, answered)
        if isinstance(opened, HttpConnection) and target.scheme == "https":
            encrypted = await self._encrypt(target, opened, deadline_s, tls or self._public_tls)
            if isinstance(encrypted, Unreached):
                return replace(encrypted, tried=opened.tried)
        return opened

    async def _connect(
        self,
        target: TargetUrl,
        addresses: Sequence[Address],
        dns_ms: float | None,
        deadline_s: float,
        unrouted: int | None,
    ) -> HttpConnection | Unreached:
        """Connect to the first of the addresses that accepts the connection.

        `unrouted`: IP version to which no route leads; its addresses fail at once, and take no share of the
        time. None: there is none.
        """
        began_s = perf_counter()
        last_at_s = min(deadline_s, self._loop.time() + self._timeouts.connect_seconds)
        failed: Unreached | None = None
        for number, address in enumerate(addresses):
            admit(address)
            now_s = self._loop.time()
            try:
                # An address that does not answer leaves time for the next ones.
                left = sum(each.version != unrouted for each in addresses[number:])
                async with asyncio.timeout_at(now_s + (last_at_s - now_s) / max(1, left)):
                    _, line = await self._loop.create_connection(self._new_line, str(address), target.port)
            except (OSError, TimeoutError) as error:
                phases = Phases(dns_ms=dns_ms, connect_ms=in_ms(perf_counter() - began_s))
                why = _unconnected(target, address, error, phases)
                # An error of the agent's side is more informative than a local one.
                if failed is None or failed.is_local_fault:
                    failed = why
                continue
            line.place = (target.scheme, target.host, target.port, "")
            line.address = address
            line.tried = tuple(addresses[:number])
            line.dns_ms = dns_ms
            line.connect_ms = in_ms(perf_counter() - began_s)
            return line
        assert failed is not None  # noqa: S101 - there is an address at least
        return replace(failed, tried=tuple(addresses))

    async def _encrypt(
        self, target: TargetUrl, line: HttpConnection, deadline_s: float, tls: ClientTls
    ) -> HttpConnection | Unreached:
        began_s = perf_counter()
        last_at_s = min(deadline_s, self._loop.time() + self._timeouts.tls_seconds)
        try:
            async with asyncio.timeout_at(last_at_s):
                certificate = await self._start_tls(target, line, tls.context)
        except (OSError, TimeoutError, ValueError) as error:
            line.abort()
            phases = Phases(
                dns_ms=line.dns_ms, connect_ms=line.connect_ms, tls_ms=in_ms(perf_counter() - began_s)
            )
            refusal = certificate_alert(error, has_sent_one=tls.certificate is not None)
            if refusal is None and isinstance(error, _HUNG_UP):
                refusal = tls.expiry_text
            if refusal is not None:
                return _refused(line.address, refusal, phases)
            expired_at = await self._expired_at(target, line.address, error, deadline_s, tls)
            return _unencrypted(target, line.address, error, phases, expired_at)
        except BaseException:
            line.abort()
            raise
        line.certificate_expires_at = certificate
        line.tls_ms = in_ms(perf_counter() - began_s)
        return line

    async def _start_tls(
        self, target: TargetUrl, line: HttpConnection, tls: ssl.SSLContext
    ) -> datetime | None:
        """Encrypt a connection; return when the certificate ends."""
        plain = line.transport
        if plain is None:
            raise ConnectionResetError(errno.ECONNRESET, "closed before the handshake")
        encrypted = await self._loop.start_tls(
            plain, line, tls, server_hostname=target.host, ssl_shutdown_timeout=CLOSE_SECONDS
        )
        if encrypted is None:
            raise ConnectionResetError(errno.ECONNRESET, "closed during the handshake")
        line.connection_made(encrypted)
        certificate = encrypted.get_extra_info("peercert") or {}
        ends = certificate.get("notAfter")
        return None if ends is None else _read_certificate_time(ends)

    async def _expired_at(
        self, target: TargetUrl, address: Address, error: BaseException, deadline_s: float, tls: ClientTls
    ) -> datetime | None:
        """Return when a certificate that was refused as expired had ended; it is requested once more.

        All but the times is checked again, and nothing is sent. A failed handshake shows no certificate.
        """
        if getattr(error, "verify_code", None) != _CERTIFICATE_IS_EXPIRED:
            return None
        line = None
        try:
            async with asyncio.timeout_at(min(deadline_s, self._loop.time() + self._timeouts.tls_seconds)):
                _, line = await self._loop.create_connection(self._new_line, str(address), target.port)
                ends_at = await self._start_tls(target, line, tls.context_at_any_time)
        except (OSError, TimeoutError, ValueError):
            return None
        finally:
            if line is not None:
                line.abort()
        # Else it is one above it that has expired.
        return ends_at if ends_at is not None and ends_at <= datetime.now(UTC) else None

    def _new_line(self) -> HttpConnection:
        return HttpConnection(self._loop)


@lru_cache(maxsize=MAX_CERTIFICATE_TIMES)
def _read_certificate_time(text: str) -> datetime:
    """Return a time in OpenSSL's notation.

    Cached: a host with many agents has one certificate for many of them.
    """
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


def _without_address(target: TargetUrl, why: NoAddress, phases: Phases) -> Unreached:
    if why.is_given_up:
        # Finding the faulty side would take longer than the remaining time.
        reason = f"the host name {target.host} {why.reason}"
        return Unreached(result=ResultClass.NOT_MEASURED, reason=reason, phases=phases, is_given_up=True)
    if why.is_resolver_fault:
        reason = f"the address of {target.host} is not known: {why.reason}"
        return Unreached(result=ResultClass.INTERNAL, reason=reason, phases=phases, is_resolver_fault=True)
    reason = f"the host name {target.host} leads nowhere: {why.reason}"
    return Unreached(result=ResultClass.DNS_FAILURE, reason=reason, phases=phases)


def _unconnected(target: TargetUrl, address: Address, error: OSError, phases: Phases) -> Unreached:
    place = f"{target.host}:{target.port}"
    code = error.errno
    is_local = False
    if isinstance(error, TimeoutError):
        found = ResultClass.TIMEOUT, f"no connection to {place} in time"
    elif code in _NO_RESOURCES:
        found = ResultClass.INTERNAL, f"this machine cannot connect: {error_text(error)}"
        is_local = True
    elif code in _UNREACHABLE_ERRNOS:
        found = ResultClass.REFUSED, f"no way leads from here to {place}: {error_text(error)}"
        is_local = True
    else:
        found = ResultClass.REFUSED, f"no connection to {place}: {error_text(error)}"
    return Unreached(
        result=found[0], reason=found[1], address=address, phases=phases, is_local_fault=is_local
    )


def _refused(address: Address, reason: str, phases: Phases) -> Unreached:
    return Unreached(
        result=ResultClass.GATED, reason=reason, address=address, phases=phases, is_certificate_refused=True
    )


def _unencrypted(
    target: TargetUrl, address: Address, error: BaseException, phases: Phases, expired_at: datetime | None
) -> Unreached:
    place = f"{target.host}:{target.port}"
    is_date_fault = getattr(error, "verify_code", None) in _WRONG_DATES
    if isinstance(error, TimeoutError):
        result, reason = ResultClass.TIMEOUT, f"no TLS handshake with {place} in time"
    elif expired_at is not None:
        result = ResultClass.TLS_FAILURE
        reason = f"the certificate of {place} expired at {expired_at:%Y-%m-%d %H:%M} UTC"
    else:
        why = getattr(error, "verify_message", "") or error_text(error)
        result, reason = ResultClass.TLS_FAILURE, f"no trusted TLS connection to {place}: {why}"
    return Unreached(
        result=result,
        reason=reason,
        address=address,
        phases=phases,
        certificate_expires_at=expired_at,
        is_date_fault=is_date_fault,
    )
