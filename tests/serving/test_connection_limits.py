import asyncio
import contextlib
import json
import logging
import resource
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from tests.support.both_loops import on_both_loops
from tests.support.certificates import Authority
from tests.support.flooding_server import KERNEL_BYTES
from tests.support.raw_http import RawAnswer, answer_in
from tests.support.servers import PATIENCE_SECONDS
from uvicorn.server import ServerState

from lifesign.http_client.byte_counter import MAX_SPARE_BYTES
from lifesign.registry.run_server import Listening, _uvicorn_config
from lifesign.registry.settings import RegistrySettings
from lifesign.serving import connection_limits
from lifesign.serving.bounded_server import TlsListener
from lifesign.serving.connection_limits import MAX_PIPELINED, BoundedProtocol
from lifesign.serving.listening_socket import bound

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
GO_KEEPS_SECONDS = 90
"""Go's client closes an idle connection after this time; those of Python and Node.js do so earlier."""
LARGE = 16_777_216
"""More than the buffers of a connection take."""


@dataclass
class Served:
    """A server on loopback whose connections are bounded."""

    state: ServerState
    port: int
    tls: Authority | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Headers of the last request for `/body`, once its body was read."""

    async def connect(self, *parts: bytes) -> "Caller":
        """Open a connection and send something."""
        context = None if self.tls is None else ssl.create_default_context(cafile=self.tls.file)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self.writers.append(writer)
        writer.writelines(parts)
        return Caller(reader, writer)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - uvicorn announces nothing
                await asyncio.sleep(0.01)

    async def until_alone(self) -> None:
        """Return once no connection is left."""
        await self.until(lambda: not self.state.connections)

    @property
    def connection(self) -> BoundedProtocol:
        """The server's side of the only connection."""
        (connection,) = self.state.connections
        assert isinstance(connection, BoundedProtocol)
        return connection

    async def until_waiting(self, head_bytes: int) -> float:
        """Return the time at which the server waits for the rest of a head of which it has so many bytes."""
        await self.until(lambda: bool(self.state.connections))
        found = self.connection
        await self.until(lambda: found._waits_since_s is not None and found._head_bytes >= head_bytes)
        return asyncio.get_running_loop().time()


@dataclass
class Caller:
    """One connection, from its caller's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def end(self) -> RawAnswer:
        """Read until the server ends the connection."""
        received = b""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while read := await self.reader.read(65_536):
                    received += read
            except ConnectionResetError:
                pass
        self.writer.close()
        return answer_in(received)


@pytest.fixture(autouse=True)
def uvicorn_logs_reach_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the logging configuration of a server that ran in this process."""
    for name in ("uvicorn", "uvicorn.error"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)


@asynccontextmanager
async def served(
    tls: Authority | None = None, *, limit_concurrency: int | None = None
) -> AsyncIterator[Served]:
    """Serve `/` at once, `/waits` when the test allows it, `/large` with more than a client reads unasked."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.asked.set()
        if scope["path"] == "/waits":
            found.waits.set()
            await found.go_on.wait()
        if scope["path"] == "/fails":
            raise RuntimeError
        body = b"x" * LARGE if scope["path"] == "/large" else b"well"
        if scope["path"] == "/body":
            size, is_more = 0, True
            while is_more:
                message = await receive()
                size += len(message.get("body", b""))
                is_more = message.get("more_body", False)
            body = b"%d bytes of body" % size
            found.headers = scope["headers"]
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        app, http=BoundedProtocol, ws="none", log_config=None, limit_concurrency=limit_concurrency
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    listening = bound("127.0.0.1", 0)
    server: asyncio.Server | TlsListener
    if tls is None:
        server = await loop.create_server(lambda: BoundedProtocol(config, state, {}), sock=listening)
    else:
        context = tls.serving("127.0.0.1")
        server = TlsListener(listening, context, state, lambda: BoundedProtocol(config, state, {}))
        server.start()
    found = Served(state, listening.getsockname()[1], tls)
    try:
        yield found
    finally:
        for writer in found.writers:
            writer.close()
        server.close()
        for connection in [*state.connections]:
            connection.transport.abort()
        await found.until_alone()
        await server.wait_closed()
        listening.close()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all times but that for a head, which a slow machine could exceed before it sends anything."""
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 2 * PATIENCE_SECONDS)
    monkeypatch.setattr(connection_limits, "TAKE_SECONDS", 0.2)
    monkeypatch.setattr(connection_limits, "END_SECONDS", 0.2)
    monkeypatch.setattr(connection_limits, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(connection_limits, "CHECK_SECONDS", 0.02)


def status_and_code(answer: RawAnswer) -> tuple[int, str]:
    return answer.status, answer.code


async def drip(caller: Caller, drop: bytes) -> None:
    """Send a little again and again, until the connection is gone."""
    try:
        while not caller.writer.is_closing():
            caller.writer.write(drop)
            await caller.writer.drain()
            await asyncio.sleep(0.02)
    except OSError:
        pass


@on_both_loops
async def test_silent_connection_is_closed_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.2)
    async with served() as server:
        assert await (await server.connect()).end() == answer_in(b"")


