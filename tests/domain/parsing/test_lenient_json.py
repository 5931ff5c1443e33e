from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.common.finding import Finding
from lifesign.domain.parsing.lenient_json import (
    MAX_FINDINGS,
    MAX_SHOWN_CHARS,
    MAX_TEXT_CHARS,
    LenientObject,
    MemberFinding,
    shown,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
KINDS = (str, bool, list, dict)


def reading(**members: Any) -> LenientObject:
    return LenientObject(members, ("place",), [])


def named(place: LenientObject) -> list[tuple[str, str]]:
    return [(finding.name, finding.pointer) for finding in place.findings]


@pytest.mark.parametrize(("kind", "value"), [(str, "a"), (bool, False), (list, [1]), (dict, {"a": 1})])
def test_member_of_the_expected_type_is_unchanged(kind: Any, value: object) -> None:
    place = reading(a=value)
    assert place.take("a", kind) is value
    assert named(place) == []


@given(JSON, st.sampled_from(KINDS))
def test_member_of_another_type_counts_as_absent(value: Any, kind: Any) -> None:
    place = reading(a=value)
    if isinstance(value, kind):
        assert place.take("a", kind) is value
        assert named(place) == []
    else:
        assert place.take("a", kind) is None
        assert named(place) == [("null_for_absent" if value is None else "wrong_type", "/place/a")]


def test_only_missing_required_members_are_named() -> None:
    place = reading()
    assert place.take("a", str) is None
    assert place.text("a") is None
    assert not place.flag("a")
    assert place.items("a", 1) == []
    assert place.inside("a").members == {}
    assert named(place) == []
    place.require("a", "a_missing")
    assert named(place) == [("a_missing", "/place/a")]


def test_required_member_may_be_null() -> None:
    place = reading(a=None)
    place.require("a", "a_missing")
    assert named(place) == []


@given(st.text())
def test_any_text_can_be_kept_and_shown_afterwards(text: str) -> None:
    cleaned = reading(a=text).text("a")
    assert cleaned is not None
    cleaned.encode()
    assert len(cleaned) == len(text[:MAX_TEXT_CHARS])


def test_long_text_is_cut_and_direction_marks_are_replaced() -> None:
    place = reading(long="a" * (MAX_TEXT_CHARS + 1), odd="\u202ecod.exe\x00")
    assert place.text("long") == "a" * MAX_TEXT_CHARS
    assert place.text("odd") == "\ufffdcod.exe\ufffd"
    assert named(place) == [("too_long", "/place/long"), ("unprintable_characters", "/place/odd")]


def test_a_line_break_and_a_tab_may_stay() -> None:
    assert reading(a="one\ttwo\nthree").text("a") == "one\ttwo\nthree"


def test_list_reading_skips_other_values_and_is_bounded() -> None:
    place = reading(list=[{"a": 1}, 7, {"a": 2}, {"a": 3}])
    assert [(one.way, one.members) for one in place.objects("list", 3)] == [
        (("place", "list", 0), {"a": 1}),
        (("place", "list", 2), {"a": 2}),
    ]
    assert named(place) == [("too_many_items", "/place/list"), ("wrong_type", "/place/list/1")]


def test_all_objects_of_a_document_share_its_findings() -> None:
    place = reading(inner={"deep": {"flag": 1}})
    assert not place.inside("inner").inside("deep").flag("flag")
    assert named(place) == [("wrong_type", "/place/inner/deep/flag")]


def test_last_finding_is_too_many_findings() -> None:
    place = reading()
    for index in range(2 * MAX_FINDINGS):
        place.add(Finding("odd", f"/{index}", ""))
    assert len(place.findings) == MAX_FINDINGS
    assert [finding.name for finding in place.findings[-2:]] == ["odd", "too_many_findings"]


def test_each_finding_name_can_occur() -> None:
    place = reading(a=7, b=None, c="a" * (MAX_TEXT_CHARS + 1), d="\x00", e=[1, 2])
    for key in "abcd":
        place.text(key)
    place.items("e", 1)
    for _ in range(MAX_FINDINGS):
        place.flag("a")
    assert {finding.name for finding in place.findings} == set(get_args(MemberFinding))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a" * 1000, "'" + "a" * MAX_SHOWN_CHARS + "'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        (True, "true"),
        pytest.param(10**5000, "a number", id="more digits than Python prints"),
        (0.5, "a number"),
        ([1], "a list"),
        ({}, "an object"),
        (None, "something else"),
    ],
)
def test_shown_value_is_short_and_printable(value: object, expected: str) -> None:
    assert shown(value) == expected
