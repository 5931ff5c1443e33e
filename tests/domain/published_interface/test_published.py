"""The bounded form of an interface: limits, digests and the check of what another process sent."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError
from tests.support.properties import examples

from lifesign.domain.published_interface.published import (
    MAX_ENTRIES,
    MAX_INTERFACE_BYTES,
    MAX_INTERFACE_LEVELS,
    Interface,
    InterfaceKind,
    bounded_interface,
    check_interface,
    digest_form,
    group,
    is_digest,
    name_set,
    short,
)

KIND = InterfaceKind.AGENT_CARD


@settings(max_examples=examples(100))
@given(st.text(), st.integers(20, 60))
def test_short_text_is_printable_within_its_limit_and_differs_as_the_text_does(text: str, most: int) -> None:
    shown = short(text, most)
    assert len(shown) <= most
    shown.encode()
    if shown == text:
        assert short(f"{text}\u200e", most) != shown, "an invisible character is not shown as a change"
    else:
        assert short(f"{text}x", most) != shown


def test_group_keeps_the_first_of_two_names_and_one_digest_for_the_rest() -> None:
    assert group([("a", 1), ("a", 2), ("", 3)]) == {"a": 1}
    many = group((f"n{place:03}", place) for place in range(MAX_ENTRIES + 2))
    assert len(many) == MAX_ENTRIES + 1
    assert is_digest(many[""])
    assert "n199" in many
    assert "n200" not in many


def test_set_of_names_ignores_what_is_no_text() -> None:
    assert name_set(["b", 1, None, "a", "b"]) == {"a": True, "b": True}
    assert name_set("text") == {}


def test_largest_entries_become_digests_until_the_whole_fits() -> None:
    skills = {f"s{place}": {"description": "d" * 250, "place": place} for place in range(150)}
    skills["small"] = {"description": "d"}
    interface = bounded_interface(KIND, {"skills": skills})
    assert len(interface.text) <= MAX_INTERFACE_BYTES
    kept = interface.form["skills"]
    assert kept["small"] == {"description": "d"}
    assert kept.keys() == skills.keys()
    assert 0 < sum(map(is_digest, kept.values())) < 150


def test_too_large_interface_is_stored_as_digests_of_groups() -> None:
    names = {f"{place:03}{'n' * 180}": True for place in range(200)}
    interface = bounded_interface(KIND, {"required_extensions": dict(names), "name": "kept"})
    assert is_digest(interface.form["required_extensions"])
    assert interface.form["name"] == "kept"
    assert interface.kind is KIND


def test_digest_depends_on_content_only() -> None:
    first = bounded_interface(KIND, {"name": "a", "provider": "b"})
    again = bounded_interface(KIND, {"provider": "b", "name": "a"})
    other = bounded_interface(KIND, {"provider": "c", "name": "a"})
    assert first.digest == again.digest != other.digest
    assert json.loads(first.text) == first.form


def test_digest_of_a_digest_is_itself() -> None:
    once = digest_form({"a": 1})
    assert digest_form(once) == once


def nested(levels: int) -> dict[str, Any]:
    form: dict[str, Any] = {}
    for _ in range(levels):
        form = {"a": form}
    return form


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        ({}, "interface_kind"),
        ({"kind": 3}, "interface_kind"),
        ({"kind": ["agent_card"]}, "interface_kind"),
        ({"kind": "agent_card", "name": "x" * MAX_INTERFACE_BYTES}, "too_large"),
        ({"kind": "agent_card", "tools": nested(MAX_INTERFACE_LEVELS)}, "too_deep"),
        ({"kind": "agent_card", "name": float("nan")}, "not_finite"),
        ({"kind": "agent_card", "name": "\ud800"}, "not_json"),
    ],
)
def test_invalid_interface_is_refused(form: dict[str, Any], fault: str) -> None:
    with pytest.raises(PydanticCustomError) as refused:
        check_interface(form)
    assert refused.value.type == fault


def test_locally_built_interface_is_stored_without_a_copy() -> None:
    interface: Interface = bounded_interface(KIND, {"name": "a"})
    assert check_interface(interface.form) is interface.form
