"""Bounds of depth and size for JSON objects with members that the sender chooses.

For pydantic's validators: a refusal is a PydanticCustomError, which shows nothing of the value.
"""

import re
from collections.abc import Iterator
from json import JSONDecoder
from sys import float_info
from typing import Any, Final

from pydantic_core import PydanticCustomError, PydanticSerializationError, from_json, to_json

from lifesign.domain.parsing.bounded_json import outside_strings, without_escapes

MAX_NUMBER: Final = float_info.max
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_LONG_INTEGER: Final = re.compile(rb"(?<![0-9])[0-9]{%d,}" % len(str(int(MAX_NUMBER))))
"""No double is written with this many digits."""


def check_json_depth(value: dict[str, Any], most_levels: int) -> dict[str, Any]:
    """Return an object unchanged; ValueError if it is nested too deep or has invalid numbers.

    JSON has neither NaN nor an infinity, but Python's parsers create them from `NaN` and `1e999`, and YAML
    has them. An integer beyond the doubles would be passed on, and become an infinity or an error for its
    reader.
    """
    level: list[Any] = [value]
    for _ in range(most_levels):
        inside = [inner for outer in level for inner in _inside(outer)]
        if not all(_is_number_to_all(inner) for inner in inside if isinstance(inner, float | int)):
            expected = "expected finite numbers, of at most 1.8e308: most readers of JSON have no other"
            raise PydanticCustomError("not_finite", expected)
        if any(isinstance(inner, Iterator) for inner in inside):
            expected = "expected a list instead of an iterator or a generator, which can be read only once"
            raise PydanticCustomError("iterator", expected)
        level = [inner for inner in inside if isinstance(inner, _CONTAINERS)]
        if not level:
            return value
    raise PydanticCustomError("too_deep", "expected at most {most} levels of nesting", {"most": most_levels})


def check_json_size(value: dict[str, Any], most_levels: int, most_bytes: int) -> dict[str, Any]:
    """Return an object as JSON has it; ValueError if it is nested too deep, or too large as JSON.

    A caller's tuples, sets and models become lists and objects: these are checked, and no others are sent.
    """
    check_json_depth(value, most_levels)
    try:
        written = to_json(value, inf_nan_mode="constants")
    except PydanticSerializationError:
        raise PydanticCustomError(
            "not_json", "expected values of JSON, and text in UTF-8 without half of a surrogate pair"
        ) from None
    if len(written) > most_bytes:
        raise PydanticCustomError("too_large", "expected at most {most} bytes", {"most": most_bytes})
    return check_json_depth(from_json(written), most_levels)


def _inside(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else [*value]


def _is_number_to_all(number: float) -> bool:
    """Return whether a value is a double, or an integer in their range; NaN is not."""
    return -MAX_NUMBER <= number <= MAX_NUMBER


def is_finite(value: Any) -> bool:
    """Return whether all numbers in a value are ones that every JSON parser accepts.

    For most parsers, an integer beyond the doubles is an infinity, or an error. The check uses the JSON
    encoder, which takes a fifth of the time of a loop in Python: the sender chooses the size of the value.
    """
    written = to_json(value, inf_nan_mode="constants")
    if written != to_json(value, inf_nan_mode="null"):
        return False
    if not _LONG_INTEGER.search(written):
        return True
    numbers = outside_strings(without_escapes(written))
    return all(int(digits) <= MAX_NUMBER for digits in _LONG_INTEGER.findall(numbers))


def has_infinity(value: Any) -> bool:
    """Return whether a value contains a number that JSON cannot express, such as infinity."""
    return to_json(value, inf_nan_mode="constants") != to_json(value, inf_nan_mode="null")


def is_plain(value: Any) -> bool:
    """Return whether a parsed JSON value can be encoded as JSON again.

    NaN cannot, nor half a surrogate pair, nor values that are nested too deep for the encoder.
    """
    try:
        return is_finite(value)
    except ValueError:
        return False


def repeated_member(body: bytes) -> tuple[str | int, ...] | None:
    """Return the path of a member that occurs twice in one object; None if there is none.

    Parsers differ in which value they take. `body` is valid JSON of bounded depth.
    """
    if b"\\" not in body:
        strings = body.split(b'"')[1::2]
        if len(set(strings)) == len(strings):
            # Nor does a name occur twice. This is so for most requests, and takes a third of the time.
            return None
    text = body.decode()
    try:
        _read_without_repetition(text)
    except _Repeated:
        return _place_of_repeated(_read_all_members(text), [])
    return None


class _Repeated(Exception):
    """Ends the decoder; never leaves this module."""


class _ObjectMembers(list[tuple[str, Any]]):
    """All members of one object."""


def _refuse_repeated(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        raise _Repeated


# Numbers stay text: Python refuses long ones, and needs long to read them.
_read_without_repetition = JSONDecoder(
    object_pairs_hook=_refuse_repeated, parse_int=str, parse_float=str
).decode
_read_all_members = JSONDecoder(object_pairs_hook=_ObjectMembers, parse_int=str, parse_float=str).decode


def _place_of_repeated(value: list[Any], place: list[str | int]) -> tuple[str | int, ...] | None:
    known: set[str | int] = set()
    for name, inner in value if isinstance(value, _ObjectMembers) else enumerate(value):
        if name in known:
            return (*place, name)
        known.add(name)
        if isinstance(inner, list):
            place.append(name)
            if (found := _place_of_repeated(inner, place)) is not None:
                return found
            place.pop()
    return None
