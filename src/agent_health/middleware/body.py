"""What does an answer claim to be, how much of its body is kept, and what does it say?

An answer is looked into only while it is short; of a stream, its last messages are kept, as they say
how it ended. What could not be seen whole is never judged by its fragments.
"""

from collections import deque
from collections.abc import Iterable, MutableMapping
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
    """Return a header of an answer, empty if it is absent."""
    for name, value in start.get("headers", ()):
        if name == wanted:
            return value  # type: ignore[no-any-return]
    return b""


def outcome_of_body(start: Message, content: str, body: bytes | None, *, is_whole: bool = True) -> Outcome:
    """Judge a 2xx answer by what it says; None is a body that was too long to be kept.

    Of a stream, `body` may be its tail only (`is_whole` False). Raises NotJson for what does not parse
    as the content type it claims.
    """
    if content == OTHER:
        return ANSWERED
    if body is None or header(start, b"content-encoding") not in _READABLE_ENCODINGS:
        return Outcome.UNINSPECTED
    try:
        if content == EVENTS:
            return outcome_of_stream(body, is_whole=is_whole)
        # 202 and 204 have no body by right.
        return outcome_of_json(body) if body or start["status"] == 200 else ANSWERED
    except TooDeep:
        return Outcome.UNINSPECTED


class ShortBody:
    """The messages of one body, as long as they hold few bytes."""

    __slots__ = ("_messages", "_room")

    def __init__(self, most_bytes: int) -> None:
        self._messages: list[Message] = []
        self._room = most_bytes

    def append(self, message: Message) -> None:
        """Keep a message; beyond the limit, forget them all."""
        self._room -= len(message.get("body", b""))
        if self._room >= 0:
            self._messages.append(message)
        else:
            self._messages.clear()

    def read(self) -> bytes | None:
        """Return the bytes, None if there were too many."""
        return None if self._room < 0 else _joined(self._messages)


class StreamedBody:
    """What is kept of a body in several messages. `append` is an attribute: every chunk goes through it."""

    __slots__ = ("_kept", "_most_bytes", "append")

    def __init__(self, content: str, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: ShortBody | deque[Message]
        if content == JSON:
            self._kept = ShortBody(most_bytes)
        else:
            self._kept = deque(maxlen=_TAIL_MESSAGES if content == EVENTS and most_bytes else 0)
        self.append = self._kept.append

    def read(self) -> tuple[bytes | None, bool]:
        """Return the bytes, None if there were too many, and whether they are the whole body."""
        if isinstance(self._kept, ShortBody):
            return self._kept.read(), True
        tail = _joined(self._kept)
        is_whole = len(self._kept) < _TAIL_MESSAGES and len(tail) <= self._most_bytes
        return tail[-self._most_bytes :], is_whole


_READABLE_ENCODINGS = frozenset({b"", b"identity"})


def _parsed_content_of(content_type: bytes) -> str:
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"text/event-stream":
        return EVENTS
    is_json = media_type == b"application/json" or media_type.endswith(b"+json")
    return JSON if is_json else OTHER


def _joined(messages: Iterable[Message]) -> bytes:
    return b"".join([message.get("body", b"") for message in messages])
