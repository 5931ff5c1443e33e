"""End of one request, from its ASGI messages, which reach app and server unchanged.

A request is counted once. If its last message leaves no doubt, it is counted as soon as the server has
accepted that message, so that background tasks delay nothing; else when the application returns: a middleware
may have closed the answer with an empty body before it raises the answer's own exception.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from lifesign.domain.a2a.event_shape import Shape, has_shape
from lifesign.domain.a2a.response_outcome import (
    FAILED_TOOL,
    GOOD_ANSWER,
    GOOD_TOOL_RESULT,
    MAX_CALL_BYTES,
    OTHER_JSON,
    REST_ANSWER,
    SENDING_METHODS,
    SENDING_PATHS,
    STREAMING_METHODS,
    STREAMING_PATH,
    UNNAMED_RESULT,
    JsonAnswer,
    expects_rpc_answer,
    is_poll,
    is_rest_path,
    judge_json,
    method_of,
)
from lifesign.domain.a2a.stream_outcome import StreamEnd
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.outcome import (
    ANSWERED,
    TASK_FAILED,
    Outcome,
    outcome_of_exception,
    outcome_of_status,
)
from lifesign.domain.mcp.answer_outcome import (
    JUDGED_BY_CODE,
    is_interaction,
    is_mcp,
    judge_as_mcp,
    operation_of,
    outcome_of_mcp_status,
)
from lifesign.domain.parsing.bounded_json import NotJson, TooComplex, parse_or_none
from lifesign.middleware.body import (
    EVENTS,
    GOOD,
    INSPECTED,
    JSON,
    MALFORMED,
    NO_INTERACTION,
    OTHER,
    UNCLAIMED,
    Classified,
    EventsBody,
    JsonBody,
    Message,
    RequestBody,
    StreamedBody,
    classified,
    content_of,
    header,
    is_compressed,
    is_partial,
    read_json,
)
from lifesign.middleware.cancellation import is_from_outside

Scope = Message
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_BODY = "http.response.body"
NO_JSON = JsonAnswer(Outcome.MALFORMED)
"""Content that claims JSON and is none."""
UNREAD: Classified = (Outcome.NOT_INSPECTED, Inspection.UNSPECIFIED)
"""Content of another type that answers a call and is no JSON; a FAILED task if the call is unknown."""
# An MCP server accepts a notification, or an answer of the client's, without a body.
_ACCEPTED = frozenset({202, 204})
_SENT_BY_SERVER = frozenset({"http.response.pathsend", "http.response.zerocopysend"})


class Observer(Protocol):
    """Parts of the middleware that an exchange needs: settings, the clock, and the counters."""

    timeout_ns: int
    quick_ns: int
    max_inspected_bytes: int
    streams_by_first_byte: bool
    sends_may_raise: bool | None
    now_ns: Callable[[], int]

    def count(
        self,
        outcome: int,
        latency_ns: int | None,
        first_byte_ns: int | None,
        now_ns: int,
        inspection: int | None = None,
    ) -> None:
        """Count one interaction, without a latency if that is None; may raise."""

    def count_quick_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one answer that took less than `quick_ns` and was nothing to inspect; may raise."""

    def count_inspected_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one good answer that took less than `quick_ns` and was inspected; may raise."""

    def count_tool_result(self, latency_ns: int, now_ns: int) -> None:
        """Count one good result of an MCP tool that took less than `quick_ns`; may raise."""

    def note_compressed(self, encoding: str) -> None:
        """Log, once, that an answer could not be inspected because it was compressed."""

    def complain(self, what: str) -> None:
        """Log the exception being handled."""


class RequestExchange:
    """One request and its answer. The app gets `receive` and `send` in place of the server's functions.

    `begin` takes the arguments, as calling a class with arguments takes 50 ns longer. Functions in attributes
    are called through local names, as CPython looks for a method of that name first.
    """

    __slots__ = (
        "_began_ns",
        "_body",
        "_content",
        "_ended_ns",
        "_first_byte_ns",
        "_headers",
        "_is_complete",
        "_is_sent_by_server",
        "_is_timed",
        "_keep",
        "_last",
        "_left_ns",
        "_observer",
        "_read",
        "_receive",
        "_request",
        "_scope",
        "_send",
        "_sending_ns",
        "_shape",
        "_start",
        "_upload_ns",
        "is_counted",
    )  # fmt: skip

    _headers: Any
    """Headers of the answer as the app sent them."""
    _shape: Shape | None
    """Shape of the events of a stream that need not be parsed."""
    _last: bytes | None
    """The last piece of the answer's body, until it is inspected."""
    _upload_ns: int | None
    """Time since which the app waits for more of the request's body; 0 if it does not wait; None once
    complete.
    """

    _sending_ns: int
    """Time since which the app waits until the server takes a message; 0 if it does not wait."""
    _is_timed: bool
    """Whether such waits matter for the other messages of the body."""

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
        self._request: bytes | RequestBody | None = None
        self._read: JsonAnswer | Inspection | None = None
        self._first_byte_ns = self._ended_ns = self._left_ns = self._upload_ns = self._sending_ns = 0
        self._is_timed = self._is_complete = self._is_sent_by_server = self.is_counted = False
        now_ns = observer.now_ns
        self._began_ns = now_ns()

    async def receive(self) -> Message:
        """Pass on messages of the caller; keep a short call, and note when the caller leaves."""
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
                    self._keep_request(body)
        elif kind == "http.disconnect" and not self._ended_ns and not self._left_ns:
            now_ns = self._observer.now_ns
            self._left_ns = now_ns()
        return message

    async def _receive_upload(self) -> Message:
        """Receive while the request's body is not whole: a slow upload is the caller's time."""
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
        return message

    def send(self, message: Message) -> Awaitable[None]:  # noqa: C901, PLR0912 - calls would cost more than the work
        """Pass on messages of the app.

        This is no coroutine: a coroutine takes a third longer for each chunk.
        """
        send = self._send
        keep = self._keep
        if keep is not None:
            try:
                # Every chunk is handled here, and `get` takes twice as long.
                piece = message["body"] if message["more_body"] else None
            except KeyError:
                piece = None
            if piece is not None:
                shape = self._shape
                if shape is None:
                    keep(piece)
                    return self._send_timed(message) if self._is_timed else send(message)
                # `has_shape`, written out: a call takes half as long as the check itself.
                head, prefix, tail, suffix, inside = shape
                try:
                    if (
                        piece[head] != prefix
                        or piece[tail] != suffix
                        or 10 in (line := piece[inside])
                        or 13 in line
                    ):
                        keep(piece)
                except TypeError:
                    keep(piece)
                return self._send_timed(message) if self._is_timed else send(message)
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
            self._note_chunk(message)
        elif kind == "http.response.trailers" and not message.get("more_trailers"):
            return self._send_trailers(message)
        if self._is_timed or kind == "http.response.start":
            return self._send_timed(message)
        return self._send_watched(message) if self._observer.sends_may_raise else send(message)

    def end(self, error: BaseException | None = None) -> None:
        """Count the exchange, if it has not been: the app has returned or raised."""
        if not self.is_counted:
            self.is_counted = True
            try:
                self._count(error)
            except Exception:  # noqa: BLE001 - measuring must never fail what it measures
                self._observer.complain("a request could not be counted")
            finally:
                # The app may continue for a long time.
                self._last = self._request = self._shape = None
                if self._body is not None:
                    self._body.close()

    def end_if_overdue(self, now_ns: int) -> None:
        """Count the exchange as timed out if its first byte is overdue: it may never end. May raise."""
        latency_ns = (self._upload_ns or self._sending_ns or now_ns) - self._began_ns
        is_waiting = not (self.is_counted or self._first_byte_ns or self._ended_ns or self._left_ns)
        if is_waiting and latency_ns > self._observer.timeout_ns and not self._is_get_stream():
            self.is_counted = True
            outcome = Outcome.EXCLUDED if self._is_no_interaction() else Outcome.TIMED_OUT
            self._observer.count(outcome, latency_ns, None, now_ns)

    def _keep_request(self, body: bytes) -> None:
        """Keep the beginning and the end of a body that is long, or comes in several messages."""
        if not isinstance(self._request, RequestBody):
            first, self._request = self._request, RequestBody()
            if first is not None:
                self._request.append(first)
        self._request.append(body)

    def _note_chunk(self, message: Message) -> None:
        """Note the first bytes of a body in several messages, and the needed facts about the others."""
        start, observer = self._start, self._observer
        if start is None or self.is_counted:
            return
        try:
            piece = message.get("body") or b""
            if self._body is None:
                self._shape = None
                sent = {**start, "headers": self._headers}
                self._content = content = self._content_of(sent)
                self._is_timed = content is not EVENTS or not observer.streams_by_first_byte
                self._body = StreamedBody(sent, self._scope, content, observer.max_inspected_bytes)
            if self._shape is None or not has_shape(self._shape, piece):
                self._body.append(piece)
                self._note_shape()
            if not self._first_byte_ns and (piece or message["type"] != _BODY):
                self._first_byte_ns = observer.now_ns()
                if not observer.sends_may_raise:
                    self._keep = self._body.append if self._body.kept is None else self._keep_piece
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            observer.complain("an answer could not be inspected")

    def _keep_piece(self, piece: bytes) -> None:
        """Keep, or read, one piece of a body that is inspected."""
        body = self._body
        if body is None or self.is_counted:
            return
        try:
            body.append(piece)
            self._note_shape()
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            self._observer.complain("an answer could not be inspected")

    def _note_shape(self) -> None:
        if self._content is EVENTS and self._body is not None and isinstance(self._body.kept, EventsBody):
            self._shape = self._body.kept.shape

    async def _send_timed(self, message: Message) -> None:
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

    async def _send_watched(self, message: Message) -> None:
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
                if observer.max_inspected_bytes:
                    self._content = content_of(start)
                # Surely good and soon: the most frequent cases, counted in short.
                if (
                    body
                    and start.get("status") == 200
                    and latency_ns < observer.quick_ns
                    and not self._left_ns
                ):
                    if self._content is OTHER and (
                        self._request is None
                        or not observer.max_inspected_bytes
                        or not self._may_expect_json()
                    ):
                        self.is_counted = True
                        self._last = self._request = None
                        count_quick_answer = observer.count_quick_answer
                        count_quick_answer(latency_ns, ended_ns)
                        return
                    read = self._read_short_json(body)
                    if (
                        read is GOOD_ANSWER
                        or (read is UNNAMED_RESULT and not self._is_mcp())
                        or (read is REST_ANSWER and not self._is_rpc_request())
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
            observer.complain("a request could not be counted")
        # An empty message may be a middleware's way to close an answer that failed.
        if body or self._is_sent_by_server or _is_empty_by_right(start):
            self.end()

    def _read_short_json(self, body: bytes) -> JsonAnswer | Inspection | None:
        """Read an answer in one message and keep its statement; None if it is not short JSON."""
        if self._content is not JSON or type(body) is not bytes:
            return None
        if len(body) > self._observer.max_inspected_bytes:
            return None
        try:
            self._read = read = judge_json(body)
        except NotJson:
            self._read = NO_JSON
        except TooComplex:
            self._read = Inspection.COMPLEX
        else:
            return read
        return None

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
        if is_open and outcome is not Outcome.EXCLUDED and self._is_no_interaction():
            outcome, inspection = NO_INTERACTION
        if self._is_get_stream():
            observer.count(outcome, None, None, now_ns, inspection)
        elif self._content is not EVENTS:
            observer.count(outcome, latency_ns, None, now_ns, inspection)
        elif observer.streams_by_first_byte:
            observer.count(outcome, first_byte_ns, first_byte_ns, now_ns, inspection)
        else:
            observer.count(outcome, latency_ns, first_byte_ns, now_ns, inspection)

    def _is_get_stream(self) -> bool:
        """Return whether this is an event stream of a GET, which waits for events that may never come."""
        start = self._start
        return self._scope["method"] == "GET" and start is not None and content_of(start) is EVENTS

    def _classify_break(
        self, error: BaseException | None, waited_ns: int
    ) -> tuple[Outcome, Inspection | None]:
        """Return the outcome without a regular end: the caller left, the app raised or did not finish."""
        outcome = Outcome.UNFINISHED
        if error is not None:
            outcome = outcome_of_exception(error, is_from_outside=is_from_outside(error))
        if not self._left_ns and outcome is not Outcome.ABANDONED:
            return outcome, None
        if self._body is not None and isinstance(self._body.kept, EventsBody):
            # Clients leave once they have read the error, or the last state.
            end = self._body.kept.end(b"")
            stated = self._classify_events(end)
            is_undecided = stated[0] in {ANSWERED, Outcome.NOT_INSPECTED, Outcome.EXCLUDED}
            # Clients of MCP leave once they have the result, good or bad.
            is_result = stated[0] is ANSWERED and end.answer is not None and self._is_mcp()
            if not is_undecided or is_result:
                return stated
        if self._is_get_stream():
            return Outcome.ABANDONED, None
        if self._content is EVENTS and self._first_byte_ns:
            # It flows for as long as the caller likes.
            waited_ns = self._first_byte_ns - self._began_ns
        return (Outcome.ABANDONED_LATE if waited_ns > self._observer.timeout_ns else Outcome.ABANDONED), None

    def _classify_answer(self) -> tuple[Outcome, Inspection | None]:
        """Judge a whole answer. Only a 2xx that claims JSON or an event stream is inspected."""
        start = self._start
        if start is None:
            return Outcome.UNFINISHED, None
        status = start.get("status", 500)
        if not 200 <= status < 300:
            if status >= 400 and self._is_mcp():
                outcome = self._classify_mcp_refusal(status)
            else:
                outcome = outcome_of_status(status, has_route=_has_route(self._scope))
            return outcome, None
        is_accepted = status in _ACCEPTED and self._is_mcp()
        if is_accepted or not self._observer.max_inspected_bytes:
            return NO_INTERACTION if is_accepted else (ANSWERED, None)
        sent = {**start, "headers": self._headers}
        if self._body is None:
            self._content = self._content_of(sent)
        is_uninspected = self._content is OTHER or is_partial(sent, self._scope["method"])
        if is_uninspected or (self._content is UNCLAIMED and not self._expects_json()):
            return ANSWERED, None
        return self._classify_body(sent)

    def _classify_body(self, sent: Message) -> Classified:
        """Judge a 2xx answer that claims JSON or an event stream; `sent` is its start as the app sent it."""
        if is_compressed(sent):
            self._observer.note_compressed(header(sent, b"content-encoding").decode("ascii", "replace"))
            return Outcome.NOT_INSPECTED, Inspection.COMPRESSED
        if self._is_sent_by_server:
            return Outcome.NOT_INSPECTED, Inspection.FROM_FILE
        kept = None if self._body is None else self._body.kept
        last = bytes(self._last or b"")
        if self._content is not EVENTS:
            return self._classify_json(kept if isinstance(kept, JsonBody) else None, last, sent["status"])
        max_bytes = self._observer.max_inspected_bytes
        body = kept if isinstance(kept, EventsBody) else EventsBody(max_bytes, is_mcp=self._is_mcp())
        end = body.end(last)
        if not end.has_events and sent["status"] == 200 and self._expects_events():
            return MALFORMED
        stated = self._classify_events(end)
        return (self._classify_send(end) or stated) if stated[0] is ANSWERED else stated

    def _classify_send(self, end: StreamEnd) -> Classified | None:
        """Judge the whole stream of a send that states no failure; None if it is good, or of no send."""
        is_rest = self._scope["method"] == "POST" and self._scope["path"].endswith(STREAMING_PATH)
        if is_rest and not (end.is_rest or end.is_rpc):
            return MALFORMED
        # Without events that were not parsed, which may have been the result.
        is_whole = end.missed is None and not end.is_rest
        if is_whole and not end.has_task and end.answer and end.answer.is_empty and self._is_rpc_send():
            return MALFORMED
        if end.is_open and (is_rest or method_of(self._call()) in STREAMING_METHODS):
            # Nobody learns what becomes of the task, and the agent may have dropped it.
            return Outcome.UNFINISHED, INSPECTED
        return None

    def _expects_events(self) -> bool:
        """Return whether an event stream without an event is an invalid answer to this request."""
        return self._scope["path"].endswith(STREAMING_PATH) or self._expects_rpc_answer()

    def _classify_events(self, end: StreamEnd) -> Classified:
        outcome = end.outcome
        is_failure = outcome is not ANSWERED and outcome is not Outcome.NOT_INSPECTED
        # An answer to a call has JSON-RPC in it, and JSON-RPC has nothing else beside it.
        is_other = end.has_other_data or (end.has_json and not end.is_rpc and end.missed is None)
        if is_other and not is_failure and (end.is_rpc or self._expects_rpc_answer()):
            return MALFORMED
        if not end.has_task and self._is_mcp():
            return self._classify_mcp_events(end)
        if outcome is TASK_FAILED and (is_poll := self._is_poll()) is not False:
            if is_poll is None:
                return UNREAD
            outcome = ANSWERED if end.missed is None else Outcome.NOT_INSPECTED
        if outcome is not Outcome.NOT_INSPECTED or end.missed is None:
            return outcome, INSPECTED
        return outcome, end.missed

    def _classify_json(self, kept: JsonBody | None, last: bytes, status: int) -> Classified:
        if self._read is None and not last and (kept is None or kept.is_empty()):
            return self._classify_empty(status)
        read = self._read or self._read_json(kept, last)
        if isinstance(read, Inspection):
            return Outcome.NOT_INSPECTED, read
        if read is NO_JSON and self._content is UNCLAIMED:
            return UNREAD
        if (read.is_other and self._is_no_answer(read)) or (read.is_empty and self._is_rpc_send()):
            return MALFORMED
        if read.outcome is TASK_FAILED and (is_poll := self._is_poll()) is not False:
            return GOOD if is_poll else UNREAD
        is_by_request = read.is_unnamed or read.is_rpc_error or read.members
        return classified(self._as_mcp(read) if is_by_request and self._is_mcp() else read)

    def _is_no_answer(self, read: JsonAnswer) -> bool:
        """Return whether JSON that is no JSON-RPC answers nothing: a JSON-RPC call, or a REST send."""
        scope = self._scope
        if scope["method"] == "POST" and scope["path"].endswith(SENDING_PATHS):
            return read is not REST_ANSWER
        return self._expects_rpc_answer()

    def _classify_empty(self, status: int) -> Classified:
        """Judge an answer without a body, which is invalid only as JSON in answer to a call."""
        if not (self._may_expect_json() and self._expects_json()):
            return GOOD
        return MALFORMED if status == 200 and self._content is JSON else UNREAD

    def _content_of(self, start: Message) -> str:
        """Return the content that an answer claims, or UNCLAIMED if it may answer a call all the same."""
        content = content_of(start)
        return UNCLAIMED if content is OTHER and self._may_expect_json() else content

    def _may_expect_json(self) -> bool:
        """Return whether `_expects_json` may be true, without parsing the request."""
        scope = self._scope
        return scope["method"] == "POST" and (self._is_rpc_request() or scope["path"].endswith(SENDING_PATHS))

    def _expects_json(self) -> bool:
        """Return whether only JSON or events can answer the request: a JSON-RPC call, or a REST send."""
        return self._scope["path"].endswith(SENDING_PATHS) or self._expects_rpc_answer()

    def _is_rpc_request(self) -> bool:
        """Return whether the request may be JSON-RPC, without parsing it."""
        request = self._request
        if request is None:
            return False
        return not isinstance(request, bytes) or b'"jsonrpc"' in request

    def _expects_rpc_answer(self) -> bool:
        """Return whether the request is a JSON-RPC call. A call to a path of the REST binding is not."""
        scope = self._scope
        return (
            scope["method"] == "POST" and not is_rest_path(scope["path"]) and expects_rpc_answer(self._call())
        )

    def _is_rpc_send(self) -> bool:
        """Return whether the request is a JSON-RPC call of A2A that sends a message."""
        return self._expects_rpc_answer() and method_of(self._call()) in SENDING_METHODS

    def _read_json(self, kept: JsonBody | None, last: bytes) -> JsonAnswer | Inspection:
        try:
            return read_json(last, self._observer.max_inspected_bytes) if kept is None else kept.read(last)
        except NotJson:
            return NO_JSON

    def _is_mcp(self) -> bool:
        """Return whether the request belongs to MCP.

        Not called for a certain A2A request: it takes 0.5 µs.
        """
        return is_mcp(self._scope.get("headers") or ())

    def _operation(self) -> str:
        return operation_of(self._scope.get("headers") or (), self._call())

    def _is_no_interaction(self) -> bool:
        """Return whether the request belongs to MCP and is no interaction, however it ends."""
        return self._is_mcp() and not is_interaction(self._scope["method"], self._operation())

    def _as_mcp(self, read: JsonAnswer, status: int = 200) -> JsonAnswer:
        call = self._call()
        operation = operation_of(self._scope.get("headers") or (), call)
        return judge_as_mcp(read, operation, status, is_called=bool(method_of(call)))

    def _classify_mcp_refusal(self, status: int) -> Outcome:
        """Return the outcome of an MCP answer with 4xx or 5xx, by its JSON-RPC code if needed."""
        last = bytes(self._last or b"")
        kept = None if self._body is None else self._body.kept
        if status in JUDGED_BY_CODE and (last or isinstance(kept, JsonBody)):
            read = self._read_json(kept if isinstance(kept, JsonBody) else None, last)
            if isinstance(read, JsonAnswer) and (read.is_rpc_error or read.members):
                return self._as_mcp(read, status).outcome
        return outcome_of_mcp_status(status)

    def _classify_mcp_events(self, end: StreamEnd) -> Classified:
        """Judge a stream of an MCP server by its answer: other events are requests and notifications."""
        if end.answer is not None:
            return classified(self._as_mcp(end.answer))
        if end.missed is not None:
            return Outcome.NOT_INSPECTED, end.missed
        if end.outcome is not ANSWERED:
            return end.outcome, INSPECTED
        # A server may close a stream before the answer. Its client then gets it by a GET, from an event's id
        # on. A caller can end it, too, by ending the session.
        is_lost = not end.is_resumable and self._expects_rpc_answer()
        return classified(FAILED_TOOL) if is_lost else NO_INTERACTION

    def _is_poll(self) -> bool | None:
        return is_poll(self._scope["method"], self._scope["path"], self._call())

    def _call(self) -> object:
        """Return the caller's parsed call; None if it is unknown."""
        request = self._request
        if isinstance(request, RequestBody):
            return request.call()
        return parse_or_none(request) if request else None


def sends_may_raise(scope: Scope) -> bool:
    """Return whether `send` may raise OSError because the caller has left: since HTTP spec 2.4, it must.

    A server without a version is assumed to do so.
    """
    version = scope.get("asgi", {}).get("spec_version")
    return version not in {"2.0", "2.1", "2.2", "2.3"}


def _is_empty_by_right(start: Message) -> bool:
    return start.get("status") in {204, 304} or header(start, b"content-length") == b"0"


def _has_route(scope: Scope) -> bool:
    """Return whether a route of the app matched, if its framework shows it (Starlette, FastAPI).

    A mounted app is a route and an endpoint too, but does not show its own routes.
    """
    if "route" in scope:
        return getattr(scope["route"], "endpoint", None) is not None
    # Older Starlette shows the endpoint only.
    endpoint = scope.get("endpoint")
    return isinstance(endpoint, type) or hasattr(endpoint, "__code__")
