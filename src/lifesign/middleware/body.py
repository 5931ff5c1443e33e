"""Answer bodies: their claimed content, and the bytes that are kept until they are read."""

import os
import threading
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

from lifesign.domain.a2a.event_shape import Shape
from lifesign.domain.a2a.response_outcome import (
    MAX_CALL_BYTES,
    METHOD_NAMES,
    JsonAnswer,
    call_of_excerpt,
    classify_json,
)
from lifesign.domain.a2a.stream_outcome import EventStreamReader, StreamEnd
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.outcome import ANSWERED, Outcome
from lifesign.domain.mcp.answer_outcome import CLASSIFIED_BY_CODE
from lifesign.domain.parsing.bounded_json import TooComplex, parse_or_none

Message = MutableMapping[str, Any]

# Content type of an answer. Plain text, as looking up a member of an Enum takes 75 ns.
JSON = "json"
EVENTS = "events"
OTHER = "other"
UNCLAIMED = "unclaimed"
"""Content of another type in answer to a call: read as JSON, though it does not claim that."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes that one process keeps for inspection, for all agents and requests together."""

# As frameworks spell them; others are parsed.
_CONTENT_OF_TYPE = {
    b"application/a2a+json": JSON,
    b"application/json": JSON,
    b"text/event-stream": EVENTS,
    b"text/event-stream; charset=utf-8": EVENTS,
    b"text/html; charset=utf-8": OTHER,
    b"text/plain; charset=utf-8": OTHER,
}
_JSON_TYPES = frozenset({b"application/json", b"application/json-rpc", b"text/json"})
_LENGTHS_OF_NAMES = frozenset(map(len, (b"content-type", b"content-length", b"content-encoding")))
_READABLE_ENCODINGS = frozenset({b"", b"identity"})


def content_of(start: Message) -> str:
    """Return the kind of an answer's content type: JSON, EVENTS or OTHER."""
    return content_of_type(header(start, b"content-type"))


def content_of_type(content_type: bytes) -> str:
    """Return the kind of a content type: JSON, EVENTS or OTHER."""
    content_type = bytes(content_type)
    return _CONTENT_OF_TYPE.get(content_type) or _parsed_content_of(content_type)


def body_headers(start: Message) -> tuple[bytes, bytes, bytes]:
    """Return Content-Type, Content-Length and Content-Encoding of an answer, each empty if it is absent.

    One pass for three headers, as a pass for each takes half a microsecond longer.
    """
    content_type = length = encoding = b""
    for name, value in start.get("headers") or ():
        # Nearly all frameworks write names in lower case.
        if name == b"content-type":
            content_type = content_type or value
        elif name == b"content-length":
            length = length or value
        elif len(name) in _LENGTHS_OF_NAMES:
            match name.lower():
                case b"content-type":
                    content_type = content_type or value
                case b"content-length":
                    length = length or value
                case b"content-encoding":
                    encoding = encoding or value
    return content_type, length, encoding


def header(start: Message, wanted: bytes) -> bytes:
    """Return a header of an answer; empty if it is absent. `wanted` is in lower case."""
    length = len(wanted)
    for name, value in start.get("headers") or ():
        # Django, for one, does not write names in lower case.
        if len(name) == length and (name == wanted or name.lower() == wanted):
            return bytes(value)
    return b""


def is_compressed(start: Message) -> bool:
    """Return whether the app compressed the body of an answer."""
    return is_compression(header(start, b"content-encoding"))


def is_compression(encoding: bytes) -> bool:
    """Return whether a Content-Encoding compresses the body."""
    return bytes(encoding).strip().lower() not in _READABLE_ENCODINGS


def declared_bytes(start: Message) -> int | None:
    """Return the `Content-Length` of an answer; None without a valid one."""
    declared = header(start, b"content-length")
    return int(declared) if declared.isdigit() else None


