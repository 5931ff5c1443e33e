"""Messages for validation errors of pydantic: the expected value at each place."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from math import isnan
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lifesign.domain.health.document import MAX_NUMBER
from lifesign.domain.models.base import (
    AGENT_ID_PATTERN,
    CAPABILITY_PATTERN,
    NAME_PATTERN,
    PART_OF_NAME_PATTERN,
    URL_PATTERN,
)
from lifesign.domain.text.counts import plural
from lifesign.errors import InvalidValue

MAX_SHOWN_CHARACTERS = 80
"""Maximum length of a given value in a message."""
MAX_CHOICES = 24
"""Maximum number of allowed values that a message lists; of a longer list it names the nearest ones."""
MAX_NEAREST_CHOICES = 3

FORMS: Mapping[str, str] = MappingProxyType({
    AGENT_ID_PATTERN: "1 to 128 letters, digits and . _ ~ : -",
    NAME_PATTERN: "text without control characters",
    PART_OF_NAME_PATTERN: "text without control characters",
    CAPABILITY_PATTERN: "1 to 128 characters without spaces and commas",
    URL_PATTERN: "an http or https URL",
})  # fmt: skip
"""Descriptions of the patterns of agent records."""
_CHOICE = re.compile("'([^']*)'")
# By pydantic's error type; in braces, members of its context.
_WORDS = {
    "missing": "a value",
    "extra_forbidden": "no member of this name",
    "enum": "one of {expected}",
    "literal_error": "one of {expected}",
    "string_too_short": "at least {min_length} {characters}",
    "string_too_long": "at most {max_length} {characters}",
    "too_short": "at least {min_length} {items}",
    "too_long": "at most {max_length} {items}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
}

NUMBER_FAULTS = frozenset({
    "greater_than_equal", "less_than_equal", "greater_than", "less_than", "int_parsing", "float_parsing",
})  # fmt: skip
"""Pydantic's error types for members that take a number."""


def invalid_setting(
    error: ValidationError,
    name: str,
    forms: Mapping[str, str] = FORMS,
    *,
    model: type[BaseModel] | None = None,
) -> InvalidValue:
    """Return the first fault as InvalidValue. `name` stands for the whole, where no single member is wrong.

    `forms` describes patterns in words; `model` has the allowed members.
    """
    details = error.errors(include_url=False)[0]
    member = ".".join(map(str, details["loc"])) or name
    given = details["input"]
    shown = given[:MAX_SHOWN_CHARACTERS] if isinstance(given, str) else given
    is_plain = isinstance(given, str | int | float) and details["type"] != "missing"
    expected = expectation(details, forms)
    if model is not None and details["type"] == "extra_forbidden" and len(details["loc"]) == 1:
        names = [field.alias or member for member, field in model.model_fields.items()]
        expected += f", but any of {', '.join(names)}" if names else ", nor any other"
    return InvalidValue(member, shown if is_plain else None, expected)


def expectation(details: ErrorDetails, forms: Mapping[str, str] = FORMS) -> str:
    """Return what a validation error expected, in words. `forms` describes patterns in words."""
    words = known_expectation(details, forms)
    return f"what the rules allow ({details['msg']})" if words is None else words


def _nearest_choices(given: object, choices: list[str]) -> str:
    """Describe a long list of allowed values by those that are nearest to the given one."""
    text = given[:MAX_SHOWN_CHARACTERS] if isinstance(given, str) else ""
    nearest = get_close_matches(text, choices, MAX_NEAREST_CHOICES)
    names = f"the nearest: {', '.join(nearest)}" if nearest else f"for example {choices[0]}"
    return f"one of the {len(choices)} values in openapi.json, {names}"


def _number(bound: float) -> str:
    """Write a bound: a whole number with all its digits."""
    return f"{int(bound)}" if abs(bound) <= MAX_NUMBER and bound % 1 == 0 else f"{bound:.15g}"


def known_expectation(details: ErrorDetails, forms: Mapping[str, str] = FORMS) -> str | None:
    """Return what a validation error expected; None if its message is already one of lifesign's own."""
    context: dict[str, Any] = details.get("ctx", {})
    given = details.get("input")
    if isinstance(given, float) and isnan(given):
        return "a number"
    if details["type"] == "string_pattern_mismatch":
        return forms.get(context["pattern"], f"text of the form {context['pattern']}")
    if details["type"] == "enum" and len(choices := _CHOICE.findall(context["expected"])) > MAX_CHOICES:
        return _nearest_choices(given, choices)
    if details["type"] in _WORDS:
        bound = context.get("min_length", context.get("max_length", 0))
        nouns = {"characters": plural(bound, "character"), "items": plural(bound, "item")}
        bounds: dict[str, Any] = {
            name: _number(context[name]) for name in ("ge", "le", "gt") if name in context
        }
        return _WORDS[details["type"]].format_map({**context, **bounds, **nouns})
    message = details["msg"]
    for beginning in ("expected ", "Input should be "):
        if message.startswith(beginning):
            return message.removeprefix(beginning)
    return None
