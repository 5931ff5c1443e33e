"""MCP servers that misbehave, over Streamable HTTP and over HTTP with SSE, on real sockets."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.mcp_stream_server import Answer, old, streaming

from lifesign.domain.mcp.conversation import CURRENT_VERSION

NOTIFICATION = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}
TOOL = {"name": "a", "inputSchema": {"type": "object"}}
MEGABYTE = "x" * 1_000_000
JSON, EVENTS, HTML = "application/json", "text/event-stream", "text/html"

Message = dict[str, Any]
Parts = Iterable[bytes] | None
"""An answer as it is sent; None is never sent."""
Reaction = Callable[[Message], Parts]


@asynccontextmanager
async def reacting(react: Reaction) -> AsyncIterator[str]:
    """Answer each POST by `react`, whatever the path; yield the URL. A GET gets 404."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
            message = json.loads(await reader.readexactly(length)) if length else {}
            parts = react(message) if head.startswith("POST") else whole(status=404)
            for part in parts or ():
                writer.write(part)
                await writer.drain()
            if head.startswith("POST") and (parts is None or not isinstance(parts, list)):
                # The client ends it.
                await reader.read()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def whole(value: Any = None, *, status: int = 200, kind: str = JSON, headers: str = "") -> list[bytes]:
    """A complete answer; `value` is written as JSON unless it is bytes."""
    body = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
    start = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {kind}\r\n{headers}"
    return [f"{start}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body]


def endless(*parts: bytes, then: bytes = b"", kind: str = EVENTS) -> Iterable[bytes]:
    """An answer without an end: `then` again and again, or nothing more."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()
    return itertools.chain([head, *parts], itertools.repeat(then) if then else ())


def event(value: Any, name: str = "message") -> bytes:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


def result_of(message: Message) -> Message:
    """The result of a server that speaks both generations."""
    match message["method"]:
        case "server/discover":
            return {"supportedVersions": [CURRENT_VERSION], "capabilities": {}}
        case "initialize":
            return {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "odd"}}
        case "tools/list":
            return {"tools": [TOOL]}
        case _:
            return {}


def reply(message: Message, **result: Any) -> Message:
    return {"jsonrpc": "2.0", "id": message.get("id"), "result": result_of(message) | result}


def older(react: Reaction) -> Reaction:
    """A server that needs a handshake."""
    return lambda message: whole(status=404) if message["method"] == "server/discover" else react(message)


def on_list(react: Reaction) -> Reaction:
    """A server whose list of tools alone is odd."""
    return lambda message: react(message) if message["method"] == "tools/list" else whole(reply(message))


def fifty_megabytes(message: Message) -> Iterable[bytes]:
    start = b'{"jsonrpc": "2.0", "id": %d, "result": {"tools": [' % message["id"]
    tool = json.dumps(TOOL | {"description": MEGABYTE}).encode() + b","
    return endless(start, *[tool] * 50, kind=JSON)


_numbers = itertools.count()


def changed_session(message: Message) -> Parts:
    return whole(reply(message), headers=f"Mcp-Session-Id: s-{next(_numbers)}\r\n")


def next_page(message: Message) -> Parts:
    return whole(reply(message, nextCursor=f"c-{next(_numbers)}"))


def offered_version(message: Message) -> Parts:
    error = {"code": -32022, "message": "no", "data": {"supported": ["2099-01-01"]}}
    return whole({"jsonrpc": "2.0", "id": message.get("id"), "error": error}, status=400)


@dataclass(frozen=True)
class Hostile:
    """A server, and the class of its discovery and of its list of tools."""

    react: Reaction
    discovery: str
    tools: str | None = None
    is_late: bool = False
    """Whether only the time limit ends it."""


OVER_HTTP = {
    "never answers initialize": Hostile(older(lambda _: None), "timeout", is_late=True),
    "stops within the answer": Hostile(
        lambda _: iter([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"]),
        "timeout",
        is_late=True,
    ),
    "changes its session id": Hostile(older(changed_session), "ok", "ok"),
    "thousand notifications": Hostile(
        lambda message: whole(event(NOTIFICATION) * 1_000 + event(reply(message)), kind=EVENTS), "ok", "ok"
    ),
    "ten thousand events": Hostile(
        lambda message: whole(event(1) * 10_000 + event(reply(message)), kind=EVENTS), "not_an_agent"
    ),
    "thousand notifications, no answer": Hostile(
        lambda _: endless(event(NOTIFICATION) * 1_000), "timeout", is_late=True
    ),
    "batch of 10,000": Hostile(
        lambda message: whole([reply(message) | {"id": 10 + each} for each in range(10_000)]), "too_large"
    ),
    "batch of 10,000 in events": Hostile(
        lambda message: whole(event([NOTIFICATION] * 10_000) + event(reply(message)), kind=EVENTS), "ok", "ok"
    ),
    "list of 50 MB": Hostile(on_list(fifty_megabytes), "ok", "too_large"),
    "list without an end": Hostile(
        on_list(lambda _: endless(then=b" " * 65_536, kind=JSON)), "ok", "too_large"
    ),
    "pages without an end": Hostile(on_list(next_page), "ok", "too_large"),
    "repeated cursor": Hostile(
        on_list(lambda message: whole(reply(message, nextCursor="c"))), "ok", "invalid_document"
    ),
    "wrong version": Hostile(
        older(lambda message: whole(reply(message, protocolVersion=2025))), "not_an_agent"
    ),
    "offers versions forever": Hostile(offered_version, "invalid_document"),
    "HTML": Hostile(lambda _: whole(b"<html>", kind=HTML), "not_an_agent"),
    "HTML without an end": Hostile(lambda _: endless(then=b"<p>" * 20_000, kind=HTML), "too_large"),
    "silent stream": Hostile(lambda _: endless(event(NOTIFICATION)), "timeout", is_late=True),
    "stream without an end": Hostile(lambda _: endless(then=event(NOTIFICATION) * 1_000), "too_large"),
    "event without an end": Hostile(lambda _: endless(then=b"data: " + b"x" * 65_536), "too_large"),
    "stream that goes on": Hostile(
        lambda message: endless(event(reply(message)), then=event(NOTIFICATION)), "ok", "ok"
    ),
    "ids of the wrong type": Hostile(
        lambda message: whole([reply(message) | {"id": wrong} for wrong in ("1", 1.0, None, [1], True)]),
        "not_an_agent",
    ),
}


@dataclass(frozen=True)
class HostileStream:
    """A server of 2024-11-05, and the class of its discovery and of its list of tools."""

    answer: Answer
    discovery: str | None
    """None if it depends on what was known before."""
    tools: str | None = None
    is_late: bool = False
    endpoint: str = "/messages"
    first: bytes = b""
    before: bytes = b""
    """Sent in front of each message."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with streaming(self.answer, self.endpoint, self.first) as server:
            server.wrap = lambda data: self.before + b"data: " + data + b"\n\n"
            yield server.url


def listing(**result: Any) -> Answer:
    return lambda message: reply(message, **result) if message["method"] == "tools/list" else old(message)


def numbered_pages(message: Message) -> Message | None:
    return listing(nextCursor=f"c-{next(_numbers)}")(message)


def with_id(change: Callable[[Any], Any]) -> Answer:
    def answer(message: Message) -> Message | None:
        result = old(message)
        return result and result | {"id": change(result["id"])}

    return answer


OVER_SSE = {
    "never answers initialize": HostileStream(lambda _: None, "timeout", is_late=True),
    "thousand notifications": HostileStream(old, "ok", "ok", before=event(NOTIFICATION) * 1_000),
    "ten thousand events": HostileStream(old, "timeout", is_late=True, before=event(1) * 10_000),
    "batch of 10,000": HostileStream(
        old, "ok", "ok", before=event([{"jsonrpc": "2.0", "id": -1, "result": {}}] * 10_000)
    ),
    "list of 50 MB": HostileStream(listing(tools=[TOOL | {"description": MEGABYTE * 50}]), "ok", "timeout"),
    "pages without an end": HostileStream(numbered_pages, "ok", "too_large"),
    "repeated cursor": HostileStream(listing(nextCursor="c"), "ok", "invalid_document"),
    "wrong version": HostileStream(lambda message: reply(message, protocolVersion="9" * 400), "not_an_agent"),
    "ids of the wrong type": HostileStream(with_id(str), "timeout", is_late=True),
    "no endpoint": HostileStream(old, None, is_late=True, endpoint=""),
    "stream without an end": HostileStream(
        old, "too_large", endpoint="", first=event(NOTIFICATION) * 100_000
    ),
    "other origin": HostileStream(old, "invalid_document", endpoint="https://other.example/messages"),
}