def is_partial(start: Message, method: str) -> bool:
    """Return whether an answer is part of a body, by a `Range` of a GET (RFC 9110 14.2)."""
    return method == "GET" and (start.get("status") == 206 or bool(header(start, b"content-range")))


Classified = tuple[Outcome, Inspection | None]
# Looked up once, see JSON.
INSPECTED = Inspection.INSPECTED
GOOD: Classified = (ANSWERED, INSPECTED)
MALFORMED: Classified = (Outcome.MALFORMED, INSPECTED)
NO_INTERACTION: Classified = (Outcome.EXCLUDED, None)


def classified(answer: JsonAnswer) -> Classified:
    """Return the outcome of an answer by its JSON content."""
    if answer.outcome is Outcome.EXCLUDED:
        return NO_INTERACTION
    return answer.outcome, Inspection.TOOL_RESULT if answer.is_tool else INSPECTED


def read_json(body: bytes, max_bytes: int) -> JsonAnswer | Inspection:
    """Return the outcome of a complete JSON body, or the reason why it could not be inspected.

    Raises NotJson for an invalid body, also an empty one.
    """
    if len(body) > max_bytes:
        return Inspection.OVERSIZED
    try:
        return classify_json(body)
    except TooComplex:
        return Inspection.COMPLEX


class KeptBytes:
    """Limits the number of bytes of bodies that a process keeps for inspection."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.reset()

    def reset(self) -> None:
        """Start from zero in a new process after a fork.

        The former lock may be held by a thread that is gone.
        """
        self.held = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Reserve `count` bytes; return whether the limit permits it."""
        with self._lock:
            if self.held + count > self.max_bytes:
                return False
            self.held += count
            return True

    def give_back(self, count: int) -> None:
        """Release `count` bytes that `take` has reserved."""
        with self._lock:
            self.held = max(0, self.held - count)


KEPT = KeptBytes()
"""The counter of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=KEPT.reset)


class JsonBody:
    """Keeps a JSON body that arrives in several messages, completely or not at all."""

    __slots__ = ("_bytes", "_max_bytes", "missed")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = bytearray()
        self.missed: Inspection | None = None
        """Reason why the body is not kept."""

    def append(self, piece: bytes) -> None:
        """Keep the next piece. If that exceeds a limit, all kept pieces are dropped."""
        if self.missed is not None:
            return
        if len(self._bytes) + len(piece) > self._max_bytes:
            self._drop(Inspection.OVERSIZED)
        elif not KEPT.take(len(piece)):
            self._drop(Inspection.NO_ROOM)
        else:
            self._bytes += piece

    def is_empty(self) -> bool:
        """Return whether the request body has no bytes."""
        return self.missed is None and not self._bytes

    def read(self, last: bytes) -> JsonAnswer | Inspection:
        """Return the outcome of the kept body after its last piece; NotJson if it is not JSON."""
        if self.missed is not None:
            return self.missed
        return read_json(bytes(self._bytes) + last, self._max_bytes)

    def close(self) -> None:
        """Release the kept bytes."""
        KEPT.give_back(len(self._bytes))
        self._bytes = bytearray()

    def _drop(self, reason: Inspection) -> None:
        self.missed = reason
        self.close()


class EventsBody:
    """Reads an event stream while it passes through, and keeps at most one event."""

    __slots__ = ("_held", "_reader")

    def __init__(self, max_bytes: int, *, is_mcp: bool = False) -> None:
        self._reader = EventStreamReader(max_bytes, is_mcp=is_mcp)
        self._held = 0

    @property
    def shape(self) -> Shape | None:
        """Shape of events that may be skipped instead of passed to `append`; None: skip none."""
        return self._reader.shape

    def append(self, piece: bytes) -> None:
        """Process the next piece of the stream."""
        reader = self._reader
        reader.append(piece if type(piece) is bytes else bytes(piece))
        more = reader.held_bytes - self._held
        if more > 0 and not KEPT.take(more):
            reader.skip_event(Inspection.NO_ROOM)
            more = -self._held
        if more < 0:
            KEPT.give_back(-more)
        self._held += more

    def end(self, last: bytes) -> StreamEnd:
        """Process the last piece of the stream and return its outcome; the kept bytes are released."""
        self.append(last)
        self.close()
        return self._reader.end()

    def close(self) -> None:
        """Release the kept bytes."""
        KEPT.give_back(self._held)
        self._held = 0


class StreamedBody:
    """Keeps or reads an answer's body that is sent in several messages, and compares its length.

    `append` is an attribute because every piece is passed to it.
    """

    __slots__ = ("_declared_bytes", "_keep", "_seen_bytes", "append", "kept")

    def __init__(
        self, start: Message, http_method: str, content: str, max_bytes: int, *, is_mcp: bool = False
    ) -> None:
        """`is_mcp`: whether an event stream is that of an MCP server."""
        self.kept: JsonBody | EventsBody | None = None
        status = start.get("status", 500)
        is_inspected = (
            max_bytes and content != OTHER and (200 <= status < 300 or status in CLASSIFIED_BY_CODE)
        )
        if is_inspected and not is_compressed(start) and not is_partial(start, http_method):
            is_stream = content == EVENTS
            self.kept = EventsBody(max_bytes, is_mcp=is_mcp) if is_stream else JsonBody(max_bytes)
        self._keep = _drop if self.kept is None else self.kept.append
        self._declared_bytes = declared_bytes(start)
        self._seen_bytes = 0
        self.append = self._keep if self._declared_bytes is None else self._store_and_measure

    def is_as_long_as_declared(self, last: bytes | None) -> bool:
        """Return whether the answer's body had the length that its header declares."""
        return self._seen_bytes + len(last or b"") == self._declared_bytes

    def close(self) -> None:
        """Release the kept bytes."""
        if self.kept is not None:
            self.kept.close()

    def _store_and_measure(self, piece: bytes) -> None:
        self._seen_bytes += len(piece)
        self._keep(piece)


