"""Event streams of A2A and MCP, read one event at a time: an error counts also if other events follow.

The format is that of server-sent events (WHATWG). The data of an event is JSON-RPC, A2A's REST binding,
or anything else; only JSON-RPC promises that it is JSON.
"""

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any, Final

from lifesign.domain.a2a.event_search import end_as_objects, first_other_event, suspicious_events
from lifesign.domain.a2a.event_shape import MAX_SHAPED_BYTES, Shape, shape_of
from lifesign.domain.a2a.response_outcome import (
    FAILED_TOOL,
    MALFORMED_ANSWER,
    JsonAnswer,
    badness_of,
    is_failed,
    is_final,
    is_open,
    is_rest_event,
    judge_message,
    outcome_of_error,
    task_state,
    worst_of,
)
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.outcome import ANSWERED, TASK_FAILED, Outcome
from lifesign.domain.parsing.bounded_json import (
    MAX_MARKS,
    MAX_MARKS_AGAIN,
    NotJson,
    TooComplex,
    is_certain,
    marks_of,
    parse_again,
    parse_bounded,
    parse_fast,
)
from lifesign.domain.parsing.event_framing import (
    BYTE_ORDER_MARK,
    MESSAGE_NAMES,
    end_of_first_event,
    end_of_last_event,
    events_of,
    has_event_id,
)

_PIECE_BYTES = 65_536
"""A whole stream is read in pieces of this size, since the limits apply to one piece."""

_NAME_WITHIN_BYTES = 1024
"""Number of first bytes of an unparsed event in which the name is searched."""
_ERROR_NAME = re.compile(rb"(?:\A|[\r\n])event: ?error[\r\n]")
_MAX_LESSONS = 8
_MAX_SLICES: Final = 16
"""Maximum of slices of a piece that is longer than an event may be."""
_MIN_PIECE_BYTES: Final = 1_048_576
"""Number of bytes of a piece that are read even if an event may be no longer than a slice of them."""
_MAX_SEARCHED_EVENTS: Final = 64
"""Maximum of events of a piece that may have failed and are parsed, if it has too many marks."""
_MAX_SEARCHED_BYTES: Final = 262_144
"""Maximum of their bytes together."""
_MAX_SECOND_READS: Final = 100
"""Maximum of events of a piece that the slow parser reads as well; together they have MAX_MARKS_AGAIN."""
_MARKS = (b"{", b"[", b",", b"\n", b"\r")


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Outcome of a finished event stream."""

    outcome: Outcome
    """The first error, else the last state of its task; `NOT_INSPECTED` if an event was not read, else."""
    missed: Inspection | None = None
    """Reason why an event was not read; the first one."""
    is_rpc: bool = False
    """Whether any event was JSON-RPC."""
    has_other_data: bool = False
    """Whether the data of any event was not JSON, or JSON-RPC without an error, a result and a method."""
    has_json: bool = field(default=False, compare=False)
    """Whether the data of any event was JSON."""
    has_events: bool = False
    """Whether there was an event with data, read or not; comments and `retry` lines are not events."""
    answer: JsonAnswer | None = field(default=None, compare=False)
    """Deciding message of an MCP stream: the first JSON-RPC error, else the worst result."""
    has_task: bool = field(default=False, compare=False)
    """Whether any event reported the state of an A2A task."""
    is_open: bool = field(default=False, compare=False)
    """Whether the agent still had to work on the task in its last state, which it did not call final."""
    is_rest: bool = field(default=False, compare=False)
    """Whether any event was one of A2A's REST binding, or none was parsed."""
    is_resumable: bool = field(default=False, compare=False)
    """Whether an event of an MCP stream had an `id`, by which a client can ask for the rest."""
    is_session: bool = field(default=False, compare=False)
    """Whether the first event was named `endpoint`: after a GET, the answers to all POST requests of an MCP
    session follow (HTTP with SSE, 2024-11-05).
    """


class _SearchLeft:
    """How much may still be parsed of a piece with too many events."""

    def __init__(self) -> None:
        self.events = _MAX_SEARCHED_EVENTS
        self._bytes = _MAX_SEARCHED_BYTES
        self._marks = MAX_MARKS

    def takes(self, event: bytes) -> bool:
        """Return whether the limits permit to parse one more event, and count it."""
        self.events -= 1
        if len(event) > self._bytes or (marks := _marks_of(event)) > self._marks:
            return False
        self._bytes -= len(event)
        self._marks -= marks
        return True


