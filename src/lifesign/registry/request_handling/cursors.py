"""Cursors of paged lists.

A cursor is the position of the last item of a page, encoded so that clients do not compute with it.
"""

import base64
import binascii
import json
from typing import Annotated, Any

from pydantic import Field

from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest

MAX_CURSOR_CHARACTERS = 512
MAX_ID_CHARACTERS = 64

Cursor = Annotated[str, Field(max_length=MAX_CURSOR_CHARACTERS)]


def cursor_at(listed: str, *place: int | str) -> str:
    """Return the cursor after a position. It is valid only for the list and order that `listed` names."""
    return base64.urlsafe_b64encode(json.dumps([listed, *place]).encode()).decode().rstrip("=")


def numbers_in(cursor: str, listed: str, how_many: int) -> list[int]:
    """Return the numbers in a cursor of this list, 0 to 2^63 - 1; InvalidRequest for any other text."""
    return _numbers(_decode(cursor, listed), how_many)


def text_in(cursor: str, listed: str, most_characters: int = MAX_ID_CHARACTERS) -> str:
    """Return the id in a cursor of this list; InvalidRequest for any other text."""
    return _text(_decode(cursor, listed), most_characters)


def numbers_and_text_in(
    cursor: str, listed: str, how_many: int, most_characters: int
) -> tuple[list[int], str]:
    """Return the numbers and the text after them in a cursor of this list.

    Raises InvalidRequest for any other text.
    """
    place = _decode(cursor, listed)
    return _numbers(place[:how_many], how_many), _text(place[how_many:], most_characters)


def _numbers(place: list[Any], how_many: int) -> list[int]:
    if len(place) != how_many or not all(type(part) is int and 0 <= part < 2**63 for part in place):
        raise _refused()
    return place


def _text(place: list[Any], most_characters: int) -> str:
    text = place[0] if len(place) == 1 else None
    if not isinstance(text, str) or not 0 < len(text) <= most_characters:
        raise _refused()
    if not (text.isascii() and text.isprintable()):
        raise _refused()
    return text


def _decode(cursor: str, listed: str) -> list[Any]:
    try:
        read: Any = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        read = None
    if not isinstance(read, list) or not read or read[0] != listed:
        raise _refused()
    return read[1:]


def _refused() -> InvalidRequest:
    expected = "expected the cursor of an earlier page of the same query"
    return InvalidRequest([Finding("invalid_cursor", "/cursor", expected)])
