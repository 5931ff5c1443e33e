"""Comparison of two interfaces, and which changes break callers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.published_interface.test_tool_interface import ADD
from tests.support.cards import CARD_03, CARD_10, CARDS_WITH_SURPRISES, JSON
from tests.support.properties import examples

from lifesign.domain.published_interface.card_interface import card_interface
from lifesign.domain.published_interface.comparison import (
    MAX_CHANGES,
    MAX_POINTER_CHARS,
    ChangeKind,
    compare,
)
from lifesign.domain.published_interface.published import InterfaceKind, bounded_interface, digest_form
from lifesign.domain.published_interface.tool_interface import tool_interface

SKILL: dict[str, Any] = {"id": "sub", "name": "Subtract", "description": "Subtracts", "tags": []}
OBJECTS = st.dictionaries(
    st.sampled_from(["kind", "skills", "tools", "security", "output_modes", "interfaces"]) | st.text(),
    JSON,
    max_size=6,
)

Changes = list[tuple[str, str, bool]]


def changes(old: dict[str, Any], new: dict[str, Any]) -> Changes:
    compared = compare(old, new)
    assert compared.breaking == any(change.breaking for change in compared.changes)
    return [(change.pointer, change.change.value, change.breaking) for change in compared.changes]


def of_cards(old: dict[str, Any], new: dict[str, Any]) -> Changes:
    return changes(card_interface(old).form, card_interface(new).form)


def of_tools(old: list[Any], new: list[Any]) -> Changes:
    return changes(tool_interface(old).form, tool_interface(new).form)


@settings(max_examples=examples(100))
@given(CARDS_WITH_SURPRISES, CARDS_WITH_SURPRISES)
def test_two_cards_differ_the_same_way_in_both_directions(old: dict[str, Any], new: dict[str, Any]) -> None:
    first, second = card_interface(old), card_interface(new)
    there, back = compare(first.form, second.form), compare(second.form, first.form)
    assert (first.digest == second.digest) == (not there.changes)
    mirrored = {ChangeKind.ADDED: ChangeKind.REMOVED, ChangeKind.REMOVED: ChangeKind.ADDED}
    assert {(change.pointer, mirrored.get(change.change, change.change)) for change in there.changes} == {
        (change.pointer, change.change) for change in back.changes
    }


@settings(max_examples=examples(100))
@given(OBJECTS, OBJECTS, st.integers(0, 5))
def test_any_two_objects_are_compared_within_the_limits(old: Any, new: Any, most: int) -> None:
    assert compare(old, old).changes == ()
    everything, some = compare(old, new), compare(old, new, most)
    assert len(some.changes) <= most
    assert len(some.changes) + some.omitted == len(everything.changes) + everything.omitted
    assert len(everything.changes) <= MAX_CHANGES
    assert all(len(change.pointer) <= MAX_POINTER_CHARS for change in everything.changes)
    assert some.breaking == everything.breaking


def test_nan_equals_nan_in_a_comparison() -> None:
    def form(*values: float) -> dict[str, Any]:
        return {
            "kind": "agent_card",
            "skills": {"add": {"limit": float("nan"), "range": [float("nan"), *values]}},
        }

    assert compare(form(), form()).changes == ()
    assert [change.pointer for change in compare(form(), form(1)).changes] == ["/skills/add/range"]


def test_breaking_changes_are_kept_first() -> None:
    more = [{"id": f"a{place:03}", "name": "n"} for place in range(20)]
    compared = compare(card_interface(CARD_03).form, card_interface(CARD_03 | {"skills": more}).form, 3)
    assert compared.omitted == 18
    assert ("/skills/add", True) in {(change.pointer, change.breaking) for change in compared.changes}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"skills": []}, [("/skills/add", "removed", True)]),
        ({"skills": [*CARD_03["skills"], SKILL]}, [("/skills/sub", "added", False)]),
        ({"name": "Other"}, [("/name", "changed", False)]),
        ({"provider": None}, [("/provider", "removed", False)]),
        ({"defaultOutputModes": ["text/html"]},
         [("/output_modes/text~1html", "added", False), ("/output_modes/text~1plain", "removed", True)]),
        ({"defaultInputModes": ["text/html", "text/plain"]}, [("/input_modes/text~1html", "added", False)]),
        ({"additionalInterfaces": None},
         [("/interfaces/HTTP+JSON 0.3 https:~1~1sums.test~1rest", "removed", True)]),
        ({"capabilities": {"extensions": [{"uri": "urn:x", "required": True}]}},
         [("/required_extensions/urn:x", "added", True)]),
        ({"capabilities": {"extensions": [{"uri": "urn:x", "required": False}]}}, []),
    ],
)  # fmt: skip
def test_card_changes_are_listed_with_pointer_kind_and_breaking(
    change: dict[str, Any], expected: Changes
) -> None:
    card = CARD_03 | {"capabilities": {}}
    assert of_cards(card, card | change) == expected


def skill(**members: Any) -> dict[str, Any]:
    return CARD_03 | {"skills": [SKILL | members]}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (skill(), skill(description="Other"), [("/skills/sub/description", "changed", False)]),
        (skill(), skill(tags=["t"]), [("/skills/sub/tags", "added", False)]),
        (skill(outputModes=["a/b", "c/d"]), skill(outputModes=["a/b"]),
         [("/skills/sub/output_modes/c~1d", "removed", True)]),
        # Without modes of its own a skill has those of the card.
        (skill(), skill(outputModes=["text/plain"]), []),
        (skill(), skill(outputModes=["text/html"]),
         [("/skills/sub/output_modes/text~1html", "added", False),
          ("/skills/sub/output_modes/text~1plain", "removed", True)]),
        (skill(), skill(security=[{"key": []}]), [("/skills/sub/security", "added", True)]),
    ],
)  # fmt: skip
def test_skill_changes_are_listed_with_pointer_kind_and_breaking(
    old: dict[str, Any], new: dict[str, Any], expected: Changes
) -> None:
    assert of_cards(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new", "kind", "breaking"),
    [
        ([], [{"key": []}], "added", True),
        ([{"key": []}], [], "removed", False),
        ([{"key": []}], [{"key": []}, {"login": []}], "changed", False),
        ([{"key": []}, {"login": []}], [{"key": []}], "changed", True),
        ([{"key": []}], [{"key": [], "login": []}], "changed", True),
        ([{"key": [], "login": []}], [{"key": []}], "changed", False),
        ([{"login": ["r"]}], [{"login": ["r", "w"]}], "changed", True),
        ([{"login": ["r"]}], [{}, {"login": ["r"]}], "changed", False),
    ],
)
def test_security_requirement_is_breaking_if_former_credentials_do_not_suffice(
    old: list[Any], new: list[Any], kind: str, *, breaking: bool
) -> None:
    schemes = {"securitySchemes": {"key": {"type": "apiKey"}, "login": {"type": "oauth2"}}}
    card = CARD_10 | schemes
    assert of_cards(card | {"security": old}, card | {"security": new}) == [("/security", kind, breaking)]


def test_another_type_of_a_required_scheme_breaks_callers() -> None:
    card = CARD_03 | {"security": [{"key": []}]}
    old, new = ({"securitySchemes": {"key": {"type": kind}}} for kind in ("apiKey", "oauth2"))
    assert of_cards(card | old, card | new) == [
        ("/security", "changed", True),
        ("/security_schemes/key/type", "changed", False),
    ]


BASIC = {"type": "http", "scheme": "basic"}
HEADER = {"type": "apiKey", "in": "header", "name": "X-Key"}


@pytest.mark.parametrize(
    ("old", "new", "member"),
    [
        (BASIC, BASIC | {"scheme": "bearer"}, "scheme"),
        (HEADER, HEADER | {"in": "query"}, "location"),
        (HEADER, HEADER | {"name": "Y-Key"}, "name"),
    ],
)
def test_another_place_of_a_required_credential_breaks_callers(
    old: dict[str, str], new: dict[str, str], member: str
) -> None:
    card = CARD_03 | {"security": [{"key": []}]}
    before, after = (card | {"securitySchemes": {"key": scheme}} for scheme in (old, new))
    assert of_cards(before, after) == [
        ("/security", "changed", True),
        (f"/security_schemes/key/{member}", "changed", False),
    ]


def test_spelling_of_a_required_header_breaks_no_caller() -> None:
    card = CARD_03 | {"security": [{"key": []}]}
    schemes = [{"securitySchemes": {"key": HEADER | {"name": name}}} for name in ("X-Key", "x-key")]
    assert of_cards(*(card | each for each in schemes)) == [("/security_schemes/key/name", "changed", False)]


def with_input(**schema: Any) -> dict[str, Any]:
    return ADD | {"inputSchema": ADD["inputSchema"] | schema}


PROPERTIES = ADD["inputSchema"]["properties"]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ([], [("/tools/add", "removed", True)]),
        ([ADD, ADD | {"name": "sub"}], [("/tools/sub", "added", False)]),
        ([ADD | {"description": "Adds numbers."}], [("/tools/add/description", "changed", False)]),
        ([ADD | {"annotations": {"readOnlyHint": False}}],
         [("/tools/add/annotations/readOnlyHint", "changed", False)]),
        ([with_input(required=["a"])], [("/tools/add/input_schema/required/mode", "removed", False)]),
        ([with_input(required=["a", "mode", "b"])],
         [("/tools/add/input_schema/required/b", "added", True)]),
        ([with_input(properties=PROPERTIES | {"b": {"type": "string"}})],
         [("/tools/add/input_schema/properties/b", "added", False)]),
        # A property that is called like the keyword is an optional input.
        ([with_input(properties=PROPERTIES | {"required": ["x"]})],
         [("/tools/add/input_schema/properties/required", "added", False)]),
        ([ADD | {"outputSchema": {"type": "object", "properties": {}}}],
         [("/tools/add/output_schema/properties/sum", "removed", True)]),
        ([ADD | {"outputSchema": None}], [("/tools/add/output_schema", "removed", True)]),
        ([ADD | {"outputSchema": ADD["outputSchema"] | {"required": ["sum"]}}],
         [("/tools/add/output_schema/required/sum", "added", False)]),
    ],
)  # fmt: skip
def test_tool_changes_are_listed_with_pointer_kind_and_breaking(new: list[Any], expected: Changes) -> None:
    assert of_tools([ADD], new) == expected


def test_entry_stored_as_a_digest_equals_the_full_entry() -> None:
    entry = {"description": "d"}
    whole = {"kind": "mcp_tools", "tools": {"a": entry}}
    assert changes(whole, {"kind": "mcp_tools", "tools": {"a": digest_form(entry)}}) == []
    other = {"kind": "mcp_tools", "tools": {"a": digest_form({"description": "e"})}}
    assert changes(whole, other) == [("/tools/a", "changed", False)]


def test_another_kind_of_target_breaks_callers() -> None:
    card = bounded_interface(InterfaceKind.AGENT_CARD, {}).form
    assert changes(card, tool_interface([]).form) == [("/kind", "changed", True)]
