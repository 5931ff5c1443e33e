"""Servers of the fleet: agents, each with a separate address, a name server, and canaries."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.fleet.kinds import KINDS, AgentState, Answer, Request
from tests.fleet.login import Login

PORT: Final = 8000
CLASS: Final = "127.20.0.0/16"
"""The network class of agents and canaries."""
CANARIES: Final = tuple(f"127.20.255.{number}" for number in range(1, 6))
NAME_SERVER: Final = "127.20.254.53"
LOGIN: Final = "127.20.253.1"
"""Address of the token endpoint."""
INBOUND: Final = "127.30.0.1"
"""Address at which heartbeat agents reach the registry."""
DOMAIN: Final = "fleet.example"
_REASONS: Final = {200: "OK", 304: "Not Modified"}
_MAX_BODY_BYTES: Final = 65_536


def address_of(number: int) -> str:
    """Return the address of an agent."""
    return f"127.20.{1 + number // 250}.{1 + number % 250}"


def name_of(number: int) -> str:
    """Return the host name of an agent."""
    return f"agent-{number}.{DOMAIN}"


def url_of(number: int) -> str:
    """Return the origin of an agent."""
    return f"http://{name_of(number)}:{PORT}"


class AgentHost:
    """One agent that listens on its address, or on none while it is dead and its kind closes the port."""

    def __init__(self, number: int, kind: str, interval_s: float, login: Login) -> None:
        self.number = number
        self.state = AgentState(url_of(number), KINDS[kind], interval_s, login)
        self._address = address_of(number)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, self._address, PORT)

    async def stop(self) -> None:
        """Close the port and every connection."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def die(self) -> None:
        """Answer as its kind does once it has died."""
        self.state.is_dead = True
        if self.state.kind.dead is None:
            await self.stop()

    async def revive(self) -> None:
        """Answer again."""
        self.state.is_dead = False
        await self.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while await self._answer_one(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read(reader)
        kind = self.state.kind
        reply = kind.dead if self.state.is_dead and kind.dead is not None else kind.alive
        answer = await reply(self.state, request)
        if not isinstance(answer, Answer):
            if answer is not None:
                writer.write(answer)
                await writer.drain()
            return False
        if "etag" in answer.headers and request.headers.get("if-none-match") == answer.headers["etag"]:
            answer = Answer(304, b"", answer.headers)
        writer.write(_written(answer, is_head=request.method == "HEAD"))
        await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    fields = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in fields if name}
    length = int(headers.get("content-length", "0"))
    body = await reader.readexactly(length) if length <= _MAX_BODY_BYTES else b""
    method, path, _ = first.split(" ", 2)
    return Request(method, path, headers, body)


def _written(answer: Answer, *, is_head: bool) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Something')}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if answer.status != 304:
        lines.append(f"content-length: {len(answer.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if is_head else answer.body)


@asynccontextmanager
async def canaries() -> AsyncIterator[None]:
    """Serve the canaries."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_written(Answer(200, b"ok"), is_head=False))
            await writer.drain()
        writer.close()

    servers = [await asyncio.start_server(serve, address, PORT) for address in CANARIES]
    try:
        yield
    finally:
        for server in servers:
            server.close()
