"""Assertions of a target in a probe definition."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Final, Self

import re2
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.observation.assertion import MAX_POINTER_CHARS, Assertion, Check, Pattern
from lifesign.domain.parsing.bounded_json import MAX_INTEGER_DIGITS
from lifesign.prober.definition.layer_settings import DefinitionMapping
from lifesign.prober.definition.values import FORMS, HEALTH_PATH_PATTERN, POINTER_PATTERN, check_path

MAX_PATTERN_CHARS: Final = 1000
MAX_EXPECTED_CHARS: Final = 1000
MAX_PATTERN_MEMORY: Final = 1 << 20
"""Maximum memory of a compiled pattern, in bytes."""
MAX_LATENCY_MS: Final = 600_000
LAYERS: Final = ("transport", "card", "health", "message", "tool")

_DURATION: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s)")
_OF_VALUES: Final = (Check.EQUALS, Check.CONTAINS, Check.GLOB, Check.MATCHES)


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Pattern:
    """Compile a pattern that is matched in linear time (RE2). Raises re2.error."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_MEMORY
    found: Pattern = re2.compile(pattern, options)
    return found


def glob_pattern(glob: str) -> str:
    """Return the regular expression of a glob: `*` is any text, `?` is one character."""
    parts = ("(?s:.*)" if char == "*" else "(?s:.)" if char == "?" else re2.escape(char) for char in glob)
    return rf"\A{''.join(parts)}\z"


def _check_pattern(value: str) -> str:
    try:
        compiled(value)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise PydanticCustomError("pattern", "expected an RE2 expression ({why})", {"why": text}) from None
    return value


def _check_subject(value: str) -> str:
    if value in LAYERS:
        return value
    if not re.fullmatch(HEALTH_PATH_PATTERN, value):
        raise PydanticCustomError(
            "assertion_of",
            "expected {layers} or {path}",
            {"layers": ", ".join(LAYERS), "path": FORMS[HEALTH_PATH_PATTERN]},
        )
    return check_path(value)


def _parse_latency(value: Any) -> Any:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise PydanticCustomError("latency", "expected a duration in ms or s, such as 800ms or 1.5s")
    return float(found[1]) * (1000 if found[2] == "s" else 1)


_Of = Annotated[str, Field(max_length=512), AfterValidator(_check_subject)]
_Text = Annotated[str, Field(min_length=1, max_length=MAX_EXPECTED_CHARS)]
_RegularExpression = Annotated[
    str, Field(min_length=1, max_length=MAX_PATTERN_CHARS), AfterValidator(_check_pattern)
]
_Latency = Annotated[
    float,
    Field(gt=0, le=MAX_LATENCY_MS),
    BeforeValidator(_parse_latency, json_schema_input_type=str),
]
_Scalar = (
    Annotated[str, Field(max_length=MAX_EXPECTED_CHARS)]
    | Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(strict=True, gt=-(10**MAX_INTEGER_DIGITS), lt=10**MAX_INTEGER_DIGITS)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
)


class AssertionSettings(DefinitionMapping):
    """What a definition expects of one answer of a target. Each expectation has its own result."""

    of: _Of
    """The answer: transport, card, health, message, tool, or a path on the target's own origin."""
    status: Annotated[int, Field(strict=True, ge=100, le=599)] | None = None
    """The HTTP status."""
    pointer: Annotated[str, Field(max_length=MAX_POINTER_CHARS, pattern=POINTER_PATTERN)] | None = None
    """JSON pointer to a value of the body; of a JSON-RPC answer, to a value of its `result`.

    Of a tool, to a value of its `structuredContent`, else of its `content`.

    With one of equals, contains, glob and matches.
    """
    equals: _Scalar | None = None
    """The value itself: a text, a number, true or false."""
    contains: _Scalar | None = None
    """A part of the text, or an item of the list."""
    glob: _Text | None = None
    """The whole value; `*` stands for any text, `?` for one character."""
    matches: _RegularExpression | None = None
    """A regular expression (RE2) that matches anywhere in the value."""
    text_contains: _Text | None = None
    """A part of the body; of a message or a tool, of its text parts joined by newlines."""
    text_matches: _RegularExpression | None = None
    """A regular expression (RE2) that matches anywhere in the same text."""
    latency_below: _Latency | None = None
    """Time to the end of the answer, such as 800ms or 1.5s. A failure makes the agent degraded."""
    certificate_days: Annotated[float, Field(gt=0, le=3650)] | None = None
    """Least number of days until the certificate ends. A failure makes the agent degraded."""

    @model_validator(mode="after")
    def _require_a_check(self) -> Self:
        has_value_check = any(getattr(self, check.value) is not None for check in _OF_VALUES)
        if has_value_check != (self.pointer is not None):
            raise PydanticCustomError(
                "pointer_and_check",
                "expected pointer together with one of equals, contains, glob and matches",
            )
        checks = list(self.assertions)
        if not checks:
            raise PydanticCustomError("nothing_asserted", "expected a check, such as status or text_contains")
        if self.of == "transport" and any(check.is_of_content for check in checks):
            raise PydanticCustomError(
                "transport_content", "transport: expected status, latency_below or certificate_days only"
            )
        return self

    @property
    def assertions(self) -> Iterator[Assertion]:
        """The expectations as single assertions."""
        for check in Check:
            expected = getattr(self, check.value)
            if expected is None:
                continue
            pattern = None
            if check is Check.GLOB:
                pattern = compiled(glob_pattern(expected))
            elif check in {Check.MATCHES, Check.TEXT_MATCHES}:
                pattern = compiled(expected)
            yield Assertion(
                of=self.of,
                check=check,
                expected=expected,
                pointer=self.pointer if check in _OF_VALUES else None,
                pattern=pattern,
            )
