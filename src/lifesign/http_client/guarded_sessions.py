"""aiohttp sessions for hosts that strangers chose: each address is vetted while connecting (SSRF guard).

An agent chooses the URL of its card and the targets of its redirects, possibly hosts that only this machine
can reach. So only public addresses and allowed networks are contacted. One host may be trusted: the host that
the user typed may have any address.
"""

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from lifesign.domain.net.allowed_addresses import AddressRefused, Network
from lifesign.http_client.address_guard import AddressGuard, PrivateAddressRefused
from lifesign.http_client.counted_sessions import ByteCountingConnector, counting_session
from lifesign.http_client.system_resolver import SystemResolver
from lifesign.loopback.listeners import LoopbackListeners

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

MAX_CONNECTIONS: Final = 4
"""Maximum of one session."""


class GuardedSessions:
    """The HTTP sessions of one check, which contact only allowed addresses. A context manager."""

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        *,
        trusted: URL | None = None,
        session: aiohttp.ClientSession | None = None,
        listeners: LoopbackListeners | None = None,
    ) -> None:
        """`allowed`: networks that may be contacted besides the public internet.

        The host of `trusted` may be anywhere. `session` sends the requests to the origin of `trusted`, and no
        others: it may bear secrets, which another port of the host must not get. `listeners`: as for
        `ByteCountingConnector`.
        """
        self._guard = AddressGuard(allowed)
        self._trusted_host = None if trusted is None else trusted.raw_host
        self._trusted_origin = None if trusted is None else trusted.origin()
        self._given = session
        self._listeners = listeners
        self._own: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Return itself; a session is opened by the first request that needs one."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections, but not those of a session that the caller passed in."""
        if self._own is not None:
            await self._own.close()

    def session_for(self, url: URL) -> aiohttp.ClientSession:
        """Return the session that sends requests to the origin of `url`."""
        if self._given is not None and url.origin() == self._trusted_origin:
            return self._given
        if self._own is None:
            resolver = GuardedResolver(self._guard, self._trusted_host)
            self._own = counting_session(
                GuardedConnector(self._guard, resolver, self._trusted_host, listeners=self._listeners)
            )
        return self._own


class GuardedResolver(AbstractResolver):
    """Resolver for aiohttp that returns only addresses which may be contacted."""

    def __init__(self, guard: AddressGuard, trusted_host: str | None = None) -> None:
        self._guard = guard
        self._trusted_host = trusted_host
        self._names = SystemResolver()
        self._found: list[ResolveResult] = []
        """The addresses of the trusted host."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return a name's allowed addresses; PrivateAddressRefused if none is, OSError if it has none."""
        if host == self._trusted_host:
            if not self._found:
                self._found = await self._names.resolve(host, port, family)
            return [{**found, "port": port} for found in self._found]
        found = {
            ip_address(result["host"]): result for result in await self._names.resolve(host, port, family)
        }
        vetted, refused = self._guard.vetted(found)
        if not vetted and refused is not None:
            raise PrivateAddressRefused(host, refused)
        return [{**found[address], "port": port} for address in vetted]

    def pin_address(self, address: str) -> None:
        """Use only this address of the trusted host from now on, because it has answered.

        Without this, its name could lead to another machine as soon as it redirects to another port.
        """
        self._found = [found for found in self._found if found["host"] == address] or self._found

    async def close(self) -> None:
        """Close the resolver."""
        await self._names.close()


class GuardedConnector(ByteCountingConnector):
    """Connector for aiohttp that connects only to the trusted host and to allowed addresses."""

    def __init__(
        self,
        guard: AddressGuard,
        resolver: GuardedResolver,
        trusted_host: str | None = None,
        *,
        listeners: LoopbackListeners | None = None,
    ) -> None:
        # The resolver itself keeps the trusted host's addresses, for all its ports alike.
        super().__init__(limit=MAX_CONNECTIONS, resolver=resolver, use_dns_cache=False, listeners=listeners)
        self._guard = guard
        self._guarded_resolver = resolver
        self._trusted_host = trusted_host

    async def connect(
        self,
        req: "ClientRequest",
        traces: "list[Trace]",
        timeout: "ClientTimeout",  # noqa: ASYNC109 - as aiohttp has it
    ) -> "Connection":
        """Return a connection; PrivateAddressRefused if the address must not be contacted."""
        host = req.url.raw_host or ""
        if host != self._trusted_host:
            target = self._guard.vet_url(req.url.origin())
            if isinstance(target, AddressRefused):
                raise PrivateAddressRefused(host, target)
            return await super().connect(req, traces, timeout)
        connection = await super().connect(req, traces, timeout)
        peer = None if connection.transport is None else connection.transport.get_extra_info("peername")
        if peer:
            self._guarded_resolver.pin_address(peer[0])
        return connection
