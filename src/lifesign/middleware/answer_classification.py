"""Classification of a request by its answer, once the answer has ended or broken off (protocol section 2)."""

from typing import Any

from lifesign.domain.a2a.response_outcome import (
    FAILED_TOOL,
    GOOD_ANSWER,
    MALFORMED_ANSWER,
    REST_ANSWER,
    SENDING_PATHS,
    STREAMING_METHODS,
    STREAMING_PATH,
    JsonAnswer,
    classify_json,
    may_lack_result,
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
    CLASSIFIED_BY_CODE,
    classify_as_mcp,
    operation_of,
    outcome_of_mcp_status,
)
from lifesign.domain.parsing.bounded_json import NotJson, TooComplex
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
    StreamedBody,
    classified,
    content_of,
    declared_bytes,
    header,
    is_compressed,
    is_compression,
    is_partial,
    read_json,
)
from lifesign.middleware.cancellation import is_from_outside
from lifesign.middleware.observer import Observer
from lifesign.middleware.request_facts import RequestFacts

NO_JSON = JsonAnswer(Outcome.MALFORMED)
"""Content that claims JSON and is none."""
UNINSPECTED: Classified = (Outcome.NOT_INSPECTED, Inspection.UNSPECIFIED)
"""Content of another type that answers a call and is no JSON; a FAILED task if the call is unknown; a result
that arrives in another stream.
"""
# An MCP server accepts a notification, or an answer of the client's, without a body.
_ACCEPTED = frozenset({202, 204})


