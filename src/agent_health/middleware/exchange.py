"""How did one request end? Follows its ASGI messages, which reach app and server untouched.

A request is counted once. Where its last message leaves no doubt, that is when the server gets that
message, so that background tasks delay nothing; else it is when the application returns: a stream
closed by an empty body may have been closed so by a middleware that is about to raise the stream's
own exception.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from agent_health.a2a_answer import NotJson, expects_rpc_answer, is_poll, parse_or_none
from agent_health.middleware.body import (
    EVENTS,
    OTHER,
    Message,
    ShortBody,
    StreamedBody,
    content_of,
    header,
    outcome_of_body,
)
from agent_health.outcome import ANSWERED, TASK_FAILED, Outcome, outcome_of_exception, outcome_of_status

Scope = Message
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_BODY_KINDS = frozenset({"http.response.body", "http.response.zerocopysend", "http.response.pathsend"})
_MOST_CAUSES = 16
"""How many causes of an exception are looked at."""


class Observer(Protocol):
    """What an exchange needs of the middleware: settings, the clock, and where to count."""

    timeout_ns: int
    quick_ns: int
    max_inspected_bytes: int
    streams_by_first_byte: bool
    now_ns: Callable[[], int]

    def count(self, outcome: int, latency_ns: int, first_byte_ns: int | None, now_ns: int) -> None:
        """Count one interaction; may raise."""

    def count_quick_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one answer that took less than `quick_ns`; may raise."""

    def take_back(self, latency_ns: int) -> None:
        """Turn an answer that was just counted into an abandoned one; may raise."""

    def complain(self, what: str) -> None:
        """Log the exception being handled."""


class Exchange:
    """One request and its answer. The app gets `receive` and `send` in place of the server's."""

    __slots__ = (
        "_began_ns", "_body", "_content", "_ended_ns", "_first_byte_ns", "_is_complete", "_last", "_left_ns",
        "_observer", "_receive", "_request", "_scope", "_send", "_sending", "_start", "is_counted",
    )  # fmt: skip

    def __init__(self, observer: Observer, scope: Scope, receive: Receive, send: Send) -> None:
        self._observer = observer
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._content = OTHER
        self._body: StreamedBody | None = None
        self._request: Message | ShortBody | None = None
        self._first_byte_ns = self._ended_ns = self._left_ns = 0
        self._is_complete = self.is_counted = False
        self._began_ns = observer.now_ns()

    async def receive(self) -> Message:
        """Pass on what the caller sends; keep a short body, note when the caller leaves."""
        message = await self._receive()
        kind = message["type"]
        if kind == "http.request":
            if self._request is None:
                # Nearly always the only one.
                self._request = message
            else:
                self._keep_request(message)
        elif kind == "http.disconnect" and not self._ended_ns and not self._left_ns:
            self._left_ns = self._observer.now_ns()
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Pass on what the app answers. Not a coroutine itself: it costs a third of one per chunk."""
        body = self._body
        if body is not None and message.get("more_body"):
            body.append(message)
        else:
            kind = message["type"]
            if kind == "http.response.start":
                if self._start is None:
                    self._start = message
            elif kind in _BODY_KINDS:
                if not message.get("more_body"):
                    return self._send_last(message)
                if message.get("body") or kind != "http.response.body":
                    self._begin_stream(message)
            elif kind == "http.response.trailers" and not message.get("more_trailers"):
                return self._send_trailers(message)
        self._sending = self._send(message)
        return self._sending

    def end(self, error: BaseException | None = None) -> None:
        """Count the exchange, if it has not been: the app has returned or raised."""
        observer = self._observer
        try:
            if not self.is_counted:
                self.is_counted = True
                self._count(error)
            elif not self._is_complete and _is_raised_in(self._sending, error):
                # The send before which it was counted found that the caller had left.
                observer.take_back(self._ended_ns - self._began_ns)
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            observer.complain("a request could not be counted")

    def _keep_request(self, message: Message) -> None:
        if not isinstance(self._request, ShortBody):
            first, self._request = self._request, ShortBody(self._observer.max_inspected_bytes)
            if first is not None:
                self._request.append(first)
        self._request.append(message)

    def _begin_stream(self, message: Message) -> None:
        if self._start is not None:
            self._first_byte_ns = self._observer.now_ns()
            self._content = content_of(self._start)
            self._body = StreamedBody(self._content, self._observer.max_inspected_bytes)
            self._body.append(message)

    def _send_last(self, message: Message) -> Awaitable[None]:
        """Send the last message of the body; a quick plain answer is counted just before."""
        observer = self._observer
        self._ended_ns = ended_ns = observer.now_ns()
        start = self._start
        if start is None or self._body is not None:
            return self._send_last_and_count(message)
        if observer.max_inspected_bytes:
            self._content = content_of(start)
        latency_ns = ended_ns - self._began_ns
        if (
            self._content is not OTHER
            or start["status"] != 200
            or latency_ns >= observer.quick_ns
            or self._left_ns
            or "trailers" in start
        ):
            return self._send_last_and_count(message)
        self.is_counted = True
        try:
            observer.count_quick_answer(latency_ns, ended_ns)
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            observer.complain("a request could not be counted")
        self._sending = self._send(message)
        return self._sending

    async def _send_last_and_count(self, message: Message) -> None:
        """Send the last message of the body, and only then look into it."""
        self._last = message
        try:
            await self._send(message)
        except OSError:
            self._left_ns = self._left_ns or self._observer.now_ns()
            raise
        start = self._start
        if start is None or start.get("trailers"):
            return
        self._is_complete = True
        # An empty message after others may be a middleware's way to close a stream that failed.
        if self._body is None or message.get("body"):
            self.end()

    async def _send_trailers(self, message: Message) -> None:
        await self._send(message)
        self._is_complete = bool(self._ended_ns)

    def _count(self, error: BaseException | None) -> None:
        observer = self._observer
        now_ns = self._ended_ns or self._left_ns or observer.now_ns()
        latency_ns = first_byte_ns = now_ns - self._began_ns
        if self._first_byte_ns:
            first_byte_ns = self._first_byte_ns - self._began_ns
        if error is not None or self._left_ns or not self._is_complete:
            outcome = self._outcome_of_break(error, latency_ns)
        elif first_byte_ns > observer.timeout_ns:
            outcome = Outcome.TIMED_OUT
        else:
            outcome = self._outcome_of_answer()
        if self._content is not EVENTS:
            observer.count(outcome, latency_ns, None, now_ns)
        elif observer.streams_by_first_byte:
            observer.count(outcome, first_byte_ns, first_byte_ns, now_ns)
        else:
            observer.count(outcome, latency_ns, first_byte_ns, now_ns)

    def _outcome_of_break(self, error: BaseException | None, waited_ns: int) -> Outcome:
        """Judge what did not end well: the caller left, the app raised or did not finish."""
        if self._is_complete and not self._left_ns and self._start and header(self._start, b"content-length"):
            # The answer was whole before the exception, which is a background task's own.
            return self._outcome_of_answer()
        has_left = self._left_ns or _is_raised_in(getattr(self, "_sending", None), error)
        outcome = Outcome.UNFINISHED if error is None else outcome_of_exception(error)
        if not has_left and outcome is not Outcome.ABANDONED:
            return outcome
        return Outcome.ABANDONED_LATE if waited_ns > self._observer.timeout_ns else Outcome.ABANDONED

    def _outcome_of_answer(self) -> Outcome:
        """Judge a whole answer."""
        start = self._start
        if start is None:
            return Outcome.UNFINISHED
        if not 200 <= start["status"] < 300:
            return outcome_of_status(start["status"], has_route=_has_route(self._scope))
        if not self._observer.max_inspected_bytes:
            return ANSWERED
        body, is_whole = self._read_body()
        try:
            outcome = outcome_of_body(start, self._content, body, is_whole=is_whole)
        except NotJson:
            return Outcome.MALFORMED if expects_rpc_answer(self._call()) else ANSWERED
        if outcome is TASK_FAILED and is_poll(self._scope["method"], self._scope["path"], self._call()):
            return ANSWERED
        return outcome

    def _read_body(self) -> tuple[bytes | None, bool]:
        """Return the body, None if it is too long to be looked into, and whether it is whole."""
        if self._body is not None:
            self._body.append(self._last)
            return self._body.read()
        body: bytes = self._last.get("body", b"")
        return (body if len(body) <= self._observer.max_inspected_bytes else None), True

    def _call(self) -> object:
        """What the caller sent, parsed; None if it is too long or no JSON."""
        request = self._request
        body = request.read() if isinstance(request, ShortBody) else (request or {}).get("body")
        if not body or len(body) > self._observer.max_inspected_bytes:
            return None
        return parse_or_none(body)


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
    return code is not None and any(
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
