"""Interfaces of MCP servers: their tools by name."""

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.published_interface.test_card_interface import shuffled
from tests.support.cards import JSON
from tests.support.properties import examples

from lifesign.domain.published_interface.comparison import compare
from lifesign.domain.published_interface.published import (
    MAX_INTERFACE_BYTES,
    InterfaceKind,
    check_interface,
    is_digest,
)
from lifesign.domain.published_interface.tool_interface import MAX_SCHEMA_LEVELS, tool_interface

ADD: dict[str, Any] = {
    "name": "add",
    "title": "Add",
    "description": "Adds numbers",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": ["number", "null"]}, "mode": {"enum": ["fast", "exact"]}},
        "required": ["a", "mode"],
    },
    "outputSchema": {"type": "object", "properties": {"sum": {"type": "number"}}},
    "annotations": {"readOnlyHint": True},
}
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", ""]) | st.text()},
        optional=dict.fromkeys(("title", "description", "inputSchema", "outputSchema", "annotations"), JSON),
    )
    | JSON,
    max_size=5,
)


def test_tool_interface_keeps_the_published_members() -> None:
    interface = tool_interface([ADD])
    assert interface.kind is InterfaceKind.MCP_TOOLS
    tool = interface.form["tools"]["add"]
    assert tool.keys() == {"title", "description", "input_schema", "output_schema", "annotations"}
    assert tool["input_schema"]["required"] == ["a", "mode"]


@settings(max_examples=examples(50))
@given(st.randoms(use_true_random=False))
def test_order_of_tools_members_and_sets_is_ignored(chance: random.Random) -> None:
    tools = [ADD, ADD | {"name": "sub"}, ADD | {"title": "Other"}]
    assert tool_interface(shuffled(tools, chance)).digest == tool_interface(tools).digest


def test_order_of_other_lists_is_compared() -> None:
    first = ADD | {"inputSchema": {"prefixItems": [{"type": "string"}, {"type": "number"}]}}
    second = ADD | {"inputSchema": {"prefixItems": [{"type": "number"}, {"type": "string"}]}}
    assert tool_interface([first]).digest != tool_interface([second]).digest


@settings(max_examples=examples(100))
@given(TOOLS)
def test_any_tools_give_a_bounded_interface_that_equals_itself(tools: list[Any]) -> None:
    interface = tool_interface(tools)
    assert len(interface.text) <= MAX_INTERFACE_BYTES
    form = check_interface(json.loads(interface.text))
    assert compare(form, interface.form).changes == ()


def test_schema_that_is_too_large_or_too_deep_is_a_digest() -> None:
    large = {"properties": {f"p{place}": {"description": "d" * 200} for place in range(100)}}
    deep: dict[str, Any] = {"type": "string", "note": "a"}
    for _ in range(200):
        deep = {"properties": {"p": deep}}
    form = tool_interface([ADD | {"inputSchema": large, "outputSchema": deep}]).form["tools"]["add"]
    assert is_digest(form["input_schema"])
    inner: Any = form["output_schema"]
    for _ in range(MAX_SCHEMA_LEVELS):
        inner = inner["properties" if "properties" in inner else "p"]
    assert is_digest(inner)


def test_schema_beyond_the_depth_of_the_encoder_is_a_digest() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"properties": deep}
    assert is_digest(tool_interface([ADD | {"inputSchema": deep}]).form["tools"]["add"]["input_schema"])


def test_schema_that_looks_like_a_digest_is_hashed() -> None:
    claimed = {"sha256": "0" * 64}
    form = tool_interface([ADD | {"inputSchema": claimed}]).form["tools"]["add"]["input_schema"]
    assert is_digest(form)
    assert form != claimed


def test_numbers_beyond_the_doubles_are_texts() -> None:
    interface = tool_interface([ADD | {"annotations": {"big": 10**400, "infinite": float("inf")}}])
    check_interface(interface.form)
    assert isinstance(interface.form["tools"]["add"]["annotations"]["infinite"], str)
