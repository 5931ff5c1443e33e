"""How did one request end? Follows its ASGI messages, which reach app and server untouched.

A request is judged once. Where its last message leaves no doubt, that is as soon as the server took
that message, so that background tasks delay nothing; else it is when the application returns: a
stream closed by an empty body may have been closed so by a middleware that is about to raise the
stream's own exception.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol

from agent_health.a2a_answer import (
    NotJson,
    TooDeep,
    expects_rpc_answer,
    is_poll,
    outcome_of_json,
    outcome_of_stream,
    parse_or_none,
)
from agent_health.outcome import Outcome, outcome_of_exception, outcome_of_status

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_TAIL_MESSAGES = 16
"""So many last messages of a stream are kept to see how it ended; SDKs send one per event."""
_MOST_CAUSES = 16
"""How far an exception's causes are followed."""


class Observer(Protocol):
    """What an exchange needs of the middleware: settings, the clock, and where to count."""

    timeout_ns: int
    max_inspected_bytes: int
    streams_by_first_byte: bool
    now_ns: Callable[[], int]

    def count(self, outcome: int, latency_ns: int, first_byte_ns: int | None, now_ns: int) -> None:
        """Count one interaction; may raise."""

    def complain(self, what: str) -> None:
        """Log the exception being handled."""


class _Content(Enum):
    JSON = 1
    EVENTS = 2
    OTHER = 3


class _Kept:
    """The messages of one body, as long as they are few bytes."""

    __slots__ = ("messages", "room")

    def __init__(self, most_bytes: int) -> None:
        self.messages: list[Message] = []
        self.room = most_bytes

    def append(self, message: Message) -> None:
        self.room -= len(message.get("body", b""))
        if self.room >= 0:
            self.messages.append(message)
        else:
            self.messages.clear()

    def body(self) -> bytes | None:
        """Return the bytes, None if there were too many."""
        return None if self.room < 0 else _joined(self.messages)


_KEEP_NOTHING: deque[Message] = deque(maxlen=0)


