"""Limits of a server's connections: their number, how long they keep it waiting, and what they send.

uvicorn has no such limits: a client that never ends the head of a request, or never reads the answer, would
keep a connection forever at no cost. Every received byte counts: heads, bodies, and the bytes between the
parts of a body. The operation limits the size of a body, and `body_timeout` its time; `bounded_server` limits
TLS handshakes. A proxy has to refuse connections from many addresses at once.
"""

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import MutableMapping
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from lifesign.http_client.byte_counter import ByteCounter
from lifesign.serving.error_body import RETRY_SECONDS, problem
from lifesign.serving.listening_socket import TAKE_SECONDS
from lifesign.serving.write_coalescing import WriteCoalescingTransport

HEAD_SECONDS = 10.0
"""Time limit from the start of a connection, or its first byte after an answer, to the end of a request's
head.
"""
MAX_HEAD_BYTES = 65_536
"""Maximum size of an incomplete head.

One that arrives in one piece may be longer, by the size of one read.
"""
MAX_FIELDS = 128
"""Maximum of header fields in a request: each takes more memory than its bytes."""
MAX_PIPELINED = 32
"""Maximum of pipelined requests on one connection that wait for an earlier answer."""
END_SECONDS = 2.0
"""The same once the server is asked to end: well within the grace period of running requests."""
FIRST_SECONDS = 0.5
"""Time that a new connection has for its first request although the server is asked to end."""
LINGER_SECONDS = 2.0
"""Time for which input of a refused client is read and discarded, so that it receives the answer."""
KEEP_ALIVE_SECONDS = 100
"""Time that an idle connection stays open, unless many are open: longer than common clients keep one.

If the server closes a connection first, a request that is already under way fails. httpx keeps a connection
for 5 s, aiohttp for 15 s, nginx and .NET for 60 s, Go for 90 s.
"""
CROWDED_KEEP_ALIVE_SECONDS = 5.0
"""The same while more than MAX_UNCROWDED connections are open, or half of the maximum."""
MAX_UNCROWDED = 2_000
"""They use about 16 MiB, with TLS 100 MiB."""
MAX_CONNECTIONS = 50_000
"""Maximum per server process. 181,666 agents with a heartbeat every 30 s on new connections use 36,000."""
RESERVED_FILES = 256
"""Open files that are reserved: for database, archives, webhooks, and refused clients."""
MAX_REFUSED = RESERVED_FILES // 2
"""Maximum of clients that get an answer about too many connections; further ones are closed without one."""
CHECK_SECONDS = 1.0
"""A connection may last so much longer before it is noticed."""
STOPS = "lifesign.stops"
"""Name in the app's state of the event that notifies it that the server is stopping."""
REFUSES = "lifesign.refuses"
"""Name in the app's state of the function that is called for each connection too many."""
WARN_AGAIN_SECONDS = 60.0
"""Interval of log lines about too many connections."""
MAX_COMPLAINTS_PER_SECOND = 20
"""Maximum of logged protocol errors of clients, and of logged failed requests."""