@pytest.mark.parametrize(
    ("beginning", "drop"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n"),
        (b"GET /", b"a"),
        (REQUEST + b"GET / HTTP/1.1\r\n", b"X: y\r\n"),
    ],
)
@on_both_loops
async def test_endless_head_gets_a_timeout_answer(beginning: bytes, drop: bytes) -> None:
    async with served() as server:
        caller = await server.connect(beginning)
        dripping = asyncio.create_task(drip(caller, drop))
        waiting_at_s = await server.until_waiting(1)
        # Later bytes gain no time.
        await server.until_waiting(20 * len(drop))
        server.connection.check(waiting_at_s + connection_limits.HEAD_SECONDS)
        answer = await caller.end()
        if answer.body.startswith(b"well"):
            answer = answer_in(answer.rest)
        assert status_and_code(answer) == (408, "head_too_slow")
        assert "connection: close" in answer.head
        await dripping


@pytest.mark.parametrize("drop", [b"\r\n", b"x"])
@on_both_loops
async def test_data_after_an_answer_closes_the_connection(drop: bytes) -> None:
    async with served() as server:
        unread = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
        caller = await server.connect(REQUEST if drop == b"\r\n" else unread)
        await server.asked.wait()
        connection = server.connection
        dripping = asyncio.create_task(drip(caller, drop))
        await server.until(lambda: connection._waits_since_s is not None)
        connection.check(asyncio.get_running_loop().time() + connection_limits.HEAD_SECONDS)
        answer = await caller.end()
        assert (answer.status, answer.body, answer.rest) == (200, b"well", b"")
        await dripping


@on_both_loops
async def test_endless_request_head_is_refused_at_the_size_limit() -> None:
    async with served() as server:
        for beginning, drop in (
            (b"GET / HTTP/1.1\r\nX: ", b"a" * 10_000),
            (REQUEST[:-2] + b"X: ", b"y" * 10_000),
        ):
            caller = await server.connect(beginning)
            dripping = asyncio.create_task(drip(caller, drop))
            assert status_and_code(await caller.end()) == (431, "head_too_large")
            await dripping


@pytest.mark.parametrize(
    ("fields", "end", "status"), [(128, b"\r\n", 200), (129, b"\r\n", 431), (130, b"", 431)]
)
@on_both_loops
async def test_number_of_header_fields_is_bounded(fields: int, end: bytes, status: int) -> None:
    async with served() as server:
        named = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        caller = await server.connect(named + b"a:\r\n" * (fields - 2) + end)
        assert (await caller.end()).status == status


@on_both_loops
async def test_closed_connection_keeps_no_header_fields() -> None:
    async with served() as server:
        caller = await server.connect(REQUEST[:-2] + b"X: y\r\n" * 100)
        connection = server.connection
        await server.until(lambda: len(connection.headers or ()) >= 100)
        caller.writer.close()
        await server.until(lambda: not connection.headers)


