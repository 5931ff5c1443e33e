"""JSON of peers, parsed with bounds of time: size, brackets and digits, and what is invalid."""

import json
from typing import Any, Final

from pydantic_core import from_json

MAX_MARKS: Final = 20_000
"""Maximum number of `{`, `[` and `,` in a body: each can cost as much as 500 bytes of text."""
_MAX_INTEGER_DIGITS = 20
"""A longer integer is read as null: converting it takes time that grows with the square of its length."""


class NotJson(ValueError):
    """The bytes are not JSON."""


class TooComplex(ValueError):
    """The bytes may be JSON, but have too many brackets or are nested too deeply to be read."""


def parse_or_none(body: bytes) -> object:
    """Return the JSON value of `body`, or None if it is not readable JSON."""
    try:
        return _parse(body)
    except (NotJson, TooComplex):
        return None


def parse_bounded(body: bytes) -> Any:
    """Return the JSON value of `body`. Raises NotJson, or TooComplex if reading would take too long.

    An integer of more than 20 digits may be read as null.
    """
    if len(body) > MAX_MARKS:
        if body.count(b"{") + body.count(b"[") + body.count(b",") > MAX_MARKS:
            raise TooComplex(f"more than {MAX_MARKS} of {{, [ and ,")
        return _parse(body)
    try:
        return parse_short(body)
    except ValueError:
        return parse_again(body)


def _parse(body: bytes) -> Any:
    try:
        # The cache of names costs more than it saves where there may be many.
        return from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError:
        return parse_again(body)


def parse_short(body: bytes) -> Any:
    """Return the JSON value of at most MAX_MARKS bytes. Raises ValueError for what `parse_again` may take."""
    # Two to three times as fast as json.loads.
    return from_json(body, allow_inf_nan=False, cache_strings="keys")


def parse_again(body: bytes) -> Any:
    """Parse with Python's own parser, which decides what is JSON and accepts deeper nesting.

    Takes 5 µs to refuse even the shortest body. Raises NotJson or TooComplex.
    """
    try:
        return json.loads(body, parse_int=_short_integer, parse_float=str, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise TooComplex("nested too deeply") from error
    except ValueError as error:
        raise NotJson(str(error)) from error


def _short_integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else None


def _refuse_constant(name: str) -> None:
    # Python writes NaN and Infinity, which no other parser accepts.
    raise ValueError(f"{name} is not JSON")
