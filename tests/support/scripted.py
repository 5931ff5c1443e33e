"""Plays both sides of one request: the app and the server."""

import asyncio
import json
from collections.abc import Awaitable, Generator, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.hand_clock import HandClock

from lifesign import AgentHealthMiddleware
from lifesign.domain.health.document import HealthDocument
from lifesign.middleware.asgi import App
from lifesign.middleware.exchange import Receive, Scope, Send

Message = MutableMapping[str, Any]

OUTCOMES = "io.github.lifesign.outcomes"
PLAIN = {"content-type": "text/plain; charset=utf-8"}
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def start(status: int = 200, headers: Mapping[str, str] = PLAIN, **more: Any) -> Message:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs, **more}


def chunk(body: bytes = b"...") -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def final(body: bytes = b"") -> Message:
    return {"type": "http.response.body", "body": body, "more_body": False}


def request(body: bytes = b"", *, more_body: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more_body}


def call(method: str = "SendMessage", **members: Any) -> Message:
    """A JSON-RPC call, as the request's only message."""
    return request(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, **members}).encode())


DISCONNECT: Message = {"type": "http.disconnect"}
TRAILERS: dict[str, Any] = {
    "type": "http.response.trailers",
    "headers": [(b"x-sum", b"1")],
    "more_trailers": False,
}
PATHSEND: dict[str, Any] = {"type": "http.response.pathsend", "path": "/srv/answer.txt"}
ZEROCOPY: dict[str, Any] = {"type": "http.response.zerocopysend", "file": 3, "count": 100}

CANCELLED = "cancelled"
"""A step: the server cancels the task that runs the app."""
RECEIVE = "receive"
"""A step: take one message from the server."""


@dataclass(frozen=True)
class Tolerantly:
    """A step: send a message, and continue if the server raises OSError."""

    message: Message


Step = Message | float | str | BaseException | Tolerantly
"""A message is sent, a number of seconds passes, RECEIVE receives, an exception is raised."""


async def be_cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def app_of(steps: Iterable[Step], clock: HandClock) -> App:
    """An app that does one step after the other."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for step in steps:
            if step == CANCELLED:
                await be_cancelled()
            elif isinstance(step, BaseException):
                raise step
            elif isinstance(step, Tolerantly):
                try:
                    await send(step.message)
                except OSError:
                    continue
            elif isinstance(step, str):
                await receive()
            elif isinstance(step, float | int):
                clock.advance(step)
            else:
                await send(step)

    return app


class _Sending:
    """An awaitable that is no coroutine, as of a server that is not written in Python."""

    def __init__(self, server: "Server", message: Message) -> None:
        self._server = server
        self._message = message

    def __await__(self) -> Generator[Any, None, None]:
        self._server.take(self._message)
        yield from ()


class Server:
    """The server's side of one request: gives `incoming`, keeps `sent`, fails at a chosen `send`.

    When `incoming` is used up, `receive` waits until the caller leaves.
    """

    def __init__(
        self, *incoming: Message, fails_at: int | None = None, error: BaseException | None = None
    ) -> None:
        self.incoming = list(incoming or (request(),))
        self.sent: list[Message] = []
        self.error = error or OSError("the caller left")
        self._fails_at = fails_at
        self._attempts = 0
        self._has_left = asyncio.Event()

    def leave(self) -> None:
        """The caller leaves."""
        self._has_left.set()

    async def receive(self) -> Message:
        if self.incoming:
            return self.incoming.pop(0)
        await self._has_left.wait()
        return DISCONNECT

    def take(self, message: Message) -> None:
        self._attempts += 1
        if self._fails_at is not None and self._attempts >= self._fails_at:
            raise self.error
        self.sent.append(message)

    async def send(self, message: Message) -> None:
        self.take(message)

    def send_plain(self, message: Message) -> Awaitable[None]:
        return _Sending(self, message)

    async def __call__(self, message: Message) -> None:
        self.take(message)

    def senders(self) -> dict[str, Send]:
        """Return the possible kinds of `send`, which behave the same."""
        return {"coroutine function": self.send, "plain function": self.send_plain, "object": self}


@dataclass
class Played:
    """The course of one request."""

    middleware: AgentHealthMiddleware
    server: Server
    error: BaseException | None = None
    scope: Scope = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, int]:
        return outcomes(self.middleware)

    @property
    def outcome(self) -> str:
        """Return the outcome of the request: it was counted once."""
        counted = self.outcomes
        assert sum(counted.values()) == 1, counted
        return next(iter(counted))

    @property
    def latency_ms(self) -> float:
        calibration = self.middleware.health.document().calibration
        assert calibration is not None
        assert calibration.latency_p99_ms is not None
        return calibration.latency_p99_ms


def outcomes(middleware: AgentHealthMiddleware) -> dict[str, int]:
    """Return the number of requests by outcome."""
    counted: dict[str, int] = (middleware.health.document().extensions or {})[OUTCOMES]
    return counted


def document_of(middleware: AgentHealthMiddleware) -> HealthDocument:
    return middleware.health.document()


def http_scope(path: str = "/ask", method: str = "POST", **more: Any) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"agent.test")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
        "state": {},
        **more,
    }


async def play(
    app: App | Sequence[Step],
    *,
    server: Server | None = None,
    clock: HandClock | None = None,
    scope: Scope | None = None,
    send: str = "coroutine function",
    **settings: Any,
) -> Played:
    """Send one request through a new middleware around `app`, which may be given as its steps."""
    clock = clock or HandClock()
    server = server or Server()
    scope = http_scope() if scope is None else scope
    wrapped = app if callable(app) else app_of(app, clock)
    middleware = AgentHealthMiddleware(wrapped, agent_id="agent", clock=clock.clock, **settings)
    played = Played(middleware, server, scope=scope)
    try:
        await middleware(scope, server.receive, server.senders()[send])
    except BaseException as error:  # noqa: BLE001 - whatever leaves the app is looked at by the test
        played.error = error
        if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()):
            task.uncancel()
    return played


def event(data: bytes, name: bytes = b"") -> bytes:
    return (b"event: %s\r\n" % name if name else b"") + b"data: %s\r\n\r\n" % data


def working(text: str = "...") -> bytes:
    update = {"artifactUpdate": {"artifact": {"parts": [{"text": text}]}}}
    return event(json.dumps({"jsonrpc": "2.0", "id": 1, "result": update}).encode())


async def answered(
    body: bytes | list[bytes],
    headers: dict[str, str],
    *,
    asked: Any = None,
    status: int = 200,
    scope: Any = None,
    **settings: Any,
) -> str:
    """Count one answer whose body comes in one message, or in several with an empty last one."""
    bodies: list[Step] = [final(body)] if isinstance(body, bytes) else [*map(chunk, body), final()]
    steps: list[Step] = [RECEIVE, start(status, headers), *bodies]
    played = await play(steps, server=Server(asked or call()), scope=scope, **settings)
    assert played.error is None
    return played.outcome
