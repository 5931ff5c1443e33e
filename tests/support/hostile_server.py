"""Invalid answers of a peer: real sockets on 127.0.0.1, raw bytes, no HTTP library."""

import asyncio
import contextlib
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[[asyncio.StreamWriter, str], Awaitable[None]]
"""Writes one answer; the text is the head of the request."""

CARD_PATH = "/.well-known/agent-card.json"
OLD_CARD_PATH = "/.well-known/agent.json"
HEALTH_PATH = "/.well-known/agent-health"


@dataclass
class HostileServer:
    """Serves each path by its reply, 404 elsewhere, and stores the requests."""

    replies: dict[str, Reply]
    port: int = 0
    scheme: str = "http"
    host: str = "127.0.0.1"
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    is_kept_alive: bool = False
    """Whether a connection takes further requests."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [head.split(" ", 2)[1] for head in self.heads]

    def asked(self, path: str) -> dict[str, str]:
        """Header fields of the last request for a path, names in lower case."""
        head = [head for head in self.heads if head.split(" ", 2)[1] == path][-1]
        fields = (line.partition(":") for line in head.split("\r\n")[1:])
        return {name.lower(): value.strip() for name, _, value in fields if name}

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Disconnected peers are expected in these tests.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError, ssl.SSLError):
            self.connections += 1
            await self._reply_to_one(reader, writer)
            while self.is_kept_alive:
                await self._reply_to_one(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            await writer.wait_closed()

    async def _reply_to_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        await self.replies.get(head.split(" ", 2)[1], answer(404))(writer, head)
        await writer.drain()


@contextlib.asynccontextmanager
async def serving(
    replies: Mapping[str, Reply],
    tls: ssl.SSLContext | None = None,
    *,
    host: str = "127.0.0.1",
    keeps_alive: bool = False,
) -> AsyncIterator[HostileServer]:
    """Run a server until the block ends; open connections are cut then."""
    hostile = HostileServer(
        dict(replies), scheme="https" if tls else "http", host=host, is_kept_alive=keeps_alive
    )
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await hostile.serve_one(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def accepting(
    greet: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    host: str = "127.0.0.1",
) -> AsyncIterator[int]:
    """Do the same with every connection, before any request; yields the port."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await greet(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(accept, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def raw(data: bytes) -> Reply:
    """Exactly these bytes, then the end of the connection."""

    async def reply(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(data)

    return reply


def gated(reply: Reply) -> Reply:
    """This reply to a request with any `Authorization`, and 401 to others."""

    async def admitting(writer: asyncio.StreamWriter, head: str) -> None:
        await (reply if "\r\nauthorization: " in head.lower() else answer(401))(writer, head)

    return admitting


def answer(status: int, body: bytes = b"", **headers: str) -> Reply:
    """A whole answer; underscores in header names become hyphens. A `Content-Length` of one's own wins."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    fields.setdefault("Content-Length", str(len(body)))
    lines = [f"HTTP/1.1 {status} Whatever", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def kept(body: bytes = b"{}", status: int = 200, **headers: str) -> Reply:
    """A whole answer after which the connection may take another request."""
    fields = {"Content_Type": "application/json", "Content_Length": str(len(body))} | headers
    lines = [f"HTTP/1.1 {status} Whatever"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def as_json(value: Any, **headers: str) -> Reply:
    return answer(200, json.dumps(value).encode(), **({"Content_Type": "application/json"} | headers))


def redirect(location: str, status: int = 302) -> Reply:
    return answer(status, Location=location)


def bomb(size: int, coding: str = "gzip", compress: Callable[[bytes], bytes] = gzip.compress) -> Reply:
    """A small answer that decompresses to `size` spaces. It is created on request."""

    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        body = compress(b" " * size)
        await answer(200, body, Content_Type="application/json", Content_Encoding=coding)(writer, head)

    return reply


def broken_chunks() -> Reply:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return raw(head + b"zz\r\n{}\r\n0\r\n\r\n")


async def reset(writer: asyncio.StreamWriter, _head: str) -> None:
    """Cut the connection off without a word."""
    writer.transport.abort()


async def endless_body(writer: asyncio.StreamWriter, _head: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        writer.write(b" " * 65536)
        await writer.drain()


async def endless_headers(writer: asyncio.StreamWriter, _head: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: of the same\r\n" * 100)
        await writer.drain()


async def endless_header_line(writer: asyncio.StreamWriter, _head: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        writer.write(b"a" * 65536)
        await writer.drain()


async def endless_chunk_extension(writer: asyncio.StreamWriter, _head: str) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5;a="
    )
    while True:
        writer.write(b"a" * 65536)
        await writer.drain()


def drip(pause: Callable[[], Awaitable[Any]]) -> Reply:
    """A body that never ends, one byte at a time; `pause` is awaited between them."""

    async def reply(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await pause()

    return reply


def drip_header(pause: Callable[[], Awaitable[Any]]) -> Reply:
    """A header that never ends, one byte at a time; `pause` is awaited between them."""

    async def reply(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            writer.write(b"a")
            await writer.drain()
            await pause()

    return reply


async def endless_hints(writer: asyncio.StreamWriter, _head: str) -> None:
    """Answers before the answer, each of them small (RFC 8297)."""
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100)
        await writer.drain()


async def endless_chunks(writer: asyncio.StreamWriter, _head: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\n \r\n" * 1000)
        await writer.drain()


async def silence(_writer: asyncio.StreamWriter, _head: str) -> None:
    """Take the request and never answer."""
    await asyncio.Event().wait()
