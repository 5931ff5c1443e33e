"""JSON of peers, parsed with bounds of time: size, brackets and digits, and what is invalid."""

import json
import re
from typing import Any, Final

from pydantic_core import from_json

MAX_MARKS: Final = 20_000
"""Maximum number of `{`, `[` and `,` in a body: each can cost as much as 500 bytes of text."""
MAX_MARKS_AGAIN: Final = 6_000
"""Maximum number of these in a body that the fast parser did not take, and that is parsed again."""
MAX_INTEGER_DIGITS: Final = 20
"""A longer integer is read as null: converting it takes time that grows with the square of its length."""

_NOT_COUNTED: Final = bytes(set(range(256)) - set(b'{[,"'))

# Refusals of the fast parser in which Python's parser agrees. A new wording costs a second reading.
_REFUSED_BY_ALL = re.compile(
    "EOF while|expected|invalid (?:number|escape)|key must be|trailing|control character"
)
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


class NotJson(ValueError):
    """The bytes are not JSON."""


class TooComplex(ValueError):
    """The bytes may be JSON, but would take too long to parse: too many brackets, or nested too deep."""


def parse_or_none(body: bytes) -> object:
    """Return the JSON value of a body; None if it is not JSON, or too complex."""
    try:
        return parse_bounded(body)
    except (NotJson, TooComplex):
        return None


def parse_bounded(body: bytes) -> Any:
    """Return the JSON value of `body`. Raises NotJson, or TooComplex if reading would take too long.

    An integer of more than 20 digits may be read as null.
    """
    if len(body) > MAX_MARKS and marks_of(body) > MAX_MARKS:
        raise TooComplex(f"more than {MAX_MARKS} of {{, [ and ,")
    try:
        return parse_fast(body)
    except ValueError as error:
        return parse_again(body, error)


def parse_fast(body: bytes) -> Any:
    """Parse a JSON body with the fast parser. ValueError, even for some valid JSON (see `parse_again`)."""
    # Two to three times as fast as json.loads. The cache of names costs more than it saves where there may be
    # many.
    return from_json(body, allow_inf_nan=False, cache_strings="keys" if len(body) <= MAX_MARKS else "none")


def parse_again(body: bytes, refusal: ValueError, max_marks: int = MAX_MARKS_AGAIN) -> Any:
    """Parse a body that the fast parser refused with Python's parser, which accepts deeper nesting.

    `refusal` is that of the fast parser. Where Python's would agree, it is not asked: it takes twice as long,
    and 5 µs to refuse even the shortest body. Raises NotJson; TooComplex also if the body has more than
    `max_marks` of `{`, `[` and `,`.
    """
    if is_certain(refusal, body):
        raise NotJson(str(refusal)) from refusal
    if len(body) > max_marks and marks_of(body) > max_marks:
        raise TooComplex(f"more than {max_marks} of {{, [ and , in what has to be parsed twice")
    try:
        return json.loads(body, parse_int=_short_integer, parse_float=str, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise TooComplex("nested too deeply") from error
    except ValueError as error:
        raise NotJson(str(error)) from error


def is_certain(refusal: ValueError, body: bytes) -> bool:
    """Return whether a body that the fast parser refused is certainly no JSON.

    The fast parser knows only UTF-8 without a byte order mark; other encodings begin with a zero byte.
    """
    if not _REFUSED_BY_ALL.match(str(refusal)):
        return False
    return 0 not in body[:4] and not body.startswith(_BYTE_ORDER_MARKS)


def marks_of(body: bytes) -> int:
    """Return how many `{`, `[` and `,` a body has. They limit the time to parse it."""
    return body.count(b"{") + body.count(b"[") + body.count(b",")


def has_more_marks(body: bytes, most: int) -> bool:
    """Return whether a JSON body has more than `most` brackets and commas outside of strings."""
    if len(body) <= most or marks_of(body) <= most:
        return False
    plain = without_escapes(body).translate(None, _NOT_COUNTED)
    # Each mark is followed by at most one name and one value. So many quotes need not be taken apart.
    return plain.count(b'"') > 4 * (most + 1) or marks_of(outside_strings(plain)) > most


def without_escapes(body: bytes) -> bytes:
    """Return a JSON text without its escaped quotes: each quote left begins or ends a string."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def outside_strings(plain: bytes) -> bytes:
    """Return a JSON text without the content of its strings; `plain` comes from `without_escapes`."""
    return b'"'.join(plain.split(b'"')[::2])


def _short_integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else None


def _refuse_constant(name: str) -> None:
    # Python writes NaN and Infinity, which no other parser accepts.
    raise ValueError(f"{name} is not JSON")
