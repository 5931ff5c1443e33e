"""End of one request, from its ASGI messages, which reach app and server unchanged.

A request is counted once. If its last message leaves no doubt, it is counted as soon as the server has
accepted that message, so that background tasks delay nothing; else when the application returns: a middleware
may have closed the answer with an empty body before it raises the answer's own exception.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from lifesign.domain.a2a.event_shape import Shape, has_shape
from lifesign.domain.a2a.response_outcome import (
    GOOD_ANSWER,
    GOOD_TOOL_RESULT,
    MAX_CALL_BYTES,
    OTHER_JSON,
    REST_ANSWER,
    UNNAMED_RESULT,
)
from lifesign.domain.health.outcome import ANSWERED, Outcome
from lifesign.middleware.answer_classification import AnswerClassification
from lifesign.middleware.body import (
    EVENTS,
    NO_INTERACTION,
    OTHER,
    EventsBody,
    Message,
    RequestBody,
    StreamedBody,
    body_headers,
    content_of_type,
    header,
)
from lifesign.middleware.observer import Observer

Scope = Message
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_BODY = "http.response.body"
_SENT_BY_SERVER = frozenset({"http.response.pathsend", "http.response.zerocopysend"})


class RequestExchange(AnswerClassification):
    """Follows one request and its answer, by `receive` and `send` functions that the app gets.

    `begin` takes the arguments, as calling a class with arguments takes 50 ns longer. Functions in attributes
    are called through local names, as CPython looks for a method of that name first.
    """

    __slots__ = (
        "_ended_ns",
        "_excludes_waits",
        "_inspect",
        "_is_complete",
        "_receive",
        "_send",
        "_sending_ns",
        "_shape",
        "_upload_ns",
        "is_counted",
    )  # fmt: skip

    _shape: Shape | None
    """Shape of the events of a stream that need not be parsed."""
    _upload_ns: int | None
    """Time since which the app waits for more of the request's body; 0 if it does not wait; None once
    complete.
    """

    _sending_ns: int
    """Time since which the app waits until the server takes a message; 0 if it does not wait."""
    _excludes_waits: bool
    """Whether such waits matter for the other messages of the body."""

    def begin(self, observer: Observer, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin to follow a request that has just arrived."""
        self._observer = observer
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start = None
        self._content = OTHER
        self._body = None
        self._inspect: Callable[[Any], None] | None = None
        self._request = None
        self._read = None
        self._first_byte_ns = self._ended_ns = self._left_ns = self._upload_ns = self._sending_ns = 0
        self._excludes_waits = self._is_complete = self._is_sent_by_server = self.is_counted = False
        now_ns = observer.now_ns
        self._began_ns = now_ns()

    async def receive(self) -> Message:
        """Pass on a message of the caller. A short call is kept, and a disconnect is noted."""
        receive = self._receive
        message = await (receive() if self._upload_ns is None else self._receive_upload())
        kind = message["type"]
        if kind == "http.request":
            try:
                body = message["body"]
            except KeyError:
                body = None
            if body:
                if self._request is None and len(body) <= MAX_CALL_BYTES:
                    # Nearly always the only one.
                    self._request = body
                else:
                    self._append_request(body)
        elif kind == "http.disconnect" and not self._ended_ns and not self._left_ns:
            now_ns = self._observer.now_ns
            self._left_ns = now_ns()
        return message

    async def _receive_upload(self) -> Message:
        """Receive while the request's body is not whole: a slow upload is the caller's time."""
        noting = None if self.is_counted else self._observer.noting
        if noting is not None:
            self._observer = noting.suspended()
        now_ns = self._observer.now_ns
        self._upload_ns = asked_ns = now_ns()
        is_complete = False
        try:
            message = await self._receive()
            is_complete = not message.get("more_body")
        finally:
            # In this order, as another thread may ask meanwhile whether the answer is overdue.
            if self._start is None:
                until_ns = now_ns()
                began_ns = self._began_ns + until_ns - asked_ns
                # Two tasks that receive at the same time exclude the same period; no exchange begins in the
                # future.
                self._began_ns = began_ns if began_ns < until_ns else until_ns  # noqa: FURB136 - a call per request
            self._upload_ns = None if is_complete else 0
            if noting is not None and not self.is_counted:
                self._observer = noting.resumed(self._scope)
        return message

    def send(self, message: Message) -> Awaitable[None]:  # noqa: C901, PLR0912 - calls would cost more than the work
        """Pass on a message of the app, and inspect it.

        This is no coroutine: a coroutine takes a third longer for each chunk.
        """
        send = self._send
        inspect = self._inspect
        if inspect is not None:
            try:
                # Every chunk is handled here, and `get` takes twice as long.
                piece = message["body"] if message["more_body"] else None
            except KeyError:
                piece = None
            if piece is not None:
                shape = self._shape
                if shape is None:
                    inspect(piece)
                    return self._send_excluding_wait(message) if self._excludes_waits else send(message)
                # `has_shape`, written out: a call takes half as long as the check itself.
                head, prefix, tail, suffix, inside = shape
                try:
                    if (
                        piece[head] != prefix
                        or piece[tail] != suffix
                        or 10 in (line := piece[inside])
                        or 13 in line
                    ):
                        inspect(piece)
                except TypeError:
                    inspect(piece)
                return self._send_excluding_wait(message) if self._excludes_waits else send(message)
        kind = message.get("type")
        if kind == "http.response.start":
            if self._start is None:
                self._start = message
                if self._upload_ns:
                    # A task of the app still receives. Its further waits are no upload: the exchange would
                    # begin after its answer.
                    until_ns = self._observer.now_ns()
                    self._began_ns = min(until_ns, self._began_ns + until_ns - self._upload_ns)
                # As they are now: a compression outside adds to the list that it is given.
                headers = message.get("headers")
                if type(headers) is list:
                    self._headers = headers.copy()
                elif headers is None or type(headers) is tuple:
                    self._headers = headers
                else:
                    # An iterator can be read once only.
                    self._headers = tuple(headers)
                    self._start = message = {**message, "headers": list(self._headers)}
        elif kind == _BODY or kind in _SENT_BY_SERVER:
            if kind != _BODY:
                self._is_sent_by_server = True
            if not message.get("more_body"):
                return self._send_last(message) if not self._ended_ns else send(message)
            self._record_chunk(message)
        elif kind == "http.response.trailers" and not message.get("more_trailers"):
            return self._send_trailers(message)
        if self._excludes_waits or kind == "http.response.start":
            return self._send_excluding_wait(message)
        return self._send_detecting_disconnect(message) if self._observer.sends_may_raise else send(message)

    def end(self, error: BaseException | None = None) -> None:
        """Count the request, if that was not done, since the app has returned or raised an exception."""
        if not self.is_counted:
            self.is_counted = True
            try:
                self._count(error)
            except Exception:  # noqa: BLE001 - measuring must never fail what it measures
                self._observer.note_uncounted()
            finally:
                # The app may continue for a long time.
                self._last = self._request = self._shape = None
                if self._body is not None:
                    self._body.close()

    def count_if_overdue(self, now_ns: int) -> None:
        """Count the request as timed out if its answer has not begun in time. May raise."""
        latency_ns = (self._upload_ns or self._sending_ns or now_ns) - self._began_ns
        is_waiting = not (self.is_counted or self._first_byte_ns or self._ended_ns or self._left_ns)
        if is_waiting and latency_ns > self._observer.timeout_ns and not self._is_get_stream():
            self.is_counted = True
            outcome = Outcome.TIMED_OUT
            if self._is_no_interaction(outcome):
                outcome = Outcome.EXCLUDED
            self._observer.count(outcome, latency_ns, None, now_ns)

    def _append_request(self, body: bytes) -> None:
        """Keep the beginning and the end of a body that is long, or comes in several messages."""
        if not isinstance(self._request, RequestBody):
            first, self._request = self._request, RequestBody()
            if first is not None:
                self._request.append(first)
        self._request.append(body)

    def _record_chunk(self, message: Message) -> None:
        """Record the first byte of a body in several messages, and the facts for its classification."""
        start, observer = self._start, self._observer
        if start is None or self.is_counted:
            return
        try:
            piece = message.get("body") or b""
            if self._body is None:
                self._shape = None
                sent = {**start, "headers": self._headers}
                self._content = content = self._claimed_content(sent)
                self._excludes_waits = content is not EVENTS or not observer.streams_by_first_byte
                is_mcp = content is EVENTS and self._is_mcp()
                if is_mcp and observer.noting is not None and self._is_no_interaction(Outcome.UNFINISHED):
                    # A stream of notifications, which may be open for as long as the worker runs.
                    self._observer = observer.noting.suspended()
                self._body = StreamedBody(
                    sent,
                    self._scope["method"],
                    content,
                    observer.max_inspected_bytes,
                    is_mcp=is_mcp,
                )
            if self._shape is None or not has_shape(self._shape, piece):
                self._body.append(piece)
                self._update_shape()
            if not self._first_byte_ns and (piece or message["type"] != _BODY):
                self._first_byte_ns = observer.now_ns()
                if not observer.sends_may_raise:
                    self._inspect = self._body.append if self._body.kept is None else self._inspect_chunk
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            observer.log_failure("an answer could not be inspected")

    def _inspect_chunk(self, piece: bytes) -> None:
        """Keep, or read, one chunk of a body that is inspected."""
        body = self._body
        if body is None or self.is_counted:
            return
        try:
            body.append(piece)
            self._update_shape()
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            self._observer.log_failure("an answer could not be inspected")

    def _update_shape(self) -> None:
        """Take over the shape of events that need no parsing from now on."""
        if self._content is EVENTS and self._body is not None and isinstance(self._body.kept, EventsBody):
            self._shape = self._body.kept.shape

    async def _send_excluding_wait(self, message: Message) -> None:
        """Send a message; what the app waits here is the time of a caller that reads slowly."""
        observer = self._observer
        now_ns = observer.now_ns
        self._sending_ns = asked_ns = now_ns()
        try:
            await self._send(message)
        except OSError:
            if observer.sends_may_raise:
                self._left_ns = self._left_ns or now_ns()
            raise
        finally:
            # The caller may have left meanwhile, or before. In this order, as another thread may ask whether
            # the answer is overdue.
            waited_ns = (self._left_ns or now_ns()) - asked_ns
            if waited_ns > 0:
                self._began_ns += waited_ns
                if self._first_byte_ns:
                    self._first_byte_ns += waited_ns
            self._sending_ns = 0

    async def _send_detecting_disconnect(self, message: Message) -> None:
        """Send a message; since HTTP spec 2.4, OSError means that the caller has left."""
        try:
            await self._send(message)
        except OSError:
            self._left_ns = self._left_ns or self._observer.now_ns()
            raise

    async def _send_last(self, message: Message) -> None:  # noqa: C901 - calls would cost more than the work
        """Send the last message of the body, and inspect the body afterwards."""
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
                max_bytes = observer.max_inspected_bytes
                declared = encoding = b""
                if max_bytes:
                    content_type, declared, encoding = body_headers(start)
                    self._content = content_of_type(content_type)
                # Surely good, whole and soon: the most frequent cases, counted in short.
                if (
                    body
                    and start.get("status") == 200
                    and latency_ns < observer.quick_ns
                    and not self._left_ns
                    and (not declared or declared == b"%d" % len(body))
                ):
                    if self._content is OTHER and (
                        self._request is None or not max_bytes or not self._may_expect_json()
                    ):
                        self.is_counted = True
                        self._last = self._request = None
                        count_quick_answer = observer.count_quick_answer
                        count_quick_answer(latency_ns, ended_ns)
                        return
                    read = self._read_short_json(body, encoding)
                    if (
                        read is GOOD_ANSWER
                        or (read is UNNAMED_RESULT and not self._is_mcp())
                        or (read is REST_ANSWER and not self._may_be_rpc_request())
                        or (read is OTHER_JSON and not self._may_expect_json())
                    ):
                        self.is_counted = True
                        self._last = self._request = None
                        count_inspected_answer = observer.count_inspected_answer
                        count_inspected_answer(latency_ns, ended_ns)
                        return
                    if read is GOOD_TOOL_RESULT:
                        self.is_counted = True
                        self._last = self._request = None
                        count_tool_result = observer.count_tool_result
                        count_tool_result(latency_ns, ended_ns)
                        return
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            observer.note_uncounted()
        # An empty message may be a middleware's way to close an answer that failed.
        if body or self._is_sent_by_server or _may_be_empty(start):
            self.end()

    async def _send_trailers(self, message: Message) -> None:
        await self._send_detecting_disconnect(message)
        if self._ended_ns:
            self._is_complete = True
            self.end()

    def _count(self, error: BaseException | None) -> None:
        observer = self._observer
        now_ns = self._left_ns or self._ended_ns or observer.now_ns()
        latency_ns = first_byte_ns = now_ns - self._began_ns
        if self._first_byte_ns:
            first_byte_ns = self._first_byte_ns - self._began_ns
        is_complete = self._is_complete and not self._left_ns
        if error is not None and is_complete:
            # After an answer that is surely whole, the exception is a background task's own.
            is_complete = self._body is not None and self._body.is_as_long_as_declared(self._last)
        inspection = None
        if not is_complete:
            outcome, inspection = self._classify_break(error, latency_ns)
        elif first_byte_ns > observer.timeout_ns and not self._is_get_stream():
            outcome = Outcome.TIMED_OUT
        else:
            outcome, inspection = self._classify_answer()
        is_open = outcome is not ANSWERED or self._is_get_stream()
        if is_open and outcome is not Outcome.EXCLUDED and self._is_no_interaction(outcome):
            outcome, inspection = NO_INTERACTION
        if self._is_get_stream():
            observer.count(outcome, None, None, now_ns, inspection)
        elif self._content is not EVENTS:
            observer.count(outcome, latency_ns, None, now_ns, inspection)
        elif observer.streams_by_first_byte:
            observer.count(outcome, first_byte_ns, first_byte_ns, now_ns, inspection)
        else:
            observer.count(outcome, latency_ns, first_byte_ns, now_ns, inspection)


def sends_may_raise(scope: Scope) -> bool:
    """Return whether this server's `send` may raise OSError after the caller has disconnected.

    A server without a version is assumed to do so.
    """
    version = scope.get("asgi", {}).get("spec_version")
    return version not in {"2.0", "2.1", "2.2", "2.3"}


def _may_be_empty(start: Message) -> bool:
    return start.get("status") in {204, 304} or header(start, b"content-length") == b"0"