class RequestBody:
    """Keeps the beginning and the end of a request body, to recognise the JSON-RPC call in it.

    A body of up to MAX_CALL_BYTES is kept whole.
    """

    __slots__ = ("_beginning", "_end", "_length", "_names")

    def __init__(self) -> None:
        self._beginning = self._end = b""
        self._length = self._names = 0

    def append(self, piece: bytes) -> None:
        """Add the next piece of the request body."""
        self._length += len(piece)
        half = MAX_CALL_BYTES // 2
        if len(self._beginning) < MAX_CALL_BYTES:
            self._beginning += bytes(piece[: MAX_CALL_BYTES - len(self._beginning)])
        piece = piece if type(piece) is bytes else bytes(piece)
        # A piece takes 1 ms per MiB to search. The names matter for a JSON object only, up to the second one.
        if self._names < 2 and self._beginning.lstrip()[:1] in {b"", b"{"}:
            for name in METHOD_NAMES:
                border = self._end[1 - len(name) :] + piece[: len(name) - 1]
                self._names += piece.count(name) + border.count(name)
        self._end = (self._end + piece[-half:])[-half:]

    def call(self) -> object:
        """Return the JSON-RPC call in the request body; None if it is unknown."""
        if self._length <= MAX_CALL_BYTES:
            return parse_or_none(self._beginning)
        return call_of_excerpt(self._beginning, self._end, self._names)


_drop: Callable[[Any], None] = deque[Any](maxlen=0).append
"""Forget a piece. The fastest way that there is."""


def _parsed_content_of(content_type: bytes) -> str:
    # A header that was set twice is a list.
    media_type = content_type.partition(b";")[0].partition(b",")[0].strip().lower()
    if media_type == b"text/event-stream":
        return EVENTS
    return JSON if media_type in _JSON_TYPES or media_type.endswith(b"+json") else OTHER
