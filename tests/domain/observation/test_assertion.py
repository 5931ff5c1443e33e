"""Assertions about one answer."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.common.finding import json_pointer
from lifesign.domain.observation.assertion import (
    GRADUAL,
    MAX_SHOWN_CHARS,
    NOT_JSON,
    TOO_COMPLEX,
    TOO_LONG,
    Assertion,
    AssertionOutcome,
    AssertionResult,
    Check,
    CheckedAnswer,
    answer_text,
    evaluate,
    value_at,
)
from lifesign.prober.definition.assertion_settings import compiled

OK, FAILED, NOT_MEASURED = AssertionOutcome
BODY = {"queue": {"depth": 12, "name": "main"}, "tags": ["a", True], "ready": True, "a/b": 1, "": 2}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def asserted(check: Check, expected: Any, pointer: str | None = None) -> Assertion:
    is_pattern = check in {Check.GLOB, Check.MATCHES, Check.TEXT_MATCHES}
    pattern = compiled(expected) if is_pattern else None
    return Assertion(of="health", check=check, expected=expected, pointer=pointer, pattern=pattern)


def outcome(check: Check, expected: Any, pointer: str | None = None, **members: Any) -> AssertionOutcome:
    answer = CheckedAnswer(status=200, value=BODY, text="all is well", **members)
    return evaluate(asserted(check, expected, pointer), answer).result


@pytest.mark.parametrize(
    ("check", "expected", "pointer", "result"),
    [
        (Check.STATUS, 200, None, OK),
        (Check.STATUS, 204, None, FAILED),
        (Check.EQUALS, 12, "/queue/depth", OK),
        (Check.EQUALS, 13, "/queue/depth", FAILED),
        (Check.EQUALS, "12", "/queue/depth", FAILED),
        (Check.EQUALS, True, "/ready", OK),
        (Check.EQUALS, 1, "/ready", FAILED),
        (Check.EQUALS, True, "/a~1b", FAILED),
        (Check.EQUALS, 1, "/a~1b", OK),
        (Check.EQUALS, 2, "/", OK),
        (Check.EQUALS, "a", "/tags/0", OK),
        (Check.EQUALS, "a", "/tags/2", FAILED),
        (Check.EQUALS, "a", "/tags/-", FAILED),
        (Check.EQUALS, "a", "/none", FAILED),
        (Check.CONTAINS, "ai", "/queue/name", OK),
        (Check.CONTAINS, "ia", "/queue/name", FAILED),
        (Check.CONTAINS, "a", "/tags", OK),
        (Check.CONTAINS, 1, "/tags", FAILED),
        (Check.CONTAINS, "depth", "/queue", FAILED),
        (Check.MATCHES, "^[0-9]{1,3}$", "/queue/depth", OK),
        (Check.MATCHES, "^[0-9]$", "/queue/depth", FAILED),
        (Check.TEXT_CONTAINS, "is well", None, OK),
        (Check.TEXT_CONTAINS, "is bad", None, FAILED),
        (Check.TEXT_MATCHES, "w.ll$", None, OK),
        (Check.TEXT_MATCHES, "^well", None, FAILED),
    ],
)
def test_an_answer_is_compared_with_the_expectation(
    check: Check, expected: Any, pointer: str | None, result: AssertionOutcome
) -> None:
    assert outcome(check, expected, pointer) is result


@pytest.mark.parametrize("pointer", [None, "/text"])
def test_large_pattern_is_not_searched_for_in_a_long_text(pointer: str | None) -> None:
    text = "OKx" * 30_000
    answer = CheckedAnswer(status=200, value={"text": text}, text=text)
    check = Check.TEXT_MATCHES if pointer is None else Check.MATCHES
    found = evaluate(asserted(check, "OK.{0,100}done", pointer), answer)
    assert (found.result, found.actual, found.reason) == (NOT_MEASURED, None, TOO_LONG)
    assert evaluate(asserted(check, "OK.{0,3}done", pointer), answer).result is FAILED


@pytest.mark.parametrize(
    ("check", "expected", "actual", "result"),
    [
        (Check.LATENCY_BELOW, 800.0, 799.9, OK),
        (Check.LATENCY_BELOW, 800.0, 800.0, FAILED),
        (Check.LATENCY_BELOW, 800.0, None, NOT_MEASURED),
        (Check.CERTIFICATE_DAYS, 14.0, 14.0, OK),
        (Check.CERTIFICATE_DAYS, 14.0, 13.9, FAILED),
        (Check.CERTIFICATE_DAYS, 14.0, -1.0, FAILED),
        (Check.CERTIFICATE_DAYS, 14.0, None, NOT_MEASURED),
    ],
)
def test_a_limit_is_compared_if_there_is_a_value(
    check: Check, expected: float, actual: float | None, result: AssertionOutcome
) -> None:
    answer = CheckedAnswer(status=200, latency_ms=actual, certificate_days=actual)
    assert evaluate(asserted(check, expected), answer).result is result


@pytest.mark.parametrize(
    ("expected", "days", "shown"), [(14.0, 20.0, ("14", "20")), (14.5, 13.98, ("14.5", "13.9"))]
)
def test_days_of_a_certificate_are_shown_without_a_zero(
    expected: float, days: float, shown: tuple[str, str]
) -> None:
    answer = CheckedAnswer(status=200, certificate_days=days)
    result = evaluate(asserted(Check.CERTIFICATE_DAYS, expected), answer)
    assert (result.expected, result.actual) == shown


@pytest.mark.parametrize("check", list(Check))
def test_without_an_answer_nothing_is_measured(check: Check) -> None:
    result = evaluate(asserted(check, 1.0 if check in GRADUAL else "1", "/x"), None)
    assert (result.result, result.actual) == (NOT_MEASURED, None)


def test_unknown_content_gives_assertions_not_measured() -> None:
    assert outcome(Check.TEXT_CONTAINS, "x", has_content=False) is NOT_MEASURED
    assert outcome(Check.EQUALS, "x", "/queue", has_content=False) is NOT_MEASURED
    assert outcome(Check.STATUS, 204, has_content=False) is FAILED


def test_content_of_an_answer_that_states_a_failure_is_never_as_expected() -> None:
    assert outcome(Check.TEXT_CONTAINS, "all is well", has_failed=True) is FAILED
    assert outcome(Check.EQUALS, 12, "/queue/depth", has_failed=True) is FAILED
    assert outcome(Check.STATUS, 200, has_failed=True) is OK


@pytest.mark.parametrize(
    ("expected", "result"), [(200, NOT_MEASURED), (404, NOT_MEASURED), (401, OK), (403, FAILED)]
)
def test_request_for_credentials_fails_no_assertion_that_expects_another_answer(
    expected: int, result: AssertionOutcome
) -> None:
    answer = CheckedAnswer(status=401, has_content=False, is_gated=True)
    assert evaluate(asserted(Check.STATUS, expected), answer).result is result


@pytest.mark.parametrize(
    ("status", "expected", "result"),
    [(200, 200, NOT_MEASURED), (404, 200, NOT_MEASURED), (401, 403, NOT_MEASURED), (401, 401, OK)],
)
def test_fault_of_a_credential_decides_no_assertion(
    status: int, expected: int, result: AssertionOutcome
) -> None:
    answer = CheckedAnswer(status=status, has_content=False, has_credential_fault=True)
    assert evaluate(asserted(Check.STATUS, expected), answer).result is result


@pytest.mark.parametrize("check", [Check.MATCHES, Check.GLOB, Check.TEXT_MATCHES])
def test_half_a_surrogate_pair_is_searched(check: Check) -> None:
    """Programs write it that cut a text in the middle of a character."""
    text = "42 \ud83d"
    pointer = None if check is Check.TEXT_MATCHES else "/text"
    expected = "42*" if check is Check.GLOB else "42"
    answer = CheckedAnswer(status=200, value={"text": text}, text=text)
    assert evaluate(asserted(check, expected, pointer), answer).result is OK


@pytest.mark.parametrize("actual", [100.0, 1200.0])
def test_latency_of_a_refused_credential_is_not_measured(actual: float) -> None:
    limit = asserted(Check.LATENCY_BELOW, 800.0)
    refused = CheckedAnswer(status=401, latency_ms=actual, has_content=False, has_credential_fault=True)
    assert evaluate(limit, refused).result is NOT_MEASURED
    gated = CheckedAnswer(status=401, latency_ms=actual, has_content=False, is_gated=True)
    assert evaluate(limit, gated).is_measured


def test_values_are_shown_and_cut() -> None:
    answer = CheckedAnswer(status=200, value={"a": "\x1b" + "x" * 500})
    result = evaluate(asserted(Check.EQUALS, "y" * 500, "/a"), answer)
    assert result.actual is not None
    assert len(result.actual) == len(result.expected) == MAX_SHOWN_CHARS
    assert "\x1b" not in result.actual
    assert AssertionResult.model_validate_json(result.model_dump_json()) == result


def test_explanation_has_patterns_as_written_and_cut_values_on_one_line() -> None:
    given: dict[str, Any] = {
        "of": "message",
        "check": Check.TEXT_MATCHES,
        "result": FAILED,
        "expected": r"\b42\b",
    }
    assert r"'\b42\b'" in AssertionResult(**given, actual="a\nb").explanation()
    assert AssertionResult(**given, actual="a\r\n\tb").explanation().endswith(r"got 'a\r\n\tb'")
    assert AssertionResult(**given, actual="").explanation().endswith("got an empty text")
    assert AssertionResult(**given, actual="x" * 100).explanation(max_chars=5).endswith("'xxxxx'")


def test_missing_member_differs_from_missing_answer() -> None:
    check = asserted(Check.EQUALS, "a", "/none")
    nowhere = evaluate(check, CheckedAnswer(status=200, value={"none of these": 1}))
    without_answer = evaluate(check, None)
    assert (nowhere.result, nowhere.actual) == (FAILED, None)
    assert "pointer" in nowhere.actual_text
    assert without_answer.actual_text == "-"
    refused = evaluate(check, None, "HTTP 401")
    assert refused.actual_text == "HTTP 401"
    assert refused.explanation().endswith(": HTTP 401")
    assert nowhere.reason is None
    assert evaluate(check, CheckedAnswer(status=200, value={"none": "b"})).actual_text == "b"


@pytest.mark.parametrize(("fault", "result"), [(NOT_JSON, FAILED), (TOO_COMPLEX, NOT_MEASURED)])
def test_check_of_a_body_without_a_json_value_has_the_reason(fault: str, result: AssertionOutcome) -> None:
    answer = CheckedAnswer(status=200, text='{"a": NaN}', json_fault=fault)
    found = evaluate(asserted(Check.EQUALS, "a", "/a"), answer)
    assert (found.result, found.reason, found.actual_text) == (result, fault, fault)
    other = evaluate(asserted(Check.TEXT_CONTAINS, "NaN"), answer)
    assert (other.result, other.reason) == (OK, None)


@given(JSON, st.data())
@settings(max_examples=examples(200))
def test_every_value_is_found_at_its_pointer(document: Any, data: st.DataObject) -> None:
    places: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    for place, value in places:
        if isinstance(value, dict):
            places += [((*place, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            places += [((*place, number), inner) for number, inner in enumerate(value)]
    place, value = data.draw(st.sampled_from(places))
    assert value_at(document, json_pointer(*place)) == (True, value)


@given(JSON, st.text(max_size=12), JSON, st.sampled_from([Check.EQUALS, Check.CONTAINS, Check.STATUS]))
@settings(max_examples=examples(200))
def test_any_document_and_expectation_give_a_result(
    document: Any, pointer: str, expected: Any, check: Check
) -> None:
    answer = CheckedAnswer(status=200, value=document, text="")
    result = evaluate(asserted(check, expected, f"/{pointer}"), answer)
    assert AssertionResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"kind": "message", "parts": [{"kind": "text", "text": "OK"}]}, "OK"),
        ({"message": {"parts": [{"text": "O"}, {"data": {}}, {"text": "K"}]}}, "O\nK"),
        ({"message": {"content": [{"text": "OK"}]}}, "OK"),
        ({"task": {"artifacts": [{"parts": [{"text": "a"}]}, {"parts": [{"text": "b"}]}]}}, "a\nb"),
        (
            {"status": {"message": {"parts": [{"text": "m"}]}}, "artifacts": [{"parts": [{"text": "a"}]}]},
            "m\na",
        ),
        ({"artifacts": ["x", {"parts": "x"}, {"parts": [{"text": 1}, "x"]}], "status": "x"}, ""),
        (None, ""),
        (["OK"], ""),
    ],
)
def test_text_of_an_answer_is_that_of_its_message_and_artifacts(result: Any, text: str) -> None:
    assert answer_text(result) == text