_log = logging.getLogger("lifesign.registry")


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits: it closes the connection of a client that is too slow."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.timeout_keep_alive = KEEP_ALIVE_SECONDS
        self.logger = _Complaints(self)  # type: ignore[assignment]
        self._waits_since_s: float | None = self.loop.time()
        """Time since which no request is being answered although the client is connected."""
        self._is_in_head = False
        self._head_bytes = 0
        self._counter = ByteCounter()
        """Counter of the request that is being received."""
        self._body: list[bytes] = []
        """Parts of the body that arrived since the last read."""
        self._is_refused = False
        self._ends_at_s = inf
        """When a caller that was refused has had its time."""
        self._left_bytes = 0
        """Unsent bytes at the last check: the client has read none of them since `_stands_since_s`."""
        self._stands_since_s = 0.0
        self._take_s = TAKE_SECONDS
        self._has_asked = False
        """Whether the head of a request is complete."""
        self._is_ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        self.transport = WriteCoalescingTransport(transport, self.loop)
        watch = _watch_of(self.server_state)
        watch.begin(self.loop, self.limit_concurrency)
        if len(self.connections) <= watch.most_connections:
            return
        if refuses := self.app_state.get(REFUSES):
            refuses()
        if len(self.connections) > watch.most_connections + MAX_REFUSED:
            transport.abort()
        else:
            watch.warn(self.loop.time())
            self._refuse(503, "too_many_connections", "too many connections are open: try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the header: it may be long until the garbage collector finds the connection."""
        super().connection_lost(exc)
        if not self._is_answering:
            self.headers, self.url = [], b""
            self.scope = self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Receive data; the bytes and the time of an incomplete head are limited."""
        if self._is_refused:
            return
        if not self._counter.receive(len(data)):
            self._close()
            return
        super().data_received(data)
        if self._is_ending and self._is_answering:
            self.cycle.keep_alive = False
        self._hand_on_body()
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, "head_too_large", f"a request's head has at most {MAX_HEAD_BYTES} bytes")
        if self._is_answering:
            self._waits_since_s = None
        elif self._waits_since_s is None:
            self._waits_since_s = self.loop.time()

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._close()
        if not self._is_refused:
            super().on_message_begin()
            self._is_in_head, self._head_bytes = True, 0
            self._counter = ByteCounter()

    def on_url(self, url: bytes) -> None:
        """Receive a part of the request target."""
        if not self._is_refused:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header field. Trailers are ignored: no app here reads them."""
        if self._is_in_head and not self._is_refused:
            super().on_header(name, value)
            if len(self.headers) > MAX_FIELDS:
                self._refuse(431, "head_too_large", f"a request has at most {MAX_FIELDS} header fields")

    def on_headers_complete(self) -> None:
        """Check the complete head; a request without exactly one Host is refused (RFC 9112 3.2)."""
        if self._is_refused:
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and (hosts > 1 or self.parser.get_http_version() == "1.1"):
            self._refuse(400, "invalid_host", "a request must have one Host header")
            return
        if self.parser.should_upgrade() and any(_announces_body(*field) for field in self.headers):
            # httptools ends the request here: its body would be read as empty.
            self._refuse(400, "upgrade_with_body", "a request with an Upgrade header cannot have a body")
            return
        self._is_in_head, self._has_asked = False, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body; that of a refused request is dropped."""
        if not self._is_refused:
            self._counter.take(len(body))
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        if not self._is_refused:
            self._hand_on_body()
            super().on_message_complete()

    def _hand_on_body(self) -> None:
        """Pass on the received part of a body at once: uvicorn joins two parts by copying both."""
        if self._body:
            body = b"".join(self._body)
            self._body.clear()
            if not self.transport.is_closing():
                super().on_body(body)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a server may ignore `Upgrade` (RFC 9110 7.8); uvicorn advises to install a library."""

    def shutdown(self) -> None:
        """Close this connection, because the server stops; waiting claims and streams are ended first.

        The first request of a new connection may be on its way: closed at once, its caller would get a reset
        instead of an answer while the processes are replaced.
        """
        if stops := self.app_state.get(STOPS):
            stops.set()
        self._take_s = END_SECONDS
        self._is_ending = True
        if not self._has_asked and self._waits_since_s is not None:
            rest_s = self._waits_since_s + FIRST_SECONDS - self.loop.time()
            if rest_s > 0:
                self.loop.call_later(rest_s, super().shutdown)
                return
        super().shutdown()

    def check(self, now_s: float) -> None:
        """End the connection if the client took too long."""
        left_bytes = self.transport.get_write_buffer_size()
        # With TLS it may be 0 although nothing was sent: then the connection does not close.
        is_standing = left_bytes > 0 or self.transport.is_closing()
        if not is_standing or left_bytes != self._left_bytes:
            self._left_bytes, self._stands_since_s = left_bytes, now_s
        if now_s >= min(self._ends_at_s, self._stands_since_s + self._take_s):
            self.transport.abort()
        elif self._waits_since_s is not None and now_s >= self._waits_since_s + HEAD_SECONDS:
            self._refuse(408, "head_too_slow", f"a request's head must arrive within {HEAD_SECONDS:g} s")

    def close_if_idle(self, now_s: float) -> None:
        """Close the connection if it has been idle for CROWDED_KEEP_ALIVE_SECONDS."""
        timer = self.timeout_keep_alive_task
        if timer is not None:
            idle_since_s = timer.when() - KEEP_ALIVE_SECONDS
            if now_s >= idle_since_s + CROWDED_KEEP_ALIVE_SECONDS:
                self.timeout_keep_alive_handler()

    @property
    def _is_answering(self) -> bool:
        # Before the first request there is none, whatever type uvicorn declares.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def _close(self) -> None:
        """Accept no more data, and close once the written data are sent."""
        self._is_refused, self._waits_since_s = True, None
        self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Accept no more data; send the reason, unless another answer has begun or none is expected."""
        if self._is_refused or self.transport.is_closing():
            return
        if self._is_answering or not (self._is_in_head or status == 503):
            self._close()
            return
        self._is_refused, self._waits_since_s = True, None
        self.transport.write(_written(problem(status, code, message)))
        if self.transport.can_write_eof():
            self._ends_at_s = self.loop.time() + LINGER_SECONDS
            self.transport.write_eof()
        else:
            self.transport.close()


def _announces_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0") != b"")


class _Complaints(logging.LoggerAdapter[logging.Logger]):
    """uvicorn's messages about one connection, with the client's address and a rate limit."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__(protocol.logger)
        self._protocol = protocol

    @property
    def level(self) -> int:
        """Return the level; uvicorn reads it before it formats unwanted messages."""
        return self.logger.level

    def warning(self, msg: object, *args: object, **named: Any) -> None:
        """Log a warning unless the limit of this second is reached."""
        if self._may_log(logging.WARNING):
            super().warning(msg, *args, **named)

    def error(self, msg: object, *args: object, **named: Any) -> None:
        """Log an error with its traceback unless the limit of this second is reached."""
        if self._may_log(logging.ERROR):
            super().error(msg, *args, **named)

    def _may_log(self, level: int) -> bool:
        return _watch_of(self._protocol.server_state).may_log(self._protocol.loop.time(), level)

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        """Return a log message with the client's address as an additional member of the record."""
        client = self._protocol.client
        return msg, {**kwargs, "extra": {"client": "" if client is None else client[0]}}


class _Watch:
    """Looks after all connections of a server with one timer: one for each would cost every request."""

    def __init__(self, connections: AbstractSet[object]) -> None:
        self.most_connections = _most_connections()
        self._most_uncrowded = MAX_UNCROWDED
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._warned_at_s = -inf
        self._complaints_at_s = 0
        self._complaints: Counter[int] = Counter()
        """Log lines in that second, by level, so that strangers cannot hide internal errors."""

    def begin(self, loop: asyncio.AbstractEventLoop, most_answered: int | None) -> None:
        """Check periodically while there are connections; without any, an idle server sleeps.

        `most_answered`: maximum of connections whose requests uvicorn answers; None: all.
        """
        if self._timer is None:
            most = self.most_connections if most_answered is None else most_answered
            self._most_uncrowded = min(MAX_UNCROWDED, most // 2)
            self._timer = loop.call_later(CHECK_SECONDS, self._check_all, loop)

    def warn(self, now_s: float) -> None:
        """Log that the limit of connections is reached, at most once in WARN_AGAIN_SECONDS."""
        if now_s - self._warned_at_s >= WARN_AGAIN_SECONDS:
            self._warned_at_s = now_s
            _log.warning("the limit of %d connections is reached: more are refused", self.most_connections)

    def may_log(self, now_s: float, level: int) -> bool:
        """Count a client's error; return whether to log it."""
        if int(now_s) != self._complaints_at_s:
            self._complaints_at_s = int(now_s)
            self._complaints.clear()
        self._complaints[level] += 1
        return self._complaints[level] <= MAX_COMPLAINTS_PER_SECOND

    def _check_all(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        is_crowded = len(self._connections) > self._most_uncrowded
        for connection in [*self._connections]:
            if isinstance(connection, BoundedProtocol):
                connection.check(now_s)
                if is_crowded:
                    connection.close_if_idle(now_s)
        self._timer = loop.call_later(CHECK_SECONDS, self._check_all, loop) if self._connections else None


_watches: WeakKeyDictionary[ServerState, _Watch] = WeakKeyDictionary()


def _watch_of(server_state: ServerState) -> _Watch:
    watch = _watches.get(server_state)
    if watch is None:
        watch = _watches[server_state] = _Watch(server_state.connections)
    return watch


def may_accept(server_state: ServerState, handshakes: int) -> bool:
    """Return whether a further connection may begin its TLS handshake; `handshakes` have not finished."""
    watch = _watch_of(server_state)
    if len(server_state.connections) + handshakes < watch.most_connections + MAX_REFUSED:
        return True
    watch.warn(asyncio.get_running_loop().time())
    return False


def _most_connections() -> int:
    """Return the maximum number of connections: fewer if the process may open fewer files."""
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(1, most_files - RESERVED_FILES))


def _written(response: Response) -> bytes:
    """Return a response as it goes over the wire, the last one of its connection."""
    status = HTTPStatus(response.status_code)
    headers = [*response.raw_headers, (b"connection", b"close")]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"%d" % RETRY_SECONDS))
    lines = [
        b"HTTP/1.1 %d %s" % (status, status.phrase.encode()),
        *(b"%s: %s" % header for header in headers),
    ]
    return b"\r\n".join([*lines, b"", bytes(response.body)])