class AnswerClassification(RequestFacts):
    """Collects what is known of one request and its answer, and determines the outcome."""

    __slots__ = (
        "_began_ns",
        "_body",
        "_content",
        "_first_byte_ns",
        "_headers",
        "_is_sent_by_server",
        "_last",
        "_left_ns",
        "_observer",
        "_read",
        "_start",
    )  # fmt: skip

    _observer: Observer
    _start: Message | None
    _headers: Any
    """Headers of the answer as the app sent them."""
    _content: str
    _body: StreamedBody | None
    """The answer's body, if it came in several messages."""
    _last: bytes | None
    """The last piece of the answer's body, until it is inspected."""
    _read: JsonAnswer | Inspection | None
    """Statement of an answer that has been read."""
    _is_sent_by_server: bool
    _began_ns: int
    _first_byte_ns: int
    """When the first byte of a body in several messages was sent; 0 before."""
    _left_ns: int
    """When the caller left; 0 if it has not."""

    def _read_short_json(self, body: bytes, encoding: bytes) -> JsonAnswer | Inspection | None:
        """Read an answer in one message and keep its statement; None if it is not short JSON."""
        if self._content is not JSON or type(body) is not bytes:
            return None
        if len(body) > self._observer.max_inspected_bytes or (encoding and is_compression(encoding)):
            return None
        try:
            self._read = read = classify_json(body)
        except NotJson:
            self._read = NO_JSON
        except TooComplex:
            self._read = Inspection.COMPLEX
        else:
            return read
        return None

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
            return self._classify_refusal(status), None
        is_accepted = status in _ACCEPTED and self._is_mcp()
        if is_accepted or not self._observer.max_inspected_bytes:
            return NO_INTERACTION if is_accepted else (ANSWERED, None)
        sent = {**start, "headers": self._headers}
        if self._body is None:
            self._content = self._claimed_content(sent)
        if self._has_other_length(sent):
            return Outcome.MALFORMED, None
        is_uninspected = self._content is OTHER or is_partial(sent, self._scope["method"])
        if is_uninspected or (self._content is UNCLAIMED and not self._expects_json()):
            return ANSWERED, None
        return self._classify_body(sent)

    def _has_other_length(self, sent: Message) -> bool:
        """Return whether an answer is longer or shorter than it declares, which not every server checks."""
        declared = declared_bytes(sent)
        if declared is None or self._is_sent_by_server or sent["status"] == 204:
            return False
        if self._body is None:
            return len(self._last or b"") != declared
        # Not all events pass through the body that counts bytes.
        return self._content is not EVENTS and not self._body.is_as_long_as_declared(self._last)

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
        # Events without data are no result.
        is_empty = not end.has_task and (end.has_events if end.answer is None else end.answer.is_empty)
        if is_whole and is_empty and self._is_rpc_send():
            return MALFORMED
        if end.is_open and (is_rest or method_of(self._parsed_call()) in STREAMING_METHODS):
            # Nobody learns what becomes of the task, and the agent may have dropped it.
            return Outcome.UNFINISHED, INSPECTED
        return None

    def _classify_events(self, end: StreamEnd) -> Classified:
        if end.is_session and self._scope["method"] == "GET":
            return NO_INTERACTION
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
                return UNINSPECTED
            outcome = ANSWERED if end.missed is None else Outcome.NOT_INSPECTED
        if outcome is not Outcome.NOT_INSPECTED or end.missed is None:
            return outcome, INSPECTED
        return outcome, end.missed

    def _classify_json(self, kept: JsonBody | None, last: bytes, status: int) -> Classified:
        is_empty = self._read is None and not last and (kept is None or kept.is_empty())
        # A 204 has no body: servers leave out what the app sends.
        if is_empty or status == 204:
            return self._classify_empty(status)
        read = self._read or self._read_json(kept, last)
        if isinstance(read, Inspection):
            return Outcome.NOT_INSPECTED, read
        if read is NO_JSON and self._content is UNCLAIMED:
            return UNINSPECTED
        if read is MALFORMED_ANSWER and may_lack_result(self._parsed_call()):
            read = GOOD_ANSWER
        if (read.is_other and self._is_invalid_answer(read)) or (read.is_empty and self._is_rpc_send()):
            return MALFORMED
        if read.outcome is TASK_FAILED and (is_poll := self._is_poll()) is not False:
            return GOOD if is_poll else UNINSPECTED
        is_by_request = read.is_unnamed or read.is_rpc_error or read.members
        return classified(self._reclassify_as_mcp(read) if is_by_request and self._is_mcp() else read)

    def _is_invalid_answer(self, read: JsonAnswer) -> bool:
        """Return whether JSON that is no JSON-RPC answers nothing: a JSON-RPC call, or a REST send."""
        scope = self._scope
        if scope["method"] == "POST" and scope["path"].endswith(SENDING_PATHS):
            return read is not REST_ANSWER
        return self._expects_rpc_answer()

    def _classify_empty(self, status: int) -> Classified:
        """Judge an answer without a body, which is invalid only as JSON in answer to a call."""
        if not (self._may_expect_json() and self._expects_json()):
            return GOOD
        return MALFORMED if status == 200 and self._content is JSON else UNINSPECTED

    def _claimed_content(self, start: Message) -> str:
        """Return the content that an answer claims, or UNCLAIMED if it may answer a call all the same."""
        content = content_of(start)
        return UNCLAIMED if content is OTHER and self._may_expect_json() else content

    def _read_json(self, kept: JsonBody | None, last: bytes) -> JsonAnswer | Inspection:
        try:
            return read_json(last, self._observer.max_inspected_bytes) if kept is None else kept.read(last)
        except NotJson:
            return NO_JSON

    def _reclassify_as_mcp(self, read: JsonAnswer, status: int = 200) -> JsonAnswer:
        call = self._parsed_call()
        operation = operation_of(self._scope.get("headers") or (), call)
        return classify_as_mcp(read, operation, status, is_called=bool(method_of(call)))

    def _classify_refusal(self, status: int) -> Outcome:
        """Return the outcome of an answer that is no 2xx, by its JSON-RPC code if that decides.

        Servers of MCP refuse requests without MCP headers too, such as a plain GET, by a JSON-RPC error.
        """
        if status in CLASSIFIED_BY_CODE and (error := self._rpc_error()) is not None:
            if self._is_mcp():
                return self._reclassify_as_mcp(error, status).outcome
            if error.outcome is Outcome.NO_OPERATION:
                return error.outcome
        if status >= 400 and self._is_mcp():
            return outcome_of_mcp_status(status)
        return outcome_of_status(status, has_route=_has_route(self._scope))

    def _rpc_error(self) -> JsonAnswer | None:
        """Return the JSON-RPC error, or the batch, that a refusal contains; None without one."""
        last = bytes(self._last or b"")
        kept = None if self._body is None else self._body.kept
        if not (last or isinstance(kept, JsonBody)):
            return None
        read = self._read_json(kept if isinstance(kept, JsonBody) else None, last)
        return read if isinstance(read, JsonAnswer) and (read.is_rpc_error or read.members) else None

    def _classify_mcp_events(self, end: StreamEnd) -> Classified:
        """Judge a stream of an MCP server by its answer: other events are requests and notifications."""
        if end.answer is not None:
            return classified(self._reclassify_as_mcp(end.answer))
        if end.missed is not None:
            return Outcome.NOT_INSPECTED, end.missed
        if end.outcome is not ANSWERED:
            return end.outcome, INSPECTED
        if not self._expects_rpc_answer():
            return NO_INTERACTION
        # A server may close a stream before the answer. Its client then gets it by a GET, from an event's id
        # on: it may be a failure. Without an id it is lost. A caller can end the stream, too, by ending the
        # session.
        return UNINSPECTED if end.is_resumable else classified(FAILED_TOOL)


def _has_route(scope: Message) -> bool:
    """Return whether a route of the app matched, if its framework shows it (Starlette, FastAPI).

    A mounted app is a route and an endpoint too, but does not show its own routes.
    """
    if "route" in scope:
        return getattr(scope["route"], "endpoint", None) is not None
    # Older Starlette shows the endpoint only.
    endpoint = scope.get("endpoint")
    return isinstance(endpoint, type) or hasattr(endpoint, "__code__")
