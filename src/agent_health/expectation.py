"""What was expected where pydantic found something else, in words for whoever gave it?"""

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agent_health.agent_record import AGENT_ID_PATTERN, CAPABILITY_PATTERN, NAME_PATTERN, URL_PATTERN
from agent_health.errors import InvalidSetting

MAX_SHOWN_CHARACTERS = 80
"""Of what was given."""

_FORMS = {
    AGENT_ID_PATTERN: "1 to 128 letters, digits and . _ ~ : -",
    NAME_PATTERN: "text without control characters",
    CAPABILITY_PATTERN: "1 to 128 characters without spaces and commas",
    URL_PATTERN: "an http or https URL",
}
# By pydantic's name of what is wrong; in braces, what it says of it.
_WORDS = {
    "missing": "a value",
    "extra_forbidden": "no member of this name",
    "enum": "one of {expected}",
    "literal_error": "one of {expected}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "greater_than": "more than {gt:g}",
}


def invalid_setting(error: ValidationError, name: str) -> InvalidSetting:
    """Return what is wrong first; `name` is that of the whole, for what is no single member's fault."""
    details = error.errors(include_url=False)[0]
    member = ".".join(map(str, details["loc"])) or name
    given = details["input"]
    shown = given[:MAX_SHOWN_CHARACTERS] if isinstance(given, str) else given
    is_plain = isinstance(given, str | int | float) and details["type"] != "missing"
    return InvalidSetting(member, shown if is_plain else None, expectation(details))


def expectation(details: ErrorDetails) -> str:
    """Return what was expected, without the word itself."""
    context: dict[str, Any] = details.get("ctx", {})
    if details["type"] == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], f"text of the form {context['pattern']}")
    if details["type"] in _WORDS:
        return _WORDS[details["type"]].format_map(context)
    message = details["msg"]
    for beginning in ("expected ", "Input should be "):
        if message.startswith(beginning):
            return message.removeprefix(beginning)
    return f"what the rules allow ({message})"
