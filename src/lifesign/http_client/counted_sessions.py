"""aiohttp sessions whose connections count every received byte.

aiohttp limits single header lines and, read in pieces, the body. It does not limit the bytes between them,
such as a chunk extension without end. Therefore a protocol here wraps aiohttp's protocol in each connection.
It counts bytes, and closes a connection that exceeds its limit.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import aiohttp

from lifesign.http_client.byte_counter import READ_BYTES, ByteCounter
from lifesign.http_client.failures import MAX_HEADER_LINE_BYTES, MAX_HEADERS, ListenerChanged, TooManyBytes
from lifesign.http_client.system_resolver import SystemResolver
from lifesign.loopback.listeners import LoopbackListeners

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.abc import AbstractResolver
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


def counting_session(connector: "ByteCountingConnector") -> aiohttp.ClientSession:
    """Return a session of aiohttp without cookies, redirects, proxies or stored credentials.

    Bodies stay compressed, unless a request says otherwise.
    """
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
        read_bufsize=READ_BYTES,
        max_line_size=MAX_HEADER_LINE_BYTES,
        max_field_size=MAX_HEADER_LINE_BYTES,
        max_headers=MAX_HEADERS,
    )


class ByteCountingConnector(aiohttp.TCPConnector):
    """Connector for aiohttp whose connections count the received bytes of each request.

    Requests get connections in the order in which they began to wait. With aiohttp alone, a new request takes
    a connection before the waiting ones, which time out while other tasks send requests without a pause.
    """

    def __init__(
        self,
        *,
        limit: int,
        resolver: "AbstractResolver | None" = None,
        use_dns_cache: bool = True,
        listeners: LoopbackListeners | None = None,
    ) -> None:
        """`limit`: maximum of connections. The resolver is closed with the connector.

        `listeners` checks each new connection, for requests with a secret.
        """
        self._listeners = listeners
        self._turns = asyncio.Semaphore(limit)
        self._names = SystemResolver() if resolver is None else resolver
        super().__init__(limit=limit, resolver=self._names, use_dns_cache=use_dns_cache)

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close all connections, and the resolver."""
        await super().close(abort_ssl=abort_ssl)
        # aiohttp closes only a resolver that it created.
        await self._names.close()

    async def connect(
        self,
        req: "ClientRequest",
        traces: "list[Trace]",
        timeout: "ClientTimeout",  # noqa: ASYNC109 - as aiohttp has it
    ) -> "Connection":
        """Return a connection that counts all received bytes."""
        await self._turns.acquire()
        try:
            connection = await super().connect(req, traces, timeout)
        except BaseException:
            self._turns.release()
            raise
        connection.add_callback(self._turns.release)
        if self._listeners is not None:
            self._check_listener(connection, self._listeners)
        _count(connection)
        return connection

    def _check_listener(self, connection: "Connection", listeners: LoopbackListeners) -> None:
        transport = connection.transport
        if transport is None or isinstance(transport.get_protocol(), _CountingProtocol):
            # An earlier request has used it.
            return
        if transport.get_extra_info("sslcontext") is not None:
            return
        refusal = listeners.refusal(
            transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        )
        if refusal is not None:
            connection.close()
            raise ListenerChanged(refusal)


class Response(Protocol):
    """What this module uses of an answer of aiohttp."""

    @property
    def connection(self) -> "Connection | None":
        """The answer's connection; None once the answer is complete."""


def counter_of(response: Response) -> ByteCounter:
    """Return the counter of an answer's bytes.

    An answer of a session that is not ours is counted from now on.
    """
    connection = response.connection
    return ByteCounter() if connection is None else _count(connection, is_ours=False)


class _CountingProtocol(asyncio.Protocol):
    """Protocol between a transport and aiohttp's protocol; it passes on data within the limit."""

    def __init__(self, inner: asyncio.Protocol, transport: asyncio.Transport) -> None:
        self.counter: ByteCounter | None = None
        """Counter of the answer that is being received; None if no request is in progress."""
        self._inner = inner
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.counter is None or not self.counter.receive(len(data)):
            # Bytes between two answers were not requested.
            self._transport.abort()
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.counter is not None and self.counter.is_exceeded:
            exc = TooManyBytes()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def end(self, counter: ByteCounter) -> None:
        """Stop counting for an answer that has ended, unless the next one has begun."""
        if self.counter is counter:
            self.counter = None

    def leave(self) -> None:
        """Stop counting: from now on the connection's data goes directly to aiohttp."""
        self._transport.set_protocol(self._inner)


def _count(connection: "Connection", *, is_ours: bool = True) -> ByteCounter:
    """Count the bytes that a connection receives for one answer."""
    transport = connection.transport
    if transport is None:
        return ByteCounter()
    protocol = transport.get_protocol()
    if isinstance(protocol, _CountingProtocol):
        if not is_ours and protocol.counter is not None:
            return protocol.counter
    else:
        protocol = _CountingProtocol(cast("asyncio.Protocol", protocol), transport)
        transport.set_protocol(protocol)
        if not is_ours:
            connection.add_callback(protocol.leave)
    counter = protocol.counter = ByteCounter()
    connection.add_callback(partial(protocol.end, counter))
    return counter
