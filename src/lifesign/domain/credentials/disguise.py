"""Disguised secrets: finding a text in bytes in which any of its characters may be escaped.

Bytes are decoded, with a map from decoded places to the places that they came from, and searched. This takes
linear time. A pattern that allows two spellings of each character would not: a server that sent back most of
a long secret, again and again, would keep the prober busy for minutes.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Final

MAX_LEVELS: Final = 3
"""Maximum number of nested escapes, such as JSON in a JSON string in a URL."""
MIN_FOUND_BYTES: Final = 6
"""A shorter text, which is left of a secret that looks like escapes itself, would be found everywhere."""

_SPACE: Final = b" \t\r\n"
_ESCAPES: Final = rb"%[0-9A-Fa-f]{2}|\\u00[0-9A-Fa-f]{2}|\\x[0-9A-Fa-f]{2}|\\[^ux]"
_ESCAPE: Final = re.compile(_ESCAPES, re.DOTALL)
# White space is dropped: base64 and hexadecimal digits may be wrapped.
_ESCAPE_OR_SPACE: Final = re.compile(_ESCAPES + rb"|[ \t\r\n]+", re.DOTALL)
_DROPPED: Final = frozenset({b"\\n", b"\\r", b"\\t"})

Span = tuple[int, int]


def needles_of(forms: Iterable[bytes]) -> frozenset[bytes]:
    """Return the texts to search for in decoded bytes, from the plain forms of a secret.

    A secret may itself look escaped: it is then decoded together with its context.
    """
    found: set[bytes] = set()
    for form in forms:
        decoded = form
        for _ in range(MAX_LEVELS + 1):
            found.add(decoded.translate(None, _SPACE))
            decoded = _decoded(decoded)
    return frozenset(needle for needle in found if len(needle) >= MIN_FOUND_BYTES)


def find_disguised(data: bytes, needles: Collection[bytes], digits: Collection[bytes]) -> list[Span]:
    """Return the spans of bytes that decode to one of the needles, or in any case to one of the digits.

    Sorted, and without overlaps. Empty for bytes in which nothing is found.
    """
    if not _is_disguised(data, needles, digits):
        return []
    levels: list[_Decoded] = []
    spans: list[Span] = []
    for _ in range(MAX_LEVELS):
        decoded = _Decoded(levels[-1].data if levels else data)
        if levels and decoded.data == levels[-1].data:
            break
        levels.append(decoded)
        for found in chain(_occurrences(decoded.data, needles), _occurrences(decoded.data.lower(), digits)):
            span = found
            for level in reversed(levels):
                span = level.origin(span)
            spans.append(span)
    return _merged(spans)


def _is_disguised(data: bytes, needles: Collection[bytes], digits: Collection[bytes]) -> bool:
    """Return whether there is anything to decode. Most answers contain nothing, and this test is fast."""
    for _ in range(MAX_LEVELS):
        decoded = _decoded(data)
        # A generator would take twice the time, and each probe calls this function several times.
        if any(map(decoded.__contains__, needles)) or any(map(decoded.lower().__contains__, digits)):
            return True
        if decoded == data:
            return False
        data = decoded
    return False


def _decoded(given: bytes) -> bytes:
    """Return bytes of which one level of escapes is decoded."""
    if b"%" in given or b"\\" in given:
        given = _ESCAPE.sub(lambda match: _value(match.group()), given)
    return given.translate(None, _SPACE)


class _Decoded:
    """Bytes with one level of escapes decoded, and the origin of each byte."""

    def __init__(self, given: bytes) -> None:
        parts: list[bytes] = []
        self._places = [0]
        """Places in `data`, rising, at each of which a literal part or an escape begins or ends."""
        self._origins = [0]
        """The same places in the bytes that were given."""
        place = origin = 0
        for match in _ESCAPE_OR_SPACE.finditer(given):
            literal, value = given[origin : match.start()], _value(match.group())
            parts += [literal, value]
            place += len(literal)
            self._note(place, match.start())
            place += len(value)
            origin = match.end()
            self._note(place, origin)
        parts.append(given[origin:])
        self.data = b"".join(parts)

    def _note(self, place: int, origin: int) -> None:
        self._places.append(place)
        self._origins.append(origin)

    def origin(self, span: Span) -> Span:
        """Return the position of a part of `data` in the original bytes."""
        begin, end = span
        last = bisect_right(self._places, begin) - 1
        first = bisect_left(self._places, end)
        if first == len(self._places) or self._places[first] != end:
            first -= 1
        return (
            self._origins[last] + begin - self._places[last],
            self._origins[first] + end - self._places[first],
        )


def _value(escape: bytes) -> bytes:
    """Return the decoded value of an escape; nothing for white space."""
    if escape[:1] in _SPACE or escape in _DROPPED:
        return b""
    digits = escape[-2:]
    value = escape[1:] if len(escape) == 2 else bytes([int(digits, 16)])
    return b"" if value in _SPACE else value


def _occurrences(data: bytes, needles: Iterable[bytes]) -> Iterable[Span]:
    for needle in needles:
        begin = data.find(needle)
        while begin >= 0:
            yield begin, begin + len(needle)
            begin = data.find(needle, begin + len(needle))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged
