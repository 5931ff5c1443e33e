"""What does an answer claim to be, how much of its body is kept, and what does it say?

An answer is looked into only while it is short; of a stream, its last messages are kept, as they say
how it ended. What could not be seen whole is never judged by its fragments.
"""

from collections import deque
from collections.abc import MutableMapping
from typing import Any

from agent_health.a2a_answer import TooDeep, outcome_of_json, outcome_of_stream
from agent_health.outcome import ANSWERED, Outcome

Message = MutableMapping[str, Any]

# What an answer claims to be. Plain text, as looking up a member of an Enum takes 75 ns.
JSON = "json"
EVENTS = "events"
OTHER = "other"

_TAIL_MESSAGES = 16
"""So many last messages of a stream are kept; SDKs send one for each event."""

# As frameworks spell them; others are parsed.
_CONTENT_OF_TYPE = {
    b"application/a2a+json": JSON,
    b"application/json": JSON,
    b"text/event-stream": EVENTS,
    b"text/event-stream; charset=utf-8": EVENTS,
    b"text/html; charset=utf-8": OTHER,
    b"text/plain; charset=utf-8": OTHER,
}


def content_of(start: Message) -> str:
    """Return what an answer claims to be: JSON, EVENTS or OTHER."""
    content_type = header(start, b"content-type")
    return _CONTENT_OF_TYPE.get(content_type) or _parsed_content_of(content_type)


def header(start: Message, wanted: bytes) -> bytes:
    """Return a header of an answer, empty if it is absent. `wanted` is in lower case."""
    length = len(wanted)
    for name, value in start.get("headers") or ():
        # Django, for one, does not write names in lower case.
        if len(name) == length and (name == wanted or name.lower() == wanted):
            return bytes(value)
    return b""


def outcome_of_body(start: Message, content: str, body: bytes | None, *, is_whole: bool = True) -> Outcome:
    """Judge a 2xx answer by what it says; None is a body that was too long to be kept.

    Of a stream, `body` may be its tail only (`is_whole` False). Raises NotJson for what does not parse
    as the content type it claims.
    """
    if content == OTHER:
        return ANSWERED
    if body is None or header(start, b"content-encoding").lower() not in _READABLE_ENCODINGS:
        return Outcome.UNINSPECTED
    try:
        if content == EVENTS:
            return outcome_of_stream(body, is_whole=is_whole)
        # 202 and 204 have no body by right.
        return outcome_of_json(body) if body or start["status"] == 200 else ANSWERED
    except TooDeep:
        return Outcome.UNINSPECTED


class ShortBody:
    """A body in several pieces, as long as they are few bytes."""

    __slots__ = ("_pieces", "_room")

    def __init__(self, most_bytes: int) -> None:
        self._pieces: list[bytes] = []
        self._room = most_bytes

    def append(self, piece: bytes | None) -> None:
        """Keep a piece; beyond the limit, forget them all."""
        self._room -= len(piece or b"")
        if self._room >= 0:
            self._pieces.append(piece or b"")
        else:
            self._pieces.clear()

    def read(self) -> bytes | None:
        """Return the bytes, None if there were too many."""
        return None if self._room < 0 else b"".join(self._pieces)


class StreamedBody:
    """What is kept of an answer's body in several messages.

    `append` keeps a piece. It is an attribute because every chunk goes through it: of a stream of
    events it is that of a deque.
    """

    __slots__ = ("_declared_bytes", "_kept", "_most_bytes", "_seen_bytes", "append")

    def __init__(self, start: Message, content: str, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        declared = header(start, b"content-length")
        self._declared_bytes = int(declared) if declared.isdigit() else None
        self._seen_bytes = 0
        self._kept: ShortBody | deque[bytes | None]
        if content == JSON:
            self._kept = ShortBody(most_bytes)
        else:
            self._kept = deque(maxlen=_TAIL_MESSAGES if content == EVENTS and most_bytes else 0)
        self.append = self._kept.append if self._declared_bytes is None else self._keep_and_measure

    def read(self, last: bytes) -> tuple[bytes | None, bool]:
        """Return the bytes up to the `last` ones, None if they are too many, and whether they are all."""
        self._kept.append(last)
        if isinstance(self._kept, ShortBody):
            return self._kept.read(), True
        tail = b"".join([piece or b"" for piece in self._kept])
        is_whole = len(self._kept) < _TAIL_MESSAGES and len(tail) <= self._most_bytes
        return tail[-self._most_bytes :], is_whole

    def is_as_long_as_declared(self, last: bytes | None) -> bool:
        """Whether the answer had a content length, and all of it was sent."""
        return self._seen_bytes + len(last or b"") == self._declared_bytes

    def _keep_and_measure(self, piece: bytes | None) -> None:
        self._seen_bytes += len(piece or b"")
        self._kept.append(piece)


_READABLE_ENCODINGS = frozenset({b"", b"identity"})


def _parsed_content_of(content_type: bytes) -> str:
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"text/event-stream":
        return EVENTS
    is_json = media_type == b"application/json" or media_type.endswith(b"+json")
    return JSON if is_json else OTHER
