"""Framing of server-sent events (WHATWG): where events begin and end, and their names and data."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

# A line ends with CR LF, LF or CR. A blank line is an end directly after another one.
BLANK_LINES: Final = (b"\n\n", b"\n\r", b"\r\r")

MESSAGE_NAMES: Final = frozenset({b"", b"message"})
"""Names of the events in which messages arrive: an event without a name is one of the name `message`."""


_EVENT_ID: Final = re.compile(rb"(?:\A|[\r\n])id: ?[^ \r\n]")


def has_event_id(events: bytes) -> bool:
    """Return whether any event has an `id`. From there, an MCP client can request the rest of a stream."""
    return _EVENT_ID.search(events) is not None


def named_events(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return (event name, data) of every complete event in a stream that has data."""
    return events_of(body.removeprefix(BYTE_ORDER_MARK).splitlines())


def end_of_last_event(before: bytes, piece: bytes) -> int:
    """Return the position in a piece behind its last blank line; 0 if there is none.

    `before` is the byte before the piece.
    """
    if piece.endswith((b"\n\n", b"\r\n\r\n")):
        return len(piece)
    found = max(piece.rfind(blank) for blank in BLANK_LINES)
    if found < 0:
        return 1 if before + piece[:1] in BLANK_LINES else 0
    # The LF of a CR LF belongs to it.
    return found + 2 + (piece[found + 1 : found + 3] == b"\r\n")


def end_of_first_event(piece: bytes) -> int:
    """Return the position behind the first event in a piece, which must contain a blank line."""
    found = len(piece)
    for blank in BLANK_LINES:
        # Only in front of the first one: a search of everything takes longer than all else.
        at = piece.find(blank, 0, found + 1)
        found = at if at >= 0 else found
    return found + 2 + (piece[found + 1 : found + 3] == b"\r\n")


def events_of(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (event name, data) of every complete event that has data (WHATWG server-sent events)."""
    name = b""
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                yield name, b"\n".join(data)
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
