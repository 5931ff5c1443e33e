"""Streams of server-sent events, parsed from pieces of bytes (HTML Standard, 9.2.6)."""

import re
from dataclasses import dataclass

from lifesign.client.registry_errors import InvalidAnswer

MAX_LINE_BYTES = 1_048_576
"""Maximum of one line: the registry's largest event has about half of that."""
MAX_MESSAGE_BYTES = 2_097_152
"""Maximum of all lines between two empty ones, including comments and empty `data:` lines."""
MAX_ID_CHARS = 64

_LINE_END = re.compile(rb"\r\n?|\n")
_BYTE_ORDER_MARK = "\ufeff".encode()


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an event stream: what lies between two empty lines."""

    data: str
    """Values of the `data:` lines, joined by line breaks; empty for a keep-alive comment."""
    last_id: str
    """The last `id:` so far, of this message or an earlier one; empty if there was none."""


class EventStreamParser:
    """Parser of an event stream (SSE), which may arrive in pieces of any size."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        """Time to wait before reconnecting, if the stream has set it."""
        self.lines = 0
        """Number of complete lines so far, including comments and empty lines."""
        self._rest = bytearray()
        self._data: list[str] = []
        self._message_bytes = 0
        """Size of the lines since the last empty one, with one byte for the end of each."""
        self._last_id = ""
        self._is_first_line = True
        self._ended_with_cr = False

    def feed(self, piece: bytes) -> list[Message]:
        """Return the messages that this piece completes; InvalidAnswer if one is too large.

        Unlike the standard, a message without data is returned too: it may carry an id. Empty lines in a row
        are one.
        """
        if not piece:
            return []
        is_second_half = self._ended_with_cr and piece.startswith(b"\n")
        self._ended_with_cr = piece.endswith(b"\r")
        searched = len(self._rest)
        self._rest += piece[1:] if is_second_half else piece
        messages: list[Message] = []
        begin = 0
        for end in _LINE_END.finditer(self._rest, searched):
            self._check(end.start() - begin, MAX_LINE_BYTES)
            message = self._take(bytes(self._rest[begin : end.start()]))
            if message is not None:
                messages.append(message)
            begin = end.end()
        del self._rest[:begin]
        self._check(len(self._rest), MAX_LINE_BYTES)
        return messages

    def _take(self, raw: bytes) -> Message | None:
        self.lines += 1
        if self._is_first_line:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
            self._is_first_line = False
        if not raw:
            message = Message("\n".join(self._data), self._last_id) if self._message_bytes else None
            self._data, self._message_bytes = [], 0
            return message
        self._message_bytes += len(raw) + 1
        self._check(self._message_bytes, MAX_MESSAGE_BYTES)
        name, _, value = raw.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._last_id = value[:MAX_ID_CHARS]
        elif name == "retry" and value.isascii() and value.isdecimal():
            self.retry_ms = int(value[:9])
        return None

    def _check(self, size: int, most: int) -> None:
        if size > most:
            raise InvalidAnswer(f"the stream has a line or a message of more than {most} bytes")
