"""Whom may an agent lead us to?

Whoever asks names a host, which may be anywhere, also on this machine. Where that host leads is the choice of
a stranger, and through us it would reach what no stranger reaches. So every other host is asked at public
addresses alone, or in networks that were allowed. That is judged while connecting, on the very addresses that
are connected to: a name that leads elsewhere a moment later changes nothing.
"""

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agent_health.client.redirects import MAX_SHOWN_CHARS

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from agent_health.target_address import Network, Refused

MAX_CONNECTIONS: Final = 4
"""Of the session that is opened for one check."""


class LedInward(aiohttp.ClientError):
    """An agent led to where we do not follow; nothing was sent there."""

    def __init__(self, host: str, why: "Refused") -> None:
        """`host` is quoted in ASCII."""
        super().__init__(f"the agent leads to {host[:MAX_SHOWN_CHARS]!a}, which is not asked: {why.reason}")


class Reach:
    """Sessions that ask the host that was named wherever it is, and any other only where that may be."""

    def __init__(
        self, named: URL, allowed: "Sequence[Network]" = (), session: aiohttp.ClientSession | None = None
    ) -> None:
        """`session` asks the named host in place of ours, and nobody else: it may bear secrets."""
        self._host = named.raw_host or ""
        self._allowed = tuple(allowed)
        self._given = session
        self._own: aiohttp.ClientSession | None = None
        self._resolver: JudgingResolver | None = None

    async def __aenter__(self) -> Self:
        """Return itself; no session is opened before one is needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of our own session; one that was given stays open."""
        if self._own is not None:
            await self._own.close()
        if self._resolver is not None:
            await self._resolver.close()

    def session_for(self, url: URL) -> aiohttp.ClientSession:
        """Return what asks `url`. Ours has no cookies, and no proxies or credentials of the environment."""
        if self._given is not None and url.raw_host == self._host:
            return self._given
        if self._own is None:
            self._resolver = JudgingResolver(self._host, self._allowed)
            self._own = aiohttp.ClientSession(
                connector=JudgingConnector(self._resolver, self._host, self._allowed),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._own


class JudgingResolver(AbstractResolver):
    """Finds the addresses of a name that may be connected to."""

    def __init__(self, named: str, allowed: "Sequence[Network]") -> None:
        """`named` is the host that may be anywhere."""
        self._named = named
        self._allowed = allowed
        self._names = aiohttp.DefaultResolver()
        self._found: list[ResolveResult] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return at least one address; OSError if the name has none, LedInward if none may be asked."""
        if host == self._named:
            if not self._found:
                self._found = await self._names.resolve(host, port, family)
            return [{**found, "port": port} for found in self._found]
        # Most agents lead nowhere else, and need not pay for it.
        from agent_health.target_address import judge_address  # noqa: PLC0415

        judged: list[ResolveResult] = []
        refused: Refused | None = None
        for found in await self._names.resolve(host, port, family):
            reason = judge_address(ip_address(found["host"]), self._allowed)
            refused = refused or reason
            if reason is None:
                judged.append(found)
        if not judged and refused is not None:
            raise LedInward(host, refused)
        return judged

    def keep_to(self, address: str) -> None:
        """Look for the named host nowhere but at `address`, which has answered for it.

        Else its name could lead to another machine as soon as it redirects to another port of its own.
        """
        self._found = [found for found in self._found if found["host"] == address] or self._found

    async def close(self) -> None:
        """Let go of what asks the name servers."""
        await self._names.close()


class JudgingConnector(aiohttp.TCPConnector):
    """Makes connections to the named host, and to addresses that were judged."""

    def __init__(self, resolver: JudgingResolver, named: str, allowed: "Sequence[Network]") -> None:
        """The resolver stays open when this is closed."""
        # What was found is remembered by the resolver, for all ports of a host alike.
        super().__init__(limit=MAX_CONNECTIONS, resolver=resolver, use_dns_cache=False)
        self._judging = resolver
        self._named = named
        self._allowed = allowed

    async def connect(
        self,
        req: "ClientRequest",
        traces: "list[Trace]",
        timeout: "ClientTimeout",  # noqa: ASYNC109 - as aiohttp has it
    ) -> "Connection":
        """Connect, or raise LedInward; a literal address never comes to the resolver, and is judged here."""
        host = req.url.raw_host or ""
        if host != self._named:
            from agent_health.target_address import Refused, judge_url  # noqa: PLC0415 - see JudgingResolver

            judged = judge_url(str(req.url.origin()), self._allowed)
            if isinstance(judged, Refused):
                raise LedInward(host, judged)
            return await super().connect(req, traces, timeout)
        connection = await super().connect(req, traces, timeout)
        peer = None if connection.transport is None else connection.transport.get_extra_info("peername")
        if peer:
            self._judging.keep_to(peer[0])
        return connection
