"""Assertions: what an operator expects of a target's answers, and whether the answers fulfil it.

An assertion concerns the content of an answer, never its arrival: without an answer it is not evaluated.
Patterns are compiled by the caller, with an engine that takes linear time.
"""

import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.health.document import Time
from lifesign.domain.text.safe_text import harmless

MAX_ASSERTIONS: Final = 32
"""Maximum of single checks per target."""
MAX_SHOWN_CHARS: Final = 200
"""Maximum length of an expected or actual value in a result."""
MAX_POINTER_CHARS: Final = 256
MAX_OF_CHARS: Final = 512
MAX_TEXT_CHARS: Final = 1024 * 1024
"""Maximum length of a text that is compared."""
MAX_SEARCH_STEPS: Final = 2**25
"""Maximum of a text's length, multiplied by the size of the pattern that is searched for in it.

RE2 takes so many steps if a text makes its cache useless. A target chooses the text.
"""
TOO_LONG: Final = "the text is too long for this pattern"
NOT_JSON: Final = "the body is not JSON"
TOO_COMPLEX: Final = "the JSON of the body is too large or nested too deep"


class Check(StrEnum):
    """Kind of comparison."""

    STATUS = "status"
    EQUALS = "equals"
    CONTAINS = "contains"
    GLOB = "glob"
    MATCHES = "matches"
    TEXT_CONTAINS = "text_contains"
    TEXT_MATCHES = "text_matches"
    LATENCY_BELOW = "latency_below"
    CERTIFICATE_DAYS = "certificate_days"


GATED_STATUSES: Final = frozenset({401, 402, 403, 407})
"""Statuses of answers that ask for credentials or payment; an assertion may expect one of them."""
GRADUAL: Final = frozenset({Check.LATENCY_BELOW, Check.CERTIFICATE_DAYS})
"""Checks whose failure makes an agent degraded, not unhealthy."""
_OF_CONTENT: Final = frozenset(Check) - GRADUAL - {Check.STATUS}


class AssertionOutcome(StrEnum):
    """Whether an assertion held, failed, or could not be measured."""

    OK = "ok"
    ASSERTION_FAILED = "assertion_failed"
    NOT_MEASURED = "not_measured"
    """No answer arrived to which the assertion applies, or its content requires credentials."""


class Pattern(Protocol):
    """A compiled regular expression that is matched in linear time (RE2)."""

    @property
    def programsize(self) -> int:
        """Size of the compiled pattern: the maximum number of steps for each character."""
        ...

    def search(self, text: str) -> object | None:
        """Return the first match anywhere in a text; None if there is none."""
        ...


@fast_dataclass(kw_only=True)
class Assertion:
    """One expectation about the answer of a target, such as a value at a JSON pointer."""

    of: str
    """Checked answer: `transport`, `card`, `health`, `message`, `tool`, or the path of another request."""
    check: Check
    expected: str | float | bool | None
    """Value of the definition; milliseconds for `latency_below`."""
    pointer: str | None = None
    """JSON pointer (RFC 6901), for the checks of a single value."""
    pattern: Pattern | None = None
    """The compiled expectation of `glob`, `matches` and `text_matches`."""

    @property
    def is_of_content(self) -> bool:
        """Whether the assertion checks the body of the answer."""
        return self.check in _OF_CONTENT

    @property
    def needs_body(self) -> bool:
        """Whether the body is read for the assertion; the latency is that of the whole answer."""
        return self.is_of_content or self.check is Check.LATENCY_BELOW


@fast_dataclass(kw_only=True)
class CheckedAnswer:
    """The parts of an answer that assertions check: status, body, latency and others."""

    status: int
    latency_ms: float | None = None
    certificate_days: float | None = None
    """Days until the certificate ends, below 0 if it has ended; None without one."""
    has_content: bool = True
    """Whether the body is known: it may be unread, require credentials, be too large, or arrive later."""
    is_gated: bool = False
    """Whether the answer requires credentials, or refuses those that were sent."""
    has_credential_fault: bool = False
    """Whether the prober's credential was rejected, or not sent because it is missing or has no token."""
    has_failed: bool = False
    """Whether the answer itself states a failure, so that no check of its content holds."""
    value: Any = None
    """JSON value to which pointers apply; None if the body is not JSON."""
    json_fault: str = ""
    """Why there is no JSON value: NOT_JSON, or TOO_COMPLEX if the prober does not parse it."""
    text: str = ""


