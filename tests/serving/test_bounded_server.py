import asyncio
import signal
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from tests.support.both_loops import on_both_loops
from tests.support.certificates import Authority
from tests.support.servers import PATIENCE_SECONDS

from lifesign.serving import bounded_server, connection_limits
from lifesign.serving.bounded_server import BoundedServer
from lifesign.serving.connection_limits import REFUSES, BoundedProtocol
from lifesign.serving.listening_socket import bound
from lifesign.serving.process_supervisor import ServerProcess

ASYNCIO_HANDSHAKE_SECONDS = 60
"""Limit of asyncio and uvloop, if none is given."""
refused = threading.Event()
"""Set once the app has learned of a refused connection."""
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        scope["state"][REFUSES] = refused.set
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    """Serve over TLS; yield the port, and the TLS context of a client."""
    authority = Authority(directory)
    authority.server_files(directory, "127.0.0.1")
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        ssl_certfile=directory / "server.pem",
        ssl_keyfile=directory / "server.key",
    )
    server = BoundedServer(config)
    listening = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    running = asyncio.create_task(server._serve([listening]))
    try:
        yield port, ssl.create_default_context(cafile=authority.file)
    finally:
        server.should_exit = True
        await running


async def answer(port: int, tls: ssl.SSLContext | None = None) -> bytes:
    """Send a request if it is over TLS; return all that the server sends until it closes."""
    async with asyncio.timeout(min(PATIENCE_SECONDS, ASYNCIO_HANDSHAKE_SECONDS / 2)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        if tls is not None:
            writer.write(REQUEST)
        received = b""
        with suppress(ConnectionResetError):
            received = await reader.read()
        writer.close()
        return received


@on_both_loops
async def test_unfinished_handshake_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "HEAD_SECONDS", 0.1)
    async with served(tmp_path) as (port, _):
        assert await answer(port) == b""


@on_both_loops
async def test_unfinished_handshakes_count_as_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(connection_limits, "MAX_REFUSED", 1)
    refused.clear()
    async with served(tmp_path) as (port, tls):
        _, first = await asyncio.open_connection("127.0.0.1", port)
        assert b" 204 " in await answer(port, tls)
        _, second = await asyncio.open_connection("127.0.0.1", port)
        assert await answer(port) == b""
        assert refused.is_set()
        first.close()
        second.close()


def test_every_server_process_is_bounded() -> None:
    process = ServerProcess(uvicorn.Config(app, workers=2), [])
    assert isinstance(process.server, BoundedServer)


def test_repeated_signal_does_not_drop_running_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    for repeat_s, is_forced in ((60.0, False), (0.0, True)):
        monkeypatch.setattr("lifesign.serving.ending_signals.REPEAT_SECONDS", repeat_s)
        server = BoundedServer(uvicorn.Config(app))
        for _ in range(2):
            server.handle_exit(signal.SIGINT, None)
        assert (server.should_exit, server.force_exit) == (True, is_forced)
