"""Sends a request to an ASGI app without a network."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True)
class Answer:
    """The answer of an app to one request."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        values = [value.decode() for key, value in self.headers if key.decode().lower() == name]
        return values[0] if values else None


async def ask(
    app: App,
    path: str,
    *,
    method: str = "GET",
    body: object = None,
    raw: bytes | None = None,
    root_path: str = "",
    **extra: Any,
) -> Answer:
    """Send one request; `body` goes out as JSON, `raw` as it is, `extra` into the scope."""
    content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": root_path,
        "headers": [
            (b"host", b"agent.test"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
        ],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
        "state": {},
        **extra,
    }
    incoming: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if not incoming:
            # The caller stays until the answer is complete.
            await asyncio.Event().wait()
        return incoming.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    return Answer(
        status=start["status"],
        headers=tuple((bytes(name), bytes(value)) for name, value in start.get("headers", ())),
        body=b"".join(message.get("body", b"") for message in sent),
    )
