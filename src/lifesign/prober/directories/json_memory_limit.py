"""Parser for JSON with a bound on the memory of the result.

Eight bytes of JSON become an object of 184 bytes, and one wide character makes each character of a text take
four bytes. The memory is estimated before the document is parsed, so that directories cannot exhaust it.
"""

import json
import re
import sys
from typing import Any, Final

MAX_JSON_BYTES: Final = 64 * 1024 * 1024
MAX_PARSED_BYTES: Final = 512 * 1024 * 1024
"""Maximum estimated size of a document in memory: 800,000 objects with URL and name, or 3,000,000 URLs."""

MAX_DEPTH: Final = 100
"""Levels that are kept of a document which the parser would refuse; directories need about 10."""

_LEADING_BYTES: Final = 4096
"""Maximum of leading bytes: a byte order mark and white space."""
# Maximum sizes in CPython: an object with one member, a short text, and a number with its place in a list.
_CONTAINER_BYTES: Final = 192
_TEXT_BYTES: Final = 56
_VALUE_BYTES: Final = 32
_WIDE_BYTES: Final = 4
"""Bytes per character of a text in which one character needs more than one byte."""
_MARK: Final = re.compile(r'["\[\]{}]')


def read_json(body: bytes) -> tuple[Any, str]:
    """Return a JSON object or list and an empty text; or None and the reason why it cannot be read.

    A byte order mark is passed over. If values are too deep or numbers too long for the parser, they become
    null: one entry of a directory may contain them, and the others are read.
    """
    if body[:_LEADING_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in {b"{", b"["}:
        return None, "neither a JSON object nor a JSON list"
    if len(body) > MAX_JSON_BYTES:
        return None, f"more JSON than is read: {len(body)} bytes, {MAX_JSON_BYTES} at most"
    if (parsed_bytes := _parsed_bytes(body)) > MAX_PARSED_BYTES:
        takes = f"about {parsed_bytes} bytes of memory, {MAX_PARSED_BYTES} at most"
        return None, f"more JSON than is read: {len(body)} bytes that take {takes}"
    try:
        return _parse(body.decode("utf-8-sig")), ""
    except UnicodeDecodeError as error:
        fault = f"not UTF-8 from byte {error.start} on"
    except json.JSONDecodeError as error:
        fault = f"not JSON: {error}"
    return None, fault


def _parse(text: str) -> Any:
    """Return the value of a JSON text. Raises JSONDecodeError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError):
        return json.loads(_without_deep_values(text), parse_int=_int_or_none)


def _int_or_none(digits: str) -> int | None:
    return int(digits) if len(digits) <= sys.get_int_max_str_digits() else None


def _without_deep_values(text: str) -> str:
    """Return a JSON text with null in place of the objects and lists below MAX_DEPTH levels."""
    kept: list[str] = []
    depth = kept_until = position = 0
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark[0] == '"':
            position = _end_of_text(text, position)
        elif mark[0] in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += (text[kept_until : mark.start()], "null")
        else:
            if depth == MAX_DEPTH + 1:
                kept_until = position
            depth -= 1
    if depth <= MAX_DEPTH:
        kept.append(text[kept_until:])
    return "".join(kept)


def _end_of_text(text: str, position: int) -> int:
    """Return the position after the quotation mark that ends the JSON text in which `position` is."""
    while (end := text.find('"', position)) >= 0:
        before = text[position:end]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return end + 1
        position = end + 1
    return len(text)


def _parsed_bytes(body: bytes) -> int:
    """Estimate the memory of a document during parsing: the whole text, and all values."""
    # Marks within texts are counted too: it is a bound, not a census.
    containers = body.count(b"{") + body.count(b"[")
    texts = body.count(b'"') // 2
    is_ascii = body.isascii()
    whole = len(body) * (1 if is_ascii else _WIDE_BYTES)
    # An escaped character is wide once it is parsed.
    parsed = len(body) * (1 if is_ascii and b"\\u" not in body else _WIDE_BYTES)
    values = body.count(b",") * _VALUE_BYTES
    return whole + parsed + containers * _CONTAINER_BYTES + texts * _TEXT_BYTES + values
