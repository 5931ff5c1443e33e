"""How did one request end? Follows its ASGI messages, which reach app and server untouched.

A request is counted once. Where its last message leaves no doubt, that is as soon as the server has
taken that message, so that background tasks delay nothing; else it is when the application returns:
an answer closed by an empty body may have been closed so by a middleware that is about to raise the
answer's own exception.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from agent_health.a2a_answer import (
    NotJson,
    TooDeep,
    expects_rpc_answer,
    is_poll,
    outcome_of_json,
    parse_or_none,
)
from agent_health.middleware.body import (
    EVENTS,
    JSON,
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

_BODY = "http.response.body"
_SENT_BY_SERVER = frozenset({"http.response.pathsend", "http.response.zerocopysend"})


class Observer(Protocol):
    """What an exchange needs of the middleware: settings, the clock, and where to count."""

    timeout_ns: int
    quick_ns: int
    max_inspected_bytes: int
    streams_by_first_byte: bool
    sends_may_raise: bool | None
    now_ns: Callable[[], int]

    def count(self, outcome: int, latency_ns: int, first_byte_ns: int | None, now_ns: int) -> None:
        """Count one interaction; may raise."""

    def count_quick_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one answer that took less than `quick_ns`; may raise."""

    def complain(self, what: str) -> None:
        """Log the exception being handled."""


