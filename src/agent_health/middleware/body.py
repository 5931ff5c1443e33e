"""How much of a body is kept, and what does an answer say in it?

An answer is looked into only while it is short; of a stream, its last messages are kept, as they say
how it ended. What could not be seen whole is never judged by its fragments.
"""

from collections import deque
from collections.abc import Iterable, MutableMapping
from functools import lru_cache
from typing import Any

from agent_health.a2a_answer import TooDeep, outcome_of_json, outcome_of_stream
from agent_health.outcome import ANSWERED, Outcome

Message = MutableMapping[str, Any]

_TAIL_MESSAGES = 16
"""So many last messages of a stream are kept; SDKs send one for each event."""


# What an answer claims to be. Plain text, as looking up a member of an Enum takes 75 ns.
JSON = "json"
EVENTS = "events"
OTHER = "other"


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


class AnswerBody:
    """The body of one answer, as far as it is kept."""

    __slots__ = ("_kept", "_most_bytes", "_start", "append", "content")

    def __init__(self, start: Message, most_bytes: int) -> None:
        self.content = _content_of(header(start, b"content-type"))
        self._start = start
        self._most_bytes = most_bytes
        self._kept: deque[Message] | ShortBody
        if self.content == JSON:
            self._kept = ShortBody(most_bytes)
        else:
            self._kept = deque(maxlen=_TAIL_MESSAGES if self.content == EVENTS and most_bytes else 0)
        self.append = self._kept.append
        """Keep a message of the body. An attribute: it is called for every chunk of a stream."""

    def outcome(self) -> Outcome:
        """Judge a whole 2xx answer by what it says. Raises NotJson where it is not what it claims."""
        if not self._most_bytes or self.content == OTHER:
            return ANSWERED
        if header(self._start, b"content-encoding") not in _READABLE_ENCODINGS:
            return Outcome.UNINSPECTED
        try:
            return self._outcome_of_kept()
        except TooDeep:
            return Outcome.UNINSPECTED

    def _outcome_of_kept(self) -> Outcome:
        if isinstance(self._kept, ShortBody):
            body = self._kept.read()
            if body is None:
                return Outcome.UNINSPECTED
            # 202 and 204 have no body by right.
            return outcome_of_json(body) if body or self._start["status"] == 200 else ANSWERED
        tail = _joined(self._kept)
        is_whole = len(self._kept) < _TAIL_MESSAGES and len(tail) <= self._most_bytes
        return outcome_of_stream(tail[-self._most_bytes :], is_whole=is_whole)


_READABLE_ENCODINGS = frozenset({b"", b"identity"})
# As frameworks spell them.
_PLAIN_CONTENT_TYPES = frozenset({b"text/html; charset=utf-8", b"text/plain; charset=utf-8"})


def is_plain(start: Message) -> bool:
    """Whether an answer is surely nothing to look into: text, HTML or of no type."""
    content_type = header(start, b"content-type")
    return not content_type or content_type in _PLAIN_CONTENT_TYPES


def header(start: Message, wanted: bytes) -> bytes:
    """Return a header of an answer, empty if it is absent."""
    for name, value in start.get("headers", ()):
        if name == wanted:
            return value  # type: ignore[no-any-return]
    return b""


@lru_cache(maxsize=64)
def _content_of(content_type: bytes) -> str:
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"text/event-stream":
        return EVENTS
    is_json = media_type == b"application/json" or media_type.endswith(b"+json")
    return JSON if is_json else OTHER


def _joined(messages: Iterable[Message]) -> bytes:
    return b"".join([message.get("body", b"") for message in messages])