_ESCAPES: Final = str.maketrans({"\n": r"\n", "\r": r"\r", "\t": r"\t"})


def _cut(text: object) -> object:
    if not isinstance(text, str):
        return text
    return harmless(text[:MAX_SHOWN_CHARS].translate(_ESCAPES))[:MAX_SHOWN_CHARS]


_Shown = Annotated[str, Field(max_length=MAX_SHOWN_CHARS), BeforeValidator(_cut)]


class AssertionResult(BaseModel):
    """Result of one assertion in one probe, with the actual value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    of: Annotated[str, Field(min_length=1, max_length=MAX_OF_CHARS, pattern="^[!-~]+$")]
    """Checked answer: `transport`, `card`, `health`, `message`, `tool`, or the path of another request."""
    check: Annotated[Check, Field(strict=False)]
    pointer: Annotated[str, Field(max_length=MAX_POINTER_CHARS)] | None = None
    """JSON pointer of the value that was checked."""
    result: Annotated[AssertionOutcome, Field(strict=False)]
    expected: _Shown
    """Expected value, up to 200 characters; line breaks and tabs as `\\n`, `\\r` and `\\t`."""
    actual: _Shown | None = None
    """Actual value, in the same form; absent if there was none."""
    reason: _Shown | None = None
    """Reason why it was not measured, or why the answer of a failed one has no JSON value; if known."""

    @property
    def name(self) -> str:
        """The assertion in one line, such as `/status /queue/depth matches`."""
        return " ".join(filter(None, (self.of, self.pointer, self.check.value)))

    @property
    def actual_text(self) -> str:
        """The actual value as text, or the reason why there is none."""
        if self.actual is not None:
            return self.actual or "an empty text"
        return self.reason or ("no value at the pointer" if self.has_failed else "-")

    def explanation(self, max_chars: int = MAX_SHOWN_CHARS) -> str:
        """Return in words what was expected and what was found; long values are cut to `max_chars`."""
        expected = f"{self.name} '{self.expected[:max_chars]}'"
        if self.actual is None and not self.has_failed:
            return f"{expected}: {self.reason}" if self.reason else expected
        actual = f"'{self.actual[:max_chars]}'" if self.actual else self.actual_text
        return f"{expected}, got {actual}"

    @property
    def is_measured(self) -> bool:
        """Whether there was an answer that the assertion could check."""
        return self.result is not AssertionOutcome.NOT_MEASURED

    @property
    def has_failed(self) -> bool:
        """Whether the assertion was measured and did not hold."""
        return self.result is AssertionOutcome.ASSERTION_FAILED

    def discounted(self) -> "AssertionResult":
        """Return the result as not measured if it is a failure; otherwise unchanged."""
        changed = {"result": AssertionOutcome.NOT_MEASURED}
        return self.model_copy(update=changed) if self.has_failed else self

    @property
    def is_gradual(self) -> bool:
        """Whether a failure of this assertion makes the agent degraded instead of unhealthy."""
        return self.check in GRADUAL


class KeptFailure(AssertionResult):
    """A failure of an earlier probe: the last probe did not measure the assertion."""

    measured_at: Time
    """Time of the last probe that measured the failure."""
    unmeasured_reason: _Shown | None = None
    """Reason why the last probe did not measure the assertion, if known."""

    @property
    def unmeasured_text(self) -> str:
        """What the last probe has found, in words."""
        why = f": {self.unmeasured_reason}" if self.unmeasured_reason else ""
        return f"not measured by the last probe{why}"


def evaluate(assertion: Assertion, answer: CheckedAnswer | None, reason: str = "") -> AssertionResult:
    """Check an answer, None if there was none. `reason` says why the assertion could not be measured."""
    found = None if answer is None else _found(assertion, answer)
    is_met, actual = found or (None, None)
    json_fault = "" if answer is None or actual is not None else answer.json_fault
    if is_met is None:
        outcome, actual = AssertionOutcome.NOT_MEASURED, None
        reason = reason if found is None else json_fault or TOO_LONG
    else:
        outcome = AssertionOutcome.OK if is_met else AssertionOutcome.ASSERTION_FAILED
        reason = json_fault
    return AssertionResult(
        of=assertion.of,
        check=assertion.check,
        pointer=assertion.pointer,
        result=outcome,
        expected=_expected_text(assertion),
        actual=actual,
        reason=reason or None,
    )


def value_at(document: Any, pointer: str) -> tuple[bool, Any]:
    """Return whether a document has a value at a JSON pointer, and the value."""
    value = document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and _is_within(name, value):
            value = value[int(name)]
        else:
            return False, None
    return True, value


def answer_text(result: Any) -> str:
    """Return the text parts of an A2A answer, joined by newlines: of the message, then of the artifacts."""
    if not isinstance(result, Mapping):
        return ""
    task = _mapping(result.get("task"), result)
    status = _mapping(task.get("status"), {})
    holders = [
        _mapping(result.get("message"), result),
        _mapping(status.get("message"), {}),
        *_list(task.get("artifacts")),
    ]
    return "\n".join(text for holder in holders for text in _part_texts(holder))[:MAX_TEXT_CHARS]


def _found(assertion: Assertion, answer: CheckedAnswer) -> tuple[bool | None, str | None] | None:
    """Return whether the answer is as expected, and its value; None if that is unknown.

    None instead of the former if its text is too long to be searched, or its JSON too complex.
    """
    expected: Any = assertion.expected
    match assertion.check:
        case Check.STATUS:
            return None if _is_unknown(answer, expected) else (answer.status == expected, str(answer.status))
        case Check.LATENCY_BELOW:
            # A server that refuses a credential answers at once, or after a deliberate delay.
            latency_ms = None if answer.has_credential_fault else answer.latency_ms
            return None if latency_ms is None else (latency_ms < expected, f"{latency_ms:.6g} ms")
        case Check.CERTIFICATE_DAYS:
            days = answer.certificate_days
            return None if days is None else (days >= expected, f"{math.floor(days * 10) / 10:g}")
    if not answer.has_content:
        return None
    if assertion.check in {Check.TEXT_CONTAINS, Check.TEXT_MATCHES} or answer.has_failed:
        return not answer.has_failed and _text_is_met(assertion, answer.text), _shown(answer.text)
    return _found_at_pointer(assertion, answer)


def _found_at_pointer(assertion: Assertion, answer: CheckedAnswer) -> tuple[bool | None, str | None]:
    exists, value = value_at(answer.value, assertion.pointer or "")
    if not exists:
        return None if answer.json_fault == TOO_COMPLEX else False, None
    return _value_is_met(assertion, value), _shown(value)


def _is_unknown(answer: CheckedAnswer, expected: object) -> bool:
    """Return whether a status says nothing about the agent: its login, or our credential, decided it."""
    if answer.has_credential_fault:
        return answer.status not in GATED_STATUSES or answer.status != expected
    return answer.is_gated and expected not in GATED_STATUSES


def _text_is_met(assertion: Assertion, text: str) -> bool | None:
    if assertion.pattern is not None:
        return _has_match(assertion.pattern, text)
    return str(assertion.expected) in text


def _has_match(pattern: Pattern, text: str) -> bool | None:
    if len(text) * pattern.programsize > MAX_SEARCH_STEPS:
        return None
    # JSON may have half a surrogate pair, which RE2 cannot encode.
    return pattern.search(text.encode("utf-8", "replace").decode()) is not None


def _value_is_met(assertion: Assertion, value: Any) -> bool | None:
    if assertion.pattern is not None:
        return _has_match(assertion.pattern, _plain(value))
    if assertion.check is Check.CONTAINS:
        if isinstance(value, list):
            return any(_is_same(each, assertion.expected) for each in value)
        return isinstance(value, str) and str(assertion.expected) in value
    return _is_same(value, assertion.expected)


def _is_same(value: Any, expected: Any) -> bool:
    # In JSON, true is not 1.
    return isinstance(value, bool) is isinstance(expected, bool) and bool(value == expected)


def _is_within(name: str, values: Sequence[Any]) -> bool:
    return len(name) <= len(str(len(values))) and int(name) < len(values)


def _expected_text(assertion: Assertion) -> str:
    if assertion.check is Check.LATENCY_BELOW:
        return f"{assertion.expected:g} ms"
    if assertion.check is Check.CERTIFICATE_DAYS:
        return f"{assertion.expected:g}"
    return _shown(assertion.expected)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(value: Any) -> str:
    return _plain(value)[:MAX_SHOWN_CHARS]


def _mapping(value: Any, default: Mapping[str, Any]) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else default


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _part_texts(holder: Any) -> list[str]:
    if not isinstance(holder, Mapping):
        return []
    # A2A before 1.0 has `parts`, drafts of 1.0 have `content`.
    parts = _list(holder.get("parts")) or _list(holder.get("content"))
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return [text for text in texts if isinstance(text, str)]
