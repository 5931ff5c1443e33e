"""MCP servers of 2024-11-05 (HTTP with SSE), on real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


@dataclass
class StreamServer:
    """Opens an event stream for a GET of /sse, and answers POSTs of .../messages in it."""

    answer: Answer
    endpoint: str
    first: bytes = b""
    wrap: Callable[[bytes], bytes] = b"event: message\ndata: %s\n\n".__mod__
    """Returns the event of a message."""
    status: str = "202 Accepted"
    """Status of the answer to a POST."""
    delay_s: float = 0
    """Time from the answer to a POST until the message in the stream."""
    port: int = 0
    asked: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the client has ended an event stream."""
    _streams: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sse"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            method, target, _ = head.split(" ", 2)
            path, _, query = target.partition("?")
            self.queries.append(query)
            if method == "GET" and path == "/sse":
                self.asked.append("GET")
                await self._stream(reader, writer)
                return
            length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
            message = json.loads(await reader.readexactly(length)) if length else {}
            if not path.endswith("/messages"):
                self.asked.append(f"{path} {message.get('method')}")
                writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            self.asked.append(message["method"])
            status = self.status.encode()
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
            await writer.drain()
            await asyncio.sleep(self.delay_s)
            if (result := self.answer(message)) is not None:
                self._streams[-1].write(self.wrap(json.dumps(result).encode()))

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams.append(writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(self.first)
        if self.endpoint:
            writer.write(f"event: endpoint\ndata: {self.endpoint}\n\n".encode())
        await writer.drain()
        # The client ends it.
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.has_ended.set()


@asynccontextmanager
async def streaming(
    answer: Answer, endpoint: str = "/messages", first: bytes = b""
) -> AsyncIterator[StreamServer]:
    serving = StreamServer(answer, endpoint, first)
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(serving.serve(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    serving.port = server.sockets[0].getsockname()[1]
    try:
        yield serving
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def old(message: dict[str, Any]) -> dict[str, Any] | None:
    """A server of 2024-11-05."""
    results: dict[str, dict[str, Any]] = {
        "initialize": {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "old"}},
        "ping": {},
        "tools/list": {"tools": [{"name": "a"}]},
    }
    if message["method"] not in results:
        return None
    return {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