@on_both_loops
async def test_endless_second_request_head_ends_the_connection() -> None:
    async with served() as server:
        caller = await server.connect(b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nX: ")
        await server.asked.wait()
        dripping = asyncio.create_task(drip(caller, b"a" * 10_000))
        assert await caller.end() == answer_in(b"")
        await dripping


@on_both_loops
async def test_caller_may_wait_long_for_an_answer() -> None:
    async with served() as server:
        caller = await server.connect(b"GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await server.asked.wait()
        server.connection.check(asyncio.get_running_loop().time() + 3_600)
        server.go_on.set()
        assert (await caller.end()).body == b"well"


@on_both_loops
async def test_client_without_http_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        for _ in range(2):
            caller = await server.connect(b"\x16\x03\x01 no http\r\n\r\n")
            assert (await caller.end()).status == 400
    found = [record for record in caplog.records if "Invalid HTTP request" in record.getMessage()]
    assert [vars(record)["client"] for record in found] == ["127.0.0.1"] * 2


@on_both_loops
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_offer_of_another_protocol_is_ignored_without_a_line_in_the_log(
    protocol: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    offer = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: "
    async with served() as server:
        caller = await server.connect(offer + protocol + b"\r\n\r\n")
        answer = await caller.end()
    assert (answer.status, caplog.records) == (200, [])


@on_both_loops
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"Content-Length: 2\r\n\r\n{}", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
        (b"Content-Length: 0\r\n\r\n", 200),
    ],
)
async def test_offer_of_another_protocol_with_a_body_is_refused(body: bytes, status: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n"
    async with served() as server:
        caller = await server.connect(head + body)
        answer = await caller.end()
    assert answer.status == status
    if status == 400:
        assert status_and_code(answer) == (400, "upgrade_with_body")
        assert "Upgrade" in json.loads(answer.body)["message"]


def test_number_of_answers_to_non_http_callers_is_limited_per_second() -> None:
    watch = connection_limits._Watch(set())
    found = [watch.may_log(5.5, logging.WARNING) for _ in range(30)]
    assert found == [True] * 20 + [False] * 10
    assert watch.may_log(5.5, logging.ERROR)
    assert watch.may_log(6.0, logging.WARNING)


@on_both_loops
@pytest.mark.parametrize("most", [0, 1])
async def test_number_of_logged_failures_is_limited_per_second(
    most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_COMPLAINTS_PER_SECOND", most)
    async with served() as server:
        caller = await server.connect(b"GET /fails HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await caller.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 500")
    assert [record.exc_info is not None for record in caplog.records] == [True] * most


async def test_connection_serves_sequential_requests() -> None:
    async with served() as server:
        caller = await server.connect()
        for _ in range(20):
            requested_at_s = asyncio.get_running_loop().time()
            caller.writer.write(REQUEST)
            assert (await caller.reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")
            # Each request restarts the time for a head.
            waits_since_s = server.connection._waits_since_s
            assert waits_since_s is None or waits_since_s >= requested_at_s
        caller.writer.close()


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@on_both_loops
async def test_caller_that_reads_nothing_is_disconnected(
    last: bytes, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Over TLS, only the end of an idle connection shows that the caller takes nothing.
    monkeypatch.setattr(connection_limits, "KEEP_ALIVE_SECONDS", 1)
    async with served(Authority(tmp_path) if scheme == "https" else None) as server:
        caller = await server.connect(b"GET /large HTTP/1.1\r\nHost: a\r\n" + last + b"\r\n")
        await server.asked.wait()
        await server.until_alone()
        assert len((await caller.end()).body) < LARGE


@pytest.mark.parametrize("scheme", ["http", "https"])
@on_both_loops
async def test_caller_that_reads_nothing_does_not_delay_shutdown(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "TAKE_SECONDS", 3_600.0)
    async with served(Authority(tmp_path) if scheme == "https" else None) as server:
        caller = await server.connect(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await server.asked.wait()
        for connection in [*server.state.connections]:
            connection.shutdown()
        await server.until_alone()
        assert len((await caller.end()).body) < LARGE


@on_both_loops
async def test_running_request_is_answered_at_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "FIRST_SECONDS", 2.0 * PATIENCE_SECONDS)
    async with served() as server:
        caller = await server.connect()
        await server.until_waiting(0)
        server.connection.shutdown()
        caller.writer.write(REQUEST)
        answer = await caller.end()
    assert (answer.status, answer.body) == (200, b"well")


@on_both_loops
async def test_connection_without_a_request_does_not_delay_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "FIRST_SECONDS", 0.1)
    async with served() as server:
        caller = await server.connect()
        await server.until_waiting(0)
        server.connection.shutdown()
        assert await caller.end() == answer_in(b"")


@on_both_loops
async def test_endless_head_over_tls_gets_a_timeout_answer(tmp_path: Path) -> None:
    async with served(Authority(tmp_path)) as server:
        caller = await server.connect(b"GET / HTTP/1.1\r\n")
        waiting_at_s = await server.until_waiting(1)
        server.connection.check(waiting_at_s + connection_limits.HEAD_SECONDS)
        assert status_and_code(await caller.end()) == (408, "head_too_slow")
        await server.until_alone()


@on_both_loops
async def test_idle_connection_is_kept_longer_than_clients_keep_it() -> None:
    async with served() as server:
        caller = await server.connect(REQUEST)
        assert await caller.reader.readuntil(b"well")
        loop, connection = asyncio.get_running_loop(), server.connection
        await server.until(lambda: connection.timeout_keep_alive_task is not None)
        timer = connection.timeout_keep_alive_task
        assert timer is not None
        assert timer.when() - loop.time() > GO_KEEPS_SECONDS
        caller.writer.close()


@pytest.mark.parametrize("limit_concurrency", [None, 4])
@on_both_loops
async def test_many_open_connections_shorten_the_time_of_idle_ones(
    limit_concurrency: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 2
    monkeypatch.setattr(connection_limits, "CROWDED_KEEP_ALIVE_SECONDS", 0.0)
    if limit_concurrency is None:
        monkeypatch.setattr(connection_limits, "MAX_UNCROWDED", most)
    async with served(limit_concurrency=limit_concurrency) as server:
        idle = [await server.connect(REQUEST) for _ in range(most)]
        for caller in idle:
            assert await caller.reader.readuntil(b"well")
        connection_limits._watch_of(server.state)._check_all(asyncio.get_running_loop())
        assert not any(connection.transport.is_closing() for connection in server.state.connections)
        busy = await server.connect(b"GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        for caller in idle:
            assert await caller.end() == answer_in(b"")
        server.go_on.set()
        assert (await busy.end()).body == b"well"


@on_both_loops
async def test_slow_reader_gets_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "TAKE_SECONDS", PATIENCE_SECONDS)
    async with served() as server:
        caller = await server.connect(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        taken = 0
        while read := await caller.reader.read(262_144):
            taken += len(read)
            await asyncio.sleep(0.005)
        assert taken > LARGE
        caller.writer.close()


@on_both_loops
async def test_connections_above_the_limit_get_503(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 2)
    async with served() as server:
        first, second = await server.connect(), await server.connect()
        for _ in range(3):
            answer = await (await server.connect(REQUEST)).end()
            assert status_and_code(answer) == (503, "too_many_connections")
            assert "retry-after: 2" in answer.head
            assert json.loads(answer.body)["message"]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        first.writer.write(REQUEST)
        assert await first.reader.readuntil(b"well")
        first.writer.close()
        await first.writer.wait_closed()
        second.writer.write(REQUEST)
        assert await second.reader.readuntil(b"well")
        second.writer.close()
        await server.until_alone()
        third = await server.connect(REQUEST)
        assert await third.reader.readuntil(b"well")
        third.writer.close()


@on_both_loops
async def test_connections_far_above_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 0)
    monkeypatch.setattr(connection_limits, "MAX_REFUSED", 1)
    monkeypatch.setattr(connection_limits, "LINGER_SECONDS", PATIENCE_SECONDS)
    async with served() as server:
        refused = await server.connect()
        assert await refused.reader.readuntil(b"\r\n")
        assert await (await server.connect(REQUEST)).end() == answer_in(b"")


@pytest.mark.parametrize(("files", "expected"), [(1_024, 768), (100, 1), (resource.RLIM_INFINITY, 50_000)])
def test_number_of_connections_is_bounded_by_open_file_limit(
    monkeypatch: pytest.MonkeyPatch, files: int, expected: int
) -> None:
    limit: Callable[[int], tuple[int, int]] = lambda _: (files, files)  # noqa: E731
    monkeypatch.setattr(resource, "getrlimit", limit)
    assert connection_limits._most_connections() == expected


def test_the_server_bounds_its_connections() -> None:
    config = _uvicorn_config(RegistrySettings.read(), Listening(host="127.0.0.1", port=0))
    assert config.http is BoundedProtocol


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody",
    ],
)
async def test_request_without_exactly_one_host_is_refused(head: bytes) -> None:
    async with served() as server:
        answer = await (await server.connect(head)).end()
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["code"] == "invalid_host"
        old = await (await server.connect(b"GET / HTTP/1.0\r\n\r\n")).end()
        assert old.status == 200


# ── bytes outside of heads and bodies ──

CHUNKED = b"POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
FLOODS = {
    "a chunk extension": (CHUNKED + b"5;a=", b"a" * 65_536),
    "zeros before a chunk size": (CHUNKED, b"0" * 65_536),
    "extensions of small chunks": (CHUNKED, (b"1;" + b"a" * 500 + b"\r\n \r\n") * 100),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-More: of the same\r\n" * 3_000),
    "a trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX-Long: ", b"a" * 65_536),
}


@pytest.mark.parametrize("name", FLOODS)
@on_both_loops
async def test_flood_between_the_chunks_of_a_body_ends_the_connection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", PATIENCE_SECONDS)
    beginning, piece = FLOODS[name]
    async with served() as server:
        caller = await server.connect(beginning)
        sent_bytes = 0
        tracemalloc.start()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    caller.writer.write(piece)
                    await caller.writer.drain()
                    sent_bytes += len(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await server.until_alone()
    assert sent_bytes <= MAX_SPARE_BYTES + KERNEL_BYTES
    assert peak_bytes <= 16 * 1024 * 1024


@on_both_loops
async def test_number_of_pipelined_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", PATIENCE_SECONDS)
    async with served() as server:
        caller = await server.connect(REQUEST * (MAX_PIPELINED + 1))
        for _ in range(MAX_PIPELINED + 1):
            assert (await caller.reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")
        caller.writer.close()
        await server.until_alone()
        many = await server.connect(b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n")
        await server.waits.wait()
        (connection,) = server.state.connections
        assert isinstance(connection, BoundedProtocol)
        # The size of one read from the socket.
        connection.data_received(REQUEST * (262_144 // len(REQUEST)))
        assert len(connection.pipeline) == MAX_PIPELINED
        assert await many.end() == answer_in(b"")


@on_both_loops
async def test_a_body_in_chunks_of_one_byte_reaches_the_app_whole() -> None:
    async with served() as server:
        chunks = b"".join(b"1\r\n%c\r\n" % (97 + number % 26) for number in range(60_000))
        caller = await server.connect(CHUNKED, chunks, b"0\r\nX-Trailer: a\r\n\r\n" + REQUEST)
        first = await caller.reader.readuntil(b"of body")
        assert b"60000 bytes" in first
        assert (await caller.reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")
        caller.writer.close()
        assert server.headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