class Exchange:
    """One request and its answer. The app gets `receive` and `send` in place of the server's.

    It is told to `begin`, as a class takes 50 ns longer to call with arguments; and functions that
    attributes hold are called through local names, as CPython looks for a method of that name first.
    """

    __slots__ = (
        "_began_ns", "_body", "_content", "_ended_ns", "_first_byte_ns", "_headers", "_is_complete",
        "_is_sent_by_server", "_keep", "_last", "_left_ns", "_observer", "_receive", "_request", "_scope",
        "_send", "_start", "is_counted",
    )  # fmt: skip

    def begin(self, observer: Observer, scope: Scope, receive: Receive, send: Send) -> None:
        """Follow a request that has just come in."""
        self._observer = observer
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._content = OTHER
        self._body: StreamedBody | None = None
        self._keep: Callable[[Any], None] | None = None
        self._request: Message | ShortBody | None = None
        self._first_byte_ns = self._ended_ns = self._left_ns = 0
        self._is_complete = self._is_sent_by_server = self.is_counted = False
        now_ns = observer.now_ns
        self._began_ns = now_ns()

    async def receive(self) -> Message:
        """Pass on what the caller sends; keep a short body, note when the caller leaves."""
        now_ns = self._observer.now_ns
        receive = self._receive
        asked_ns = now_ns()
        message = await receive()
        kind = message["type"]
        if kind == "http.request":
            # A slow upload is the caller's time.
            self._began_ns += now_ns() - asked_ns
            if self._request is None:
                # Nearly always the only one.
                self._request = message
            else:
                self._keep_request(message)
        elif kind == "http.disconnect" and not self._ended_ns and not self._left_ns:
            self._left_ns = now_ns()
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Pass on what the app answers. Not a coroutine itself: it costs a third of one per chunk."""
        send = self._send
        keep = self._keep
        if keep is not None:
            try:
                # Every chunk comes by here, and `get` takes twice as long.
                piece = message["body"] if message["more_body"] else None
            except KeyError:
                piece = None
            if piece is not None:
                keep(piece)
                return send(message)
        kind = message.get("type")
        if kind == "http.response.start":
            if self._start is None:
                self._start = message
                # As they are now: a compression outside adds to the list that it is given.
                headers = message.get("headers")
                self._headers = headers.copy() if type(headers) is list else headers
        elif kind == _BODY or kind in _SENT_BY_SERVER:
            if kind != _BODY:
                self._is_sent_by_server = True
            if not message.get("more_body"):
                return self._send_last(message) if not self._ended_ns else send(message)
            self._note_chunk(message)
        elif kind == "http.response.trailers" and not message.get("more_trailers"):
            return self._send_trailers(message)
        return self._send_watched(message) if self._observer.sends_may_raise else send(message)

    def end(self, error: BaseException | None = None) -> None:
        """Count the exchange, if it has not been: the app has returned or raised."""
        if not self.is_counted:
            self.is_counted = True
            try:
                self._count(error)
            except Exception:  # noqa: BLE001 - measuring must never fail what it measures
                self._observer.complain("a request could not be counted")

    def end_if_overdue(self, now_ns: int) -> None:
        """Count the exchange as timed out if its first byte is overdue: it may never end. May raise."""
        latency_ns = now_ns - self._began_ns
        is_waiting = not (self.is_counted or self._first_byte_ns or self._ended_ns or self._left_ns)
        if is_waiting and latency_ns > self._observer.timeout_ns:
            self.is_counted = True
            self._observer.count(Outcome.TIMED_OUT, latency_ns, None, now_ns)

    def _keep_request(self, message: Message) -> None:
        if not isinstance(self._request, ShortBody):
            first, self._request = self._request, ShortBody(self._observer.max_inspected_bytes)
            if first is not None:
                self._request.append(first.get("body"))
        self._request.append(message.get("body"))

    def _note_chunk(self, message: Message) -> None:
        """Note the first bytes of a body in several messages, and what is needed of the others."""
        start, observer = self._start, self._observer
        if start is None:
            return
        try:
            if self._body is None:
                self._content = content_of(start)
                self._body = StreamedBody(start, self._content, observer.max_inspected_bytes)
            self._body.append(message.get("body"))
            if not self._first_byte_ns and (message.get("body") or message["type"] != _BODY):
                self._first_byte_ns = observer.now_ns()
                if not observer.sends_may_raise:
                    self._keep = self._body.append
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            observer.complain("an answer could not be looked into")

    async def _send_watched(self, message: Message) -> None:
        """Send a message; since HTTP spec 2.4, OSError means that the caller has left."""
        try:
            await self._send(message)
        except OSError:
            self._left_ns = self._left_ns or self._observer.now_ns()
            raise

    async def _send_last(self, message: Message) -> None:
        """Send the last message of the body, and only then look into it."""
        observer, send = self._observer, self._send
        now_ns = observer.now_ns
        # Taken before: a compression outside puts its own bytes into the message.
        self._last = body = message.get("body")
        self._ended_ns = ended_ns = now_ns()
        try:
            await send(message)
        except OSError:
            self._left_ns = self._left_ns or ended_ns
            self._ended_ns = 0
            raise
        start = self._start
        if start is None or start.get("trailers") or self.is_counted:
            return
        self._is_complete = True
        latency_ns = ended_ns - self._began_ns
        try:
            if self._body is None:
                if observer.max_inspected_bytes:
                    self._content = content_of(start)
                # Surely good and soon: the most frequent case, counted in short.
                if (
                    body
                    and start.get("status") == 200
                    and latency_ns < observer.quick_ns
                    and not self._left_ns
                    and (self._content is OTHER or self._is_good_json(body))
                ):
                    self.is_counted = True
                    count_quick_answer = observer.count_quick_answer
                    count_quick_answer(latency_ns, ended_ns)
                    return
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            observer.complain("a request could not be counted")
        # An empty message may be a middleware's way to close an answer that failed.
        if body or self._is_sent_by_server or _is_empty_by_right(start):
            self.end()

    def _is_good_json(self, body: bytes) -> bool:
        """Whether an answer in one message is short JSON without a failure in it."""
        if self._content is not JSON or type(body) is not bytes:
            return False
        try:
            return len(body) <= self._observer.max_inspected_bytes and outcome_of_json(body) is ANSWERED
        except (NotJson, TooDeep):
            return False

    async def _send_trailers(self, message: Message) -> None:
        await self._send_watched(message)
        if self._ended_ns:
            self._is_complete = True
            self.end()

    def _count(self, error: BaseException | None) -> None:
        observer = self._observer
        now_ns = self._left_ns or self._ended_ns or observer.now_ns()
        latency_ns = first_byte_ns = now_ns - self._began_ns
        if self._first_byte_ns:
            first_byte_ns = self._first_byte_ns - self._began_ns
        is_whole = self._is_complete and not self._left_ns
        if error is not None and is_whole:
            # After an answer that is surely whole, the exception is a background task's own.
            is_whole = self._body is not None and self._body.is_as_long_as_declared(self._last)
        if not is_whole:
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
        outcome = Outcome.UNFINISHED if error is None else outcome_of_exception(error)
        if not self._left_ns and outcome is not Outcome.ABANDONED:
            return outcome
        return Outcome.ABANDONED_LATE if waited_ns > self._observer.timeout_ns else Outcome.ABANDONED

    def _outcome_of_answer(self) -> Outcome:
        """Judge a whole answer."""
        start = self._start
        if start is None:
            return Outcome.UNFINISHED
        status = start.get("status", 500)
        if not 200 <= status < 300:
            return outcome_of_status(status, has_route=_has_route(self._scope))
        if not self._observer.max_inspected_bytes:
            return ANSWERED
        body, is_whole = self._read_body()
        try:
            sent = {**start, "headers": self._headers}
            outcome = outcome_of_body(sent, self._content, body, is_whole=is_whole)
        except NotJson:
            return Outcome.MALFORMED if expects_rpc_answer(self._call()) else ANSWERED
        if outcome is TASK_FAILED and is_poll(self._scope["method"], self._scope["path"], self._call()):
            return ANSWERED
        return outcome

    def _read_body(self) -> tuple[bytes | None, bool]:
        """Return the body, None if it is not known or too long to be looked into, and whether it is whole."""
        if self._is_sent_by_server:
            return None, True
        last = bytes(self._last or b"")
        if self._body is not None:
            return self._body.read(last)
        return (last if len(last) <= self._observer.max_inspected_bytes else None), True

    def _call(self) -> object:
        """What the caller sent, parsed; None if it is too long or no JSON."""
        request = self._request
        body = request.read() if isinstance(request, ShortBody) else (request or {}).get("body")
        if not body or len(body) > self._observer.max_inspected_bytes:
            return None
        return parse_or_none(body)


def sends_may_raise(scope: Scope) -> bool:
    """Whether `send` may raise OSError because the caller has left: since HTTP spec 2.4, it must.

    A server that does not say which it follows is taken to be able to.
    """
    version = scope.get("asgi", {}).get("spec_version")
    return version not in {"2.0", "2.1", "2.2", "2.3"}


def _is_empty_by_right(start: Message) -> bool:
    return start.get("status") in {204, 304} or header(start, b"content-length") == b"0"


def _has_route(scope: Scope) -> bool:
    """Whether a route of the app matched, where its framework tells (Starlette, FastAPI).

    A mounted app is a route and an endpoint too, but says nothing about its own routes.
    """
    if "route" in scope:
        return getattr(scope["route"], "endpoint", None) is not None
    # Older Starlette tells the endpoint only.
    endpoint = scope.get("endpoint")
    return isinstance(endpoint, type) or hasattr(endpoint, "__code__")
