from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.common.finding import Finding, json_pointer

PARTS = st.lists(st.text() | st.integers(0, 10**6))


@pytest.mark.parametrize(
    ("parts", "pointer"),
    [
        # RFC 6901 5
        ((), ""),
        (("foo",), "/foo"),
        (("foo", 0), "/foo/0"),
        (("",), "/"),
        (("a/b",), "/a~1b"),
        (("c%d",), "/c%d"),
        (("e^f",), "/e^f"),
        (("g|h",), "/g|h"),
        (("i\\j",), "/i\\j"),
        (('k"l',), '/k"l'),
        ((" ",), "/ "),
        (("m~n",), "/m~0n"),
        # Escaped in the wrong order, this would become another name.
        (("~1",), "/~01"),
        (("~/",), "/~0~1"),
    ],
)
def test_json_pointer_is_escaped_as_in_rfc_6901(parts: tuple[str | int, ...], pointer: str) -> None:
    assert json_pointer(*parts) == pointer


@given(PARTS)
def test_json_pointer_can_be_split_into_its_parts(parts: list[str | int]) -> None:
    steps = json_pointer(*parts).split("/")[1:]
    assert [step.replace("~1", "/").replace("~0", "~") for step in steps] == [str(part) for part in parts]


@given(
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)),
    st.data(),
)
def test_a_pointer_finds_any_place_of_a_document(document: Any, data: st.DataObject) -> None:
    place, parts = document, []
    while place and data.draw(st.booleans()):
        part = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        parts.append(part)
        place = place[part]
    found = document
    for step in json_pointer(*parts).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    assert found is place


def test_finding_text_has_pointer_message_and_source() -> None:
    assert str(Finding("odd", "/a/b", "too long", "draft 4.2")) == "/a/b: too long [draft 4.2]"
    assert str(Finding("odd", "/a/b", "too long")) == "/a/b: too long"
    assert str(Finding("odd", "", "odd", "draft 4.2")) == "(whole document): odd [draft 4.2]"


def test_findings_are_immutable_and_compared_by_value() -> None:
    finding = Finding("odd", "/a", "too long")
    assert finding == Finding("odd", "/a", "too long")
    assert len({finding, Finding("odd", "/a", "too long")}) == 1
    with pytest.raises(FrozenInstanceError):
        finding.name = "other"  # type: ignore[misc]  # what the test is about
