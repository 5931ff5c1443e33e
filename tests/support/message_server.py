"""An agent that records messages and answers them as a test wants. Real sockets, no HTTP library."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.hostile_server import CARD_PATH


@dataclass(frozen=True)
class Got:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Says:
    """An answer; `body` is written as JSON unless it is bytes. `after_s` is awaited first."""

    body: Any = b""
    status: int = 200
    content_type: str = "application/json"
    after_s: float = 0
    headers: str = ""


@dataclass
class Agent:
    """Serves its card, and answers every POST as `answers` sets."""

    answers: Callable[[Got], Says]
    port: int = 0
    card: dict[str, Any] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    others: Callable[[Got], Says] = lambda _: Says(status=405)
    """Answers to whatever is no POST and no request for the card."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def posted(self) -> list[Got]:
        return [got for got in self.got if got.method == "POST"]

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            fields = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in fields if name}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = first.split(" ")
            got = Got(method, path, headers, body)
            self.got.append(got)
            says = self._says(got)
            await asyncio.sleep(says.after_s)
            sent = says.body if isinstance(says.body, bytes) else json.dumps(says.body).encode()
            start = f"HTTP/1.1 {says.status} Whatever\r\nContent-Type: {says.content_type}\r\n{says.headers}"
            writer.write(f"{start}Content-Length: {len(sent)}\r\nConnection: close\r\n\r\n".encode() + sent)
            await writer.drain()

    def _says(self, got: Got) -> Says:
        if got.method == "POST":
            return self.answers(got)
        return Says(self.card) if got.path == CARD_PATH else self.others(got)


@asynccontextmanager
async def agent(
    answers: Callable[[Got], Says], card: dict[str, Any], path: str = "/rpc"
) -> AsyncIterator[Agent]:
    """Run an agent whose card has its `url`, or its one interface's, at `path`."""
    serving = Agent(answers)
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serving.serve_one(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    serving.port = server.sockets[0].getsockname()[1]
    place = {"url": serving.url + path}
    if interfaces := card.get("supportedInterfaces"):
        card = {key: value for key, value in card.items() if key != "url"}
        serving.card = card | {"supportedInterfaces": [interfaces[0] | place, *interfaces[1:]]}
    else:
        serving.card = card | place
    try:
        yield serving
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await server.wait_closed()