class Exchange:
    """One request and its answer. The app gets `receive` and `send` in place of the server's."""

    __slots__ = (
        "_began_ns", "_chunks", "_ended_ns", "_first_byte_ns", "_is_complete", "_left_ns", "_observer",
        "_receive", "_request", "_scope", "_send", "_sending", "_start", "is_judged",
    )  # fmt: skip

    def __init__(self, observer: Observer, scope: Scope, receive: Receive, send: Send) -> None:
        self._observer = observer
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._chunks: deque[Message] | _Kept | None = None
        self._request: _Kept | None = None
        self._first_byte_ns = self._ended_ns = self._left_ns = 0
        self._is_complete = self.is_judged = False
        self._began_ns = observer.now_ns()

    async def receive(self) -> Message:
        """Pass on what the caller sends; keep a small body, note when the caller leaves."""
        message = await self._receive()
        kind = message.get("type")
        if kind == "http.request":
            if self._request is None:
                self._request = _Kept(self._observer.max_inspected_bytes)
            self._request.append(message)
        elif kind == "http.disconnect" and not self._ended_ns and not self._left_ns:
            self._left_ns = self._observer.now_ns()
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Pass on what the app answers. Not a coroutine itself: it costs a third of one per chunk."""
        if self._chunks is not None and message.get("more_body"):
            self._chunks.append(message)
            self._sending = sending = self._send(message)
            return sending
        kind = message.get("type")
        if kind in {"http.response.body", "http.response.zerocopysend"}:
            if not message.get("more_body"):
                return self._send_last(message)
            if message.get("body") or kind != "http.response.body":
                self._begin_stream(message)
        elif kind == "http.response.start":
            if self._start is None:
                self._start = message
        elif kind == "http.response.pathsend" or (
            kind == "http.response.trailers" and not message.get("more_trailers")
        ):
            return self._send_last(message)
        self._sending = sending = self._send(message)
        return sending

    def end(self, error: BaseException | None = None) -> None:
        """Judge the exchange, unless it has been: the app has returned or raised."""
        if self.is_judged:
            return
        self.is_judged = True
        now_ns = self._observer.now_ns()
        try:
            outcome, content = self._judged(error, now_ns)
            ended_ns = self._ended_ns or self._left_ns or now_ns
            latency_ns = ended_ns - self._began_ns
            first_byte_ns = None
            if content is _Content.EVENTS and (self._first_byte_ns or self._ended_ns):
                first_byte_ns = (self._first_byte_ns or self._ended_ns) - self._began_ns
                if self._observer.streams_by_first_byte:
                    latency_ns = first_byte_ns
            self._observer.count(outcome, latency_ns, first_byte_ns, now_ns)
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            self._observer.complain("a request could not be counted")

    def _begin_stream(self, message: Message) -> None:
        """Note the first bytes of a body in several messages, and keep what is needed of the rest."""
        self._first_byte_ns = self._observer.now_ns()
        content, _ = self._content()
        if content is _Content.EVENTS and self._observer.max_inspected_bytes:
            self._chunks = deque(maxlen=_TAIL_MESSAGES)
        elif content is _Content.JSON and self._observer.max_inspected_bytes:
            self._chunks = _Kept(self._observer.max_inspected_bytes)
        else:
            self._chunks = _KEEP_NOTHING
        self._chunks.append(message)

    async def _send_last(self, message: Message) -> None:
        is_trailer = message["type"] == "http.response.trailers"
        if not is_trailer and not self._ended_ns:
            self._ended_ns = self._observer.now_ns()
        try:
            await self._send(message)
        except OSError:
            self._left_ns = self._left_ns or self._observer.now_ns()
            raise
        if self._start is None or (self._start.get("trailers") and not is_trailer):
            return
        self._is_complete = True
        if self._chunks is None:
            # All in one message, which is final.
            self._chunks = _Kept(self._observer.max_inspected_bytes)
            self._chunks.append(message)
            self.end()
        elif message.get("body"):
            self._chunks.append(message)
            self.end()

    def _judged(self, error: BaseException | None, now_ns: int) -> tuple[Outcome, _Content]:
        content, is_readable = self._content()
        is_whole = self._is_complete and (error is None or self._declares_length())
        if self._left_ns or (not is_whole and _is_raised_in(self._sending_or_none(), error)):
            return self._abandoned(self._left_ns or now_ns), content
        if not is_whole:
            outcome = Outcome.UNFINISHED if error is None else outcome_of_exception(error)
            return (self._abandoned(now_ns) if outcome is Outcome.ABANDONED else outcome), content
        if (self._first_byte_ns or self._ended_ns) - self._began_ns > self._observer.timeout_ns:
            return Outcome.TIMED_OUT, content
        status = self._start["status"] if self._start else 0
        if not 200 <= status < 300:
            return outcome_of_status(status, has_route=_has_route(self._scope)), content
        if content is _Content.OTHER or not self._observer.max_inspected_bytes:
            return Outcome.ANSWERED, content
        return (self._said(content, status) if is_readable else Outcome.UNINSPECTED), content

    def _abandoned(self, left_ns: int) -> Outcome:
        is_late = left_ns - self._began_ns > self._observer.timeout_ns
        return Outcome.ABANDONED_LATE if is_late else Outcome.ABANDONED

    def _said(self, content: _Content, status: int) -> Outcome:
        """Judge a 2xx answer by what it says."""
        try:
            outcome = self._said_in_events() if content is _Content.EVENTS else self._said_in_json(status)
        except TooDeep:
            return Outcome.UNINSPECTED
        except NotJson:
            return Outcome.MALFORMED if expects_rpc_answer(self._call()) else Outcome.ANSWERED
        if outcome is Outcome.TASK_FAILED and is_poll(
            self._scope["method"], self._scope["path"], self._call()
        ):
            return Outcome.ANSWERED
        return outcome

    def _said_in_json(self, status: int) -> Outcome:
        body = self._chunks.body() if isinstance(self._chunks, _Kept) else b""
        if body is None:
            return Outcome.UNINSPECTED
        if not body and status != 200:
            return Outcome.ANSWERED
        return outcome_of_json(body)

    def _said_in_events(self) -> Outcome:
        most = self._observer.max_inspected_bytes
        if isinstance(self._chunks, deque):
            tail = _joined(self._chunks)
            is_whole = len(self._chunks) < _TAIL_MESSAGES and len(tail) <= most
            return outcome_of_stream(tail[-most:], is_whole=is_whole)
        body = self._chunks.body() if self._chunks else b""
        return Outcome.UNINSPECTED if body is None else outcome_of_stream(body, is_whole=True)

    def _call(self) -> object:
        """What the caller sent, parsed; None if it is not known or no JSON."""
        body = self._request.body() if self._request else None
        return parse_or_none(body) if body else None

    def _content(self) -> tuple[_Content, bool]:
        """What the answer claims to be, and whether it can be read (is not compressed)."""
        content, is_readable = _Content.OTHER, True
        for name, value in self._start.get("headers", ()) if self._start else ():
            if name == b"content-type":
                content = _content_of(bytes(value))
            elif name == b"content-encoding":
                is_readable = value == b"identity"
        return content, is_readable

    def _declares_length(self) -> bool:
        headers = self._start.get("headers", ()) if self._start else ()
        return any(name == b"content-length" for name, _ in headers)

    def _sending_or_none(self) -> object:
        return getattr(self, "_sending", None)


@lru_cache(maxsize=256)
def _content_of(content_type: bytes) -> _Content:
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"text/event-stream":
        return _Content.EVENTS
    is_json = media_type == b"application/json" or media_type.endswith(b"+json")
    return _Content.JSON if is_json else _Content.OTHER


def _joined(messages: "deque[Message] | list[Message]") -> bytes:
    return b"".join([message.get("body", b"") for message in messages])


def _has_route(scope: Scope) -> bool:
    """Whether a route of the app matched, where its framework tells (Starlette, FastAPI)."""
    if "route" in scope:
        return True
    # A mounted app is an endpoint too, but says nothing about its own routes.
    endpoint = scope.get("endpoint")
    return endpoint is not None and not hasattr(endpoint, "routes")


def _is_raised_in(sending: object, error: BaseException | None) -> bool:
    """Whether an OSError among the causes of `error` came out of the server's `send`: the caller left.

    The app's own OSErrors, of its lost backend for one, look the same but for their traceback.
    """
    code = getattr(sending, "cr_code", None)
    if code is None:
        return False
    return any(
        isinstance(cause, OSError) and any(frame is code for frame in _codes(cause))
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    waiting = [error]
    for _ in range(_MOST_CAUSES):
        if not waiting:
            return
        cause = waiting.pop()
        if cause is None:
            continue
        yield cause
        waiting += (cause.__cause__, cause.__context__)
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions


def _codes(error: BaseException) -> Iterator[object]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next