class EventStreamReader:
    """Determines the outcome of a `text/event-stream` answer piece by piece, without keeping its events.

    An event is at most `max_event_bytes` long, and has at most MAX_MARKS of `{`, `[` and `,`; others are not
    read. Of a piece with more marks and line ends than that, only events that may have failed are read. Each
    piece is read within 10 ms, unless `max_event_bytes` is above a mebibyte.
    """

    __slots__ = (
        "_answer",
        "_error",
        "_has_begun",
        "_has_events",
        "_has_json",
        "_has_other_data",
        "_has_task",
        "_is_mcp",
        "_is_open",
        "_is_rest",
        "_is_resumable",
        "_is_rpc",
        "_is_session",
        "_is_skipping",
        "_last",
        "_lessons_left",
        "_marks_left",
        "_max_event_bytes",
        "_missed",
        "_rest",
        "_search_left",
        "_second_marks_left",
        "_second_reads_left",
        "_shape",
    )  # fmt: skip

    def __init__(self, max_event_bytes: int, *, is_mcp: bool = False) -> None:
        """`is_mcp`: whether a message with a `method` is a request or a notification of the server."""
        self._max_event_bytes = max_event_bytes
        self._is_mcp = is_mcp
        self._rest = bytearray()
        """Beginning of an incomplete event."""
        self._is_skipping = False
        self._has_begun = False
        self._error: Outcome | None = None
        self._answer: JsonAnswer | None = None
        self._has_task = self._is_open = self._is_resumable = self._is_rest = self._is_session = False
        self._last = ANSWERED
        self._missed: Inspection | None = None
        self._is_rpc = self._has_json = self._has_other_data = self._has_events = False
        self._shape: Shape | None = None
        self._lessons_left = _MAX_LESSONS if max_event_bytes >= MAX_SHAPED_BYTES else 0
        self._marks_left = MAX_MARKS
        self._second_reads_left = _MAX_SECOND_READS
        self._second_marks_left = MAX_MARKS_AGAIN
        self._search_left: _SearchLeft | None = None

    @property
    def held_bytes(self) -> int:
        """Number of bytes of an incomplete event that are kept now."""
        return len(self._rest)

    @property
    def shape(self) -> Shape | None:
        """Shape of the events that may be skipped instead of passed to `append`; None: skip none."""
        return None if self._rest or self._is_skipping else self._shape

    def append(self, piece: bytes) -> None:
        """Process the next piece, and with it the events that it completes."""
        self._marks_left = MAX_MARKS
        self._second_reads_left = _MAX_SECOND_READS
        self._second_marks_left = MAX_MARKS_AGAIN
        self._search_left = None
        most = self._max_event_bytes
        if len(piece) <= most:
            self._append(piece)
            return
        most_bytes = min(len(piece), most * _MAX_SLICES, max(most, _MIN_PIECE_BYTES))
        for at in range(0, most_bytes, most):
            self._append(piece[at : min(at + most, most_bytes)])
        if len(piece) > most_bytes:
            self._miss(Inspection.OVERSIZED, piece[most_bytes : most_bytes + _NAME_WITHIN_BYTES])
            # Another event may begin in this piece: searching so many bytes would take too long.
            self._is_skipping = not end_of_last_event(b"", piece[max(most_bytes, len(piece) - 4) :])
            self._rest[:] = piece[-1:] if self._is_skipping else b""

    def _append(self, piece: bytes) -> None:
        if self._error is not None:
            return
        end = end_of_last_event(bytes(self._rest[-1:]), piece)
        if not end:
            self._hold(piece)
            return
        ended = bytes(self._rest) + piece[:end]
        if self._is_skipping or len(ended) > self._max_event_bytes:
            first = end_of_first_event(ended)
            if first > self._max_event_bytes:
                self._miss(Inspection.OVERSIZED, piece)
            if self._is_skipping or first > self._max_event_bytes:
                ended = ended[first:]
            self._is_skipping = False
        self._rest.clear()
        if ended:
            self._read(ended)
        if end < len(piece):
            self._hold(piece[end:])

    def skip_event(self, reason: Inspection) -> None:
        """Give up the event that is being read: drop its kept bytes, and skip the rest of it."""
        self._miss(reason, b"")
        self._is_skipping = True
        self._rest[:] = self._rest[-1:]

    def end(self) -> StreamEnd:
        """Return the outcome of the stream after its last piece.

        The text after its last blank line is no event, but a failure in it counts: the stream broke off
        there.
        """
        outcome = self._last if self._error is None else self._error
        answer, is_open = self._answer, self._is_open
        if outcome is ANSWERED and self._rest and not self._is_skipping:
            outcome, answer, is_open = self._read_rest()
        if self._missed is not None and outcome is ANSWERED:
            outcome = Outcome.NOT_INSPECTED
        return StreamEnd(
            outcome,
            self._missed,
            is_rpc=self._is_rpc,
            has_other_data=self._has_other_data,
            has_json=self._has_json,
            has_events=self._has_events or self._missed is not None,
            answer=answer,
            has_task=self._has_task,
            is_open=is_open,
            is_rest=self._is_rest,
            is_resumable=self._is_resumable,
            is_session=self._is_session,
        )

    def _read_rest(self) -> tuple[Outcome, JsonAnswer | None, bool]:
        """Return outcome, answer and whether the task is open, by a last event without its blank line."""
        reader = EventStreamReader(self._max_event_bytes, is_mcp=self._is_mcp)
        reader._read(bytes(self._rest) + b"\n\n")
        outcome = reader._last if reader._error is None else reader._error
        is_open = reader._is_open if reader._has_task else self._is_open
        return outcome, reader._answer or self._answer, is_open

    def _hold(self, piece: bytes) -> None:
        if self._is_skipping:
            self._rest[:] = piece[-1:]
        elif len(self._rest) + len(piece) <= self._max_event_bytes:
            self._rest += piece
        else:
            self._miss(Inspection.OVERSIZED, piece)
            self._is_skipping = True
            self._rest[:] = piece[-1:]

    def _miss(self, reason: Inspection, piece: bytes) -> None:
        """Note that an event is not read: it begins with the kept bytes and continues with a piece."""
        beginning = bytes(self._rest[:_NAME_WITHIN_BYTES]) + piece[:_NAME_WITHIN_BYTES]
        if not self._is_skipping and _ERROR_NAME.search(beginning):
            self._note_fault(Outcome.SERVER_FAULT)
        self._note_missed(reason)

    def _note_missed(self, reason: Inspection) -> None:
        if self._missed is None:
            self._missed = reason

    def _read(self, ended: bytes) -> None:
        """Read whole events."""
        if not self._has_begun:
            self._has_begun = True
            ended = ended.removeprefix(BYTE_ORDER_MARK)
        if self._is_mcp and not self._is_resumable:
            self._is_resumable = has_event_id(ended)
        if not self._has_marks_for(ended):
            self._search(ended)
            return
        count = self._read_events(ended)
        if count == 1 and self._lessons_left and self._last is ANSWERED and self._error is None:
            self._lessons_left -= 1
            self._shape = shape_of(ended)

    def _has_marks_for(self, ended: bytes) -> bool:
        """Return whether the rest of this piece's marks suffices to parse these events, and subtract them."""
        marks = len(ended)
        if marks > self._marks_left:
            marks = _marks_of(ended)
            if marks > self._marks_left:
                return False
        self._marks_left -= marks
        return True

    def _search(self, ended: bytes) -> None:
        """Search the events of a piece that may have failed, if it has too many.

        An event with too many marks is not read.
        """
        if b"data" not in ended:
            return
        if end_of_first_event(ended) == len(ended):
            self._miss(Inspection.COMPLEX, ended)
            return
        # The last state may be in an event that is not parsed.
        self._note_open(is_open=False)
        self._is_rest = True
        self._is_rpc = self._is_rpc or b'"jsonrpc"' in ended
        self._has_events = self._has_json = self._has_events or b"data:" in ended
        left = self._search_left = self._search_left or _SearchLeft()
        for event in suspicious_events(ended):
            if not left.events:
                self._note_missed(Inspection.COMPLEX)
                break
            if left.takes(event):
                self._read_events(event)
            else:
                self._miss(Inspection.COMPLEX, event)
            if self._error is not None:
                return
        self._note_unread(ended)

    def _note_unread(self, ended: bytes) -> None:
        """Note whether events that were not parsed may be other data than JSON objects."""
        other = first_other_event(ended)
        if other is None:
            if not end_as_objects(ended):
                self._note_missed(Inspection.COMPLEX)
            return
        if len(other) <= MAX_MARKS:
            for name, data in events_of(other.splitlines()):
                is_other = bool(data) and not self._is_ignored(name) and _is_no_json(data)
                self._has_other_data = self._has_other_data or is_other
        if not self._has_other_data:
            self._note_missed(Inspection.COMPLEX)

    def _read_events(self, ended: bytes) -> int:
        """Read whole events up to the first error, and return how many there were."""
        count = 0
        for name, data in events_of(ended.splitlines()):
            if not self._has_events:
                self._has_events = True
                self._is_session = name == b"endpoint"
            # A resumable MCP server begins its stream with an event that has an id and empty data.
            if data or name == b"error":
                self._note_event(name, data)
            count += 1
            if self._error is not None:
                break
        return count

    def _note_event(self, name: bytes, data: bytes) -> None:
        if name == b"error":
            self._note_fault(_outcome_of_error_event(data))
            return
        if self._is_ignored(name):
            self._note_ignored(data)
            return
        if len(data) > self._max_event_bytes:
            self._note_missed(Inspection.OVERSIZED)
            return
        try:
            # The marks of all events of the piece were counted together.
            message = parse_fast(data)
        except ValueError as refusal:
            self._note_refused(data, refusal)
        else:
            self._note_value(message)

    def _is_ignored(self, name: bytes) -> bool:
        """Return whether clients ignore an event of this name: those of MCP read messages only."""
        return self._is_mcp and name not in MESSAGE_NAMES

    def _note_ignored(self, data: bytes) -> None:
        """Note an event that no client of MCP reads, if it is one of A2A: any caller may send MCP headers."""
        if len(data) > self._max_event_bytes:
            return
        with contextlib.suppress(ValueError):
            message = parse_fast(data)
            if isinstance(message, dict) and _is_task_event(message):
                self._note_value(message)

    def _note_fault(self, outcome: Outcome) -> None:
        """Note an event `error`. In MCP it decides only without an answer, as clients read on."""
        if self._is_mcp:
            self._last = outcome
        else:
            self._error = outcome

    def _note_refused(self, data: bytes, refusal: ValueError) -> None:
        """Note an event that the fast parser refused."""
        if is_certain(refusal, data):
            self._has_other_data = True
            return
        if not self._second_reads_left:
            self._note_missed(Inspection.COMPLEX)
            return
        self._second_reads_left -= 1
        most = self._second_marks_left
        self._second_marks_left = max(0, most - marks_of(data))
        try:
            self._note_value(parse_again(data, refusal, most))
        except NotJson:
            self._has_other_data = True
        except TooComplex:
            self._note_missed(Inspection.COMPLEX)

    def _note_value(self, message: object) -> None:
        self._has_json = True
        if isinstance(message, dict):
            self._note_message(message)
        elif isinstance(message, list):
            self._note_batch([one for one in message if isinstance(one, dict) and "jsonrpc" in one])

    def _note_batch(self, messages: list[dict[str, Any]]) -> None:
        """Note a JSON-RPC batch in one event, whose worst answer decides, wherever it stands."""
        answers = [one for one in messages if not self._is_request(one)]
        worst = max(answers, key=badness_of, default=None)
        for one in messages:
            if one is not worst and (one.get("error") is None or self._is_request(one)):
                self._note_message(one)
        if worst is not None:
            self._note_message(worst)

    def _is_request(self, message: dict[str, Any]) -> bool:
        """Return whether JSON-RPC is a request or a notification; in MCP, other members have no effect."""
        return "method" in message and (self._is_mcp or not ("result" in message or "error" in message))

    def _note_message(self, message: dict[str, Any]) -> None:
        is_rpc = "jsonrpc" in message
        self._is_rpc = self._is_rpc or is_rpc
        self._is_rest = self._is_rest or (not is_rpc and is_rest_event(message))
        if is_rpc and self._is_request(message):
            return
        if message.get("error") is not None:
            if self._error is None:
                self._error = outcome_of_error(message["error"], is_rpc=is_rpc)
                self._answer = judge_message(message) if is_rpc else None
            return
        state = task_state(message)
        if state is not None:
            self._has_task = True
            self._last = TASK_FAILED if is_failed(state) else ANSWERED
            self._note_open(is_open=is_open(state) and not is_final(message))
        elif is_rpc:
            answer = judge_message(message)
            if answer is not self._answer:
                self._answer = answer if self._answer is None else worst_of((answer, self._answer))
            if answer is FAILED_TOOL:
                self._last = Outcome.TOOL_ERROR
            elif answer is MALFORMED_ANSWER:
                self._has_other_data = True
        if self._last is not ANSWERED:
            # From here on, an event of the shape would be a change.
            self._shape = None
            self._lessons_left = 0

    def _note_open(self, *, is_open: bool) -> None:
        """Note whether the agent still has to work on the task."""
        if is_open is not self._is_open:
            # As above.
            self._shape = None
        self._is_open = is_open


def read_event_stream(body: bytes) -> StreamEnd:
    """Return the outcome of a complete stream with any number of events."""
    reader = EventStreamReader(max(len(body), 1))
    for at in range(0, len(body), _PIECE_BYTES):
        reader.append(body[at : at + _PIECE_BYTES])
    return reader.end()


def _marks_of(ended: bytes) -> int:
    return sum(map(ended.count, _MARKS))


def _is_no_json(data: bytes) -> bool:
    try:
        parse_bounded(data)
    except NotJson:
        return True
    except TooComplex:
        return False
    return False


def _is_task_event(message: dict[str, Any]) -> bool:
    """Return whether an event is one of A2A, over JSON-RPC or REST."""
    result = message.get("result") if "jsonrpc" in message else message
    return isinstance(result, dict) and (is_rest_event(result) or task_state(message) is not None)


def _outcome_of_error_event(data: bytes) -> Outcome:
    try:
        message = parse_bounded(data)
    except (NotJson, TooComplex):
        message = None
    if not isinstance(message, dict):
        return Outcome.SERVER_FAULT
    return outcome_of_error(message.get("error"), is_rpc=message.get("jsonrpc") is not None)
