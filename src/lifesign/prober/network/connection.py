"""One connection and the requests over it.

aiohttp's protocol and parser read the answer. They limit the length of lines, unpack the body in pieces and
slow down a peer that sends faster than the prober reads. The byte counter limits everything else. aiohttp's
session is not used: it costs as much again as all the rest.
"""

import asyncio
import contextlib
from datetime import datetime
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.http_client.byte_counter import MAX_HEADER_BYTES, MAX_SPARE_BYTES, READ_BYTES, ByteCounter
from lifesign.http_client.failures import MAX_HEADER_LINE_BYTES, MAX_HEADERS, TooManyBytes

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

    from lifesign.domain.net.allowed_addresses import Address
    from lifesign.loopback.socket_users import Address as SocketAddress

PARSED_BYTES: Final = 8_192
"""Bytes that are parsed at once: a peer can put hundreds of answers into them that were not requested."""
_SWITCHING_PROTOCOLS: Final = 101

Place = tuple[str, str, int, str]
"""Scheme, host and port, as vetted, and the name of a credential that shares no connections; else empty."""


@fast_dataclass()
class ReplyHead:
    """Header of an answer. The body may not have arrived yet."""

    status: int
    headers: "CIMultiDictProxy[str]"
    content: StreamReader
    counter: ByteCounter
    """Counts the bytes of this answer."""


class HttpConnection(ResponseHandler):
    """One HTTP connection to a host, with the times at which it was made.

    Send one request at a time, and read its answer to the end or `abort` it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.place: Place
        self.address: Address
        """Set by the connector, as are the following members."""
        self.tried: tuple[Address, ...] = ()
        """Addresses to which no connection could be made before."""
        self.dns_ms: float | None = None
        self.connect_ms: float | None = None
        self.tls_ms: float | None = None
        self.certificate_expires_at: datetime | None = None
        self.has_trusted_server = False
        """Whether it was checked that the user of its server may receive secrets; only without TLS."""
        self.asked = 0
        """Number of requests sent."""
        self.sent_at_s = 0.0
        """Time of the last request, by the performance counter."""
        self.first_byte_at_s: float | None = None
        """Begin of its answer; None if there is none."""
        self.is_late = False
        """Whether the request was cancelled at its deadline."""
        self.made_at_s = loop.time()
        """Time at which it was made, on the loop's clock."""
        self.waits_since_s = 0.0
        """Time since which it waits for another request, on the loop's clock."""
        self._counter: ByteCounter | None = ByteCounter(MAX_HEADER_BYTES)
        """Counter of the answer that is being received; None if no request is in progress."""
        self._is_in_header = True
        self._has_surplus = False
        """Whether the peer has sent a second answer to one request."""
        self._wire: asyncio.Transport
        """Transport of the connection, also while it is being closed."""
        self._deadline: asyncio.TimerHandle | None = None

    async def ask(self, request: bytes) -> ReplyHead:
        """Send a request and return the header of the answer. Raises FAILURES and HttpProcessingError."""
        if self.transport is None or self.transport.is_closing():
            raise aiohttp.ServerDisconnectedError
        self.asked += 1
        self.first_byte_at_s = None
        counter = self._counter = ByteCounter(MAX_HEADER_BYTES)
        self._is_in_header = True
        self.set_response_params(
            read_until_eof=True,
            read_bufsize=READ_BYTES,
            max_line_size=MAX_HEADER_LINE_BYTES,
            max_field_size=MAX_HEADER_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )
        self.transport.write(request)
        self.sent_at_s = perf_counter()
        message, content = await self.read()
        return ReplyHead(message.code, message.headers, content, counter)

    def ends(self) -> "tuple[SocketAddress | None, SocketAddress | None]":
        """Return the addresses of the peer and of this end; None if the connection has ended."""
        return self._wire.get_extra_info("peername"), self._wire.get_extra_info("sockname")

    def rest(self) -> None:
        """Expect no data until the next request: if the peer sends some, the connection is ended."""
        self._counter = None

    def expire_at(self, deadline_s: float | None) -> None:
        """Set the time on the loop's clock at which the connection is ended; None: never."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if deadline_s is None else self._loop.call_at(deadline_s, self._expire)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the connection's transport. Called by the event loop."""
        self.transport = self._wire = cast("asyncio.Transport", transport)

    def abort(self) -> None:
        """End the connection at once, without waiting for the peer."""
        super().abort()
        # Python 3.11.2's TLS transport has nothing left to abort if it was closed twice.
        with contextlib.suppress(AttributeError):
            self._wire.abort()

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 - it is aiohttp's
        """Read on, if reading was paused. aiohttp calls this after each piece of a body."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def data_received(self, data: bytes) -> None:
        """Count the received bytes and pass them to the parser. Called by the event loop."""
        if self.first_byte_at_s is None:
            self.first_byte_at_s = perf_counter()
        for begin in range(0, len(data) or 1, PARSED_BYTES):
            if begin and self._wire.is_closing():
                return
            self._parse(data[begin : begin + PARSED_BYTES])

    def _parse(self, data: bytes) -> None:
        """Count received bytes, at most PARSED_BYTES, and pass them to the parser."""
        counter = self._counter
        if counter is None or self._has_surplus:
            if data:
                self._wire.abort()
            return
        if self._is_in_header and len(data) > (room := counter.room_bytes):
            counter.receive(room)
            super().data_received(data[:room])
            if not counter.room_bytes:
                # The header has not ended.
                if self.exception() is None:
                    self._end(TooManyBytes(is_in_header=True))
                return
            data = data[room:]
        if not counter.receive(len(data)):
            self._end(TooManyBytes())
            return
        super().data_received(data)
        if isinstance(error := self.exception(), HttpProcessingError):
            # aiohttp does not tell the reader of a body that the rest cannot be parsed.
            self._end(error)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Keep the header of the answer, which is complete. Called by the parser."""
        status = data[0].code
        if status < 200 and status != _SWITCHING_PROTOCOLS:
            # An informational answer. A 101 without a request for it is the answer.
            return
        if not self._is_in_header:
            # It is not kept: thousands of them take a hundred times the memory of their bytes.
            self._has_surplus = True
            self.force_close()
            return
        if status != _SWITCHING_PROTOCOLS:
            self._is_in_header = False
            if self._counter is not None:
                self._counter.limit_bytes = MAX_SPARE_BYTES
        super().feed_data(data, size)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End all waits, as the connection has ended. Called by the event loop."""
        self.expire_at(None)
        super().connection_lost(exc)

    def _expire(self) -> None:
        self.is_late = True
        self._end(TimeoutError())

    def _end(self, error: Exception) -> None:
        """Make pending reads of header and body fail, and cut the connection."""
        content = self._payload
        self.set_exception(error)
        if content is not None and not content.is_eof():
            content.set_exception(error)
        self._wire.abort()
