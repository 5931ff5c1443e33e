"""Assertions in a probe definition."""

from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.domain.files.validation_messages import expectation
from lifesign.domain.observation.assertion import Check
from lifesign.prober.definition.assertion_settings import AssertionSettings, compiled, glob_pattern
from lifesign.prober.definition.values import FORMS


def kinds(**members: Any) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        AssertionSettings.model_validate(members)
    return [(error["loc"][:1], error["type"]) for error in caught.value.errors()]


def test_one_mapping_may_name_several_checks() -> None:
    settings = AssertionSettings.model_validate({
        "of": "transport", "status": 405, "latency_below": "0.8s", "certificate_days": 14,
    })  # fmt: skip
    found = [(each.of, each.check, each.expected) for each in settings.assertions]
    assert found == [
        ("transport", Check.STATUS, 405),
        ("transport", Check.LATENCY_BELOW, 800.0),
        ("transport", Check.CERTIFICATE_DAYS, 14.0),
    ]


@pytest.mark.parametrize("number", [2**53 + 1, 12345678901234567890, -(10**20) + 1])
def test_large_integer_is_expected_exactly(number: int) -> None:
    settings = AssertionSettings.model_validate({"of": "/status", "pointer": "/id", "equals": number})
    assert [repr(each.expected) for each in settings.assertions] == [str(number)]


def test_pointer_is_refused_for_checks_without_a_value() -> None:
    settings = AssertionSettings.model_validate({
        "of": "/status", "pointer": "/queue/depth", "matches": "^[0-9]{1,3}$", "text_contains": "x",
    })  # fmt: skip
    assert [(each.check, each.pointer) for each in settings.assertions] == [
        (Check.MATCHES, "/queue/depth"),
        (Check.TEXT_CONTAINS, None),
    ]


@pytest.mark.parametrize(
    ("members", "place", "kind"),
    [
        ({}, (), "nothing_asserted"),
        ({"equals": 1}, (), "pointer_and_check"),
        ({"pointer": "/a", "status": 200}, (), "pointer_and_check"),
        ({"pointer": "a", "equals": 1}, ("pointer",), "string_pattern_mismatch"),
        ({"of": "card2", "status": 200}, ("of",), "assertion_of"),
        ({"of": "//other.example/", "status": 200}, ("of",), "other_host"),
        ({"of": "/a/../b", "status": 200}, ("of",), "dot_segment"),
        ({"of": "transport", "text_contains": "x"}, (), "transport_content"),
        ({"status": 42}, ("status",), "greater_than_equal"),
        ({"latency_below": 800}, ("latency_below",), "latency"),
        ({"latency_below": "800"}, ("latency_below",), "latency"),
        ({"latency_below": "0ms"}, ("latency_below",), "greater_than"),
        ({"text_matches": "("}, ("text_matches",), "pattern"),
        ({"text_matches": r"(a)\1"}, ("text_matches",), "pattern"),
        ({"text_matches": "(?:a{1000}){1000}"}, ("text_matches",), "pattern"),
        ({"text_matches": "x" * 1001}, ("text_matches",), "string_too_long"),
        ({"status": 200, "stauts": 200}, ("stauts",), "extra_forbidden"),
    ],
)
def test_invalid_assertion_is_refused_with_its_path(members: dict[str, Any], place: Any, kind: str) -> None:
    assert kinds(**{"of": "health"} | members) == [(place, kind)]


@pytest.mark.parametrize(
    ("glob", "text", "is_met"),
    [
        ("a*c", "abc", True),
        ("a*c", "a\nc", True),
        ("a*c", "abcd", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
        ("v1.*", "v1.2", True),
        ("[a]", "a", False),
        ("*", "", True),
        ("caf\u00e9*", "caf\u00e9s", True),
    ],
)
def test_glob_matches_the_whole_value(glob: str, text: str, is_met: bool) -> None:  # noqa: FBT001 - a table
    assert (compiled(glob_pattern(glob)).search(text) is not None) is is_met


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){20}$", glob_pattern("*a" * 30 + "b")])
def test_pattern_does_not_backtrack_on_a_hostile_text(pattern: str) -> None:
    # An engine that backtracks takes longer than the age of the universe.
    assert compiled(pattern).search("a" * 200_000 + "!") is None


def test_invalid_pointer_is_described_in_words() -> None:
    with pytest.raises(ValidationError) as caught:
        AssertionSettings.model_validate({"of": "card", "pointer": "state", "equals": "ready"})
    assert expectation(caught.value.errors()[0], FORMS).startswith("a JSON pointer")
