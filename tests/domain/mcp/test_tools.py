import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.mcp.conversation import CURRENT_VERSION, Generation, McpReply, McpSession
from lifesign.domain.mcp.tools import (
    MAX_CURSOR_CHARS,
    MAX_PARAM_HEADERS,
    MAX_TOOL_NAME_CHARS,
    call_request,
    is_marked_read_only,
    list_request,
    read_page,
    tool_named,
    tool_text,
    tool_value,
)

STATELESS = McpSession(Generation.STATELESS, CURRENT_VERSION)
SESSION = McpSession(Generation.HANDSHAKE, "2025-11-25", "s")


def schema(**properties: Any) -> dict[str, Any]:
    return {"name": "search", "inputSchema": {"type": "object", "properties": properties}}


def marked(token: str, kind: str = "string") -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": token}


def headers(tool: dict[str, Any], arguments: dict[str, Any], name: str = "search") -> dict[str, str]:
    sent = call_request(STATELESS, name, arguments, tool, request_id=3).headers
    return {key: value for key, value in sent.items() if key.startswith(("Mcp-Name", "Mcp-Param-"))}


def test_list_request_has_the_cursor_of_its_page() -> None:
    assert "cursor" not in json.loads(list_request(STATELESS, None, request_id=2).body)["params"]
    assert json.loads(list_request(SESSION, "c", request_id=2).body)["params"] == {"cursor": "c"}


def test_page_has_the_tools_with_a_usable_name() -> None:
    tools = [{"name": "a"}, {"name": ""}, {"name": 1}, "x", {"name": "b" * (MAX_TOOL_NAME_CHARS + 1)}]
    page = read_page(McpReply(result={"tools": tools, "nextCursor": "2"}))
    assert page is not None
    assert [tool["name"] for tool in page.tools] == ["a"]
    assert page.next_cursor == "2"
    assert tool_named(page.tools, "a") == {"name": "a"}
    assert tool_named(page.tools, "b") is None


@pytest.mark.parametrize(
    "result",
    [
        None,
        {},
        {"tools": {}},
        {"tools": [], "nextCursor": 1},
        {"tools": [], "nextCursor": "x" * (MAX_CURSOR_CHARS + 1)},
    ],
)
def test_invalid_tool_list_result_is_no_page(result: dict[str, Any] | None) -> None:
    assert read_page(McpReply(result=result)) is None


@pytest.mark.parametrize(
    ("annotations", "is_marked"),
    [({"readOnlyHint": True}, True), ({"readOnlyHint": 1}, False), ({}, False), (None, False), ([], False)],
)
def test_only_true_marks_a_tool_as_read_only(annotations: object, *, is_marked: bool) -> None:
    assert is_marked_read_only({"name": "a", "annotations": annotations}) == is_marked


def test_call_in_a_session_repeats_nothing_in_headers() -> None:
    sent = call_request(SESSION, "search", {"q": "x"}, schema(q=marked("Query")), request_id=3)
    assert "Mcp-Name" not in sent.headers
    assert json.loads(sent.body)["params"] == {"name": "search", "arguments": {"q": "x"}}


def test_stateless_call_repeats_its_name_and_the_marked_arguments() -> None:
    tool = schema(
        region=marked("Region"),
        count=marked("Count", "integer"),
        dry=marked("Dry", "boolean"),
        price=marked("Price", "number"),
        other={"type": "string"},
        inner={"type": "object", "properties": {"deep": marked("Deep")}},
        absent=marked("Absent"),
    )
    arguments = {
        "region": "eu", "count": 3, "dry": True, "price": 1.5, "other": "x", "inner": {"deep": "down"},
    }  # fmt: skip
    assert headers(tool, arguments) == {
        "Mcp-Name": "search",
        "Mcp-Param-Region": "eu",
        "Mcp-Param-Count": "3",
        "Mcp-Param-Dry": "true",
        "Mcp-Param-Deep": "down",
    }


@pytest.mark.parametrize("text", ["Zürich", " x", "x ", "a\r\nb", "", "=?base64?eA==?="])
def test_value_that_a_header_would_change_is_encoded(text: str) -> None:
    value = headers(schema(q=marked("Q")), {"q": text})["Mcp-Param-Q"]
    assert base64.b64decode(value.removeprefix("=?base64?").removesuffix("?=")).decode() == text


@pytest.mark.parametrize(
    "tool",
    [
        schema(a=marked("X"), b=marked("x")),
        schema(a=marked("a b")),
        schema(a={"type": ["string"], "x-mcp-header": "A"}),
        schema(a={"x-mcp-header": "A"}),
        {"name": "search", "inputSchema": []},
        {"name": "search"},
    ],
)
def test_invalid_header_marks_of_a_schema_add_no_headers(tool: dict[str, Any]) -> None:
    assert headers(tool, {"a": "1", "b": "2"}) == {"Mcp-Name": "search"}


def test_number_of_mirrored_arguments_is_bounded() -> None:
    names = [f"n{number}" for number in range(MAX_PARAM_HEADERS + 1)]
    tool = schema(**{name: marked(name) for name in names})
    assert len(headers(tool, dict.fromkeys(names, "x"))) == 1
    assert len(headers(tool, dict.fromkeys(names[1:], "x"))) == 1 + MAX_PARAM_HEADERS


def test_text_and_value_of_a_result() -> None:
    content = [
        {"type": "text", "text": "a"},
        {"type": "image"},
        7,
        {"text": 1},
        {"type": "text", "text": "b"},
    ]
    assert tool_text({"content": content}) == "a\nb"
    assert tool_value({"content": content}) == content
    assert tool_value({"content": content, "structuredContent": {"x": 1}}) == {"x": 1}
    assert (tool_text(None), tool_value(None)) == ("", None)
    assert tool_text({"content": "x"}) == ""


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=examples(50))
@given(JSON_VALUES, st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=3), st.text(max_size=20))
def test_any_schema_gives_printable_ascii_headers(
    properties: Any, arguments: dict[str, Any], name: str
) -> None:
    tool = {"name": "t", "inputSchema": {"properties": properties}}
    for value in headers(tool, arguments, name).values():
        assert value.isascii()
        assert value.isprintable()
