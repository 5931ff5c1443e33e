"""Tools of an MCP server: pages of `tools/list`, whether a tool may be called, its call and its result."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from lifesign.domain.mcp.conversation import Generation, McpReply, McpRequest, McpSession

MAX_PAGES: Final = 20
MAX_TOOLS: Final = 1_000
MAX_COMPARED_TOOLS: Final = 100
"""Maximum number of names that are compared with one that is not in the list."""
MAX_LIST_BYTES: Final = 2 * 1024 * 1024
"""Maximum size of all pages of a list of tools together."""
MAX_CURSOR_CHARS: Final = 4_096
MAX_TOOL_NAME_CHARS: Final = 128
MAX_PARAM_HEADERS: Final = 32
MAX_TEXT_CHARS: Final = 1024 * 1024
"""Maximum length of a tool's text."""
MAX_SCHEMA_DEPTH: Final = 8
"""Arguments that are nested deeper are not repeated in headers."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_PLAIN_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_ENCODED_VALUE: Final = re.compile(r"=\?base64\?.*\?=")
_MIRRORED_TYPES: Final = frozenset({"string", "integer", "boolean"})


@dataclass(frozen=True, slots=True)
class ToolPage:
    """One page of a server's list of tools (`tools/list`)."""

    tools: Sequence[Mapping[str, Any]]
    next_cursor: str | None = None
    """None on the last page."""


def list_request(session: McpSession, cursor: str | None, *, request_id: int) -> McpRequest:
    """Return a request of `tools/list` for the page at this cursor; None: the first page."""
    params = {} if cursor is None else {"cursor": cursor}
    return session.request("tools/list", params, request_id=request_id)


def read_page(reply: McpReply) -> ToolPage | None:
    """Return the page of tools in an answer; None if the answer is not valid.

    An entry without a usable name is left out.
    """
    tools = None if reply.result is None else reply.result.get("tools")
    cursor = None if reply.result is None else reply.result.get("nextCursor")
    is_cursor = cursor is None or (isinstance(cursor, str) and len(cursor) <= MAX_CURSOR_CHARS)
    if not isinstance(tools, list) or not is_cursor:
        return None
    return ToolPage([tool for tool in tools if isinstance(tool, dict) and _has_name(tool)], cursor)


def tool_named(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Return the first tool of this name; if there are several, the first that is not marked read-only."""
    named = [tool for tool in tools if tool["name"] == name]
    return next((tool for tool in named if not is_marked_read_only(tool)), named[0] if named else None)


def near_names(tools: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return up to three names of tools that resemble this name, for a hint."""
    names = [tool["name"] for tool in tools[:MAX_COMPARED_TOOLS]]
    return get_close_matches(name, names)


def is_marked_read_only(tool: Mapping[str, Any]) -> bool:
    """Return whether the server marks a tool as read-only (`annotations.readOnlyHint`)."""
    annotations = tool.get("annotations")
    return isinstance(annotations, dict) and annotations.get("readOnlyHint") is True


def call_request(
    session: McpSession,
    name: str,
    arguments: Mapping[str, Any],
    tool: Mapping[str, Any] | None,
    *,
    request_id: int,
) -> McpRequest:
    """Return a request of `tools/call`. `tool` is the tool's entry in the list, None if unknown.

    Since 2026-07-28, headers repeat the name, and the arguments that the tool's schema marks.
    """
    headers: dict[str, str] = {}
    if session.generation is Generation.STATELESS:
        headers = {"Mcp-Name": _header_value(name), **_param_headers(tool or {}, arguments)}
    params = {"name": name, "arguments": arguments}
    return session.request("tools/call", params, request_id=request_id, headers=headers)


def tool_value(result: Mapping[str, Any] | None) -> Any:
    """Return the part of a tool's result that assertions check: `structuredContent`, else `content`."""
    if result is None:
        return None
    return result.get("structuredContent", result.get("content"))


def tool_text(result: Mapping[str, Any] | None) -> str:
    """Return the text parts of a tool's result, joined by newlines."""
    content = None if result is None else result.get("content")
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))[:MAX_TEXT_CHARS]


def _has_name(tool: Mapping[str, Any]) -> bool:
    name = tool.get("name")
    return isinstance(name, str) and 0 < len(name) <= MAX_TOOL_NAME_CHARS


def _param_headers(tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the headers that repeat arguments, as `x-mcp-header` of the tool's schema says."""
    headers: dict[str, str] = {}
    names: set[str] = set()
    for token, value in _mirrored(tool.get("inputSchema"), arguments, MAX_SCHEMA_DEPTH):
        if len(names) == MAX_PARAM_HEADERS or token.lower() in names:
            # Two arguments in one header are an error of the schema.
            return MappingProxyType({})
        names.add(token.lower())
        headers[f"Mcp-Param-{token}"] = _header_value(value)
    return headers


def _mirrored(schema: object, arguments: object, depth: int) -> Iterator[tuple[str, str]]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not isinstance(arguments, Mapping) or not depth:
        return
    for name, value in arguments.items():
        inner = properties.get(name)
        if not isinstance(inner, dict):
            continue
        token, kind = inner.get("x-mcp-header"), inner.get("type")
        is_marked = isinstance(token, str) and _TOKEN.fullmatch(token) and isinstance(kind, str)
        if is_marked and kind in _MIRRORED_TYPES and isinstance(value, str | int):
            yield str(token), str(value).lower() if isinstance(value, bool) else str(value)
        yield from _mirrored(inner, value, depth - 1)


def _header_value(text: str) -> str:
    """Return a text as the value of a header, encoded if it would not arrive unchanged."""
    if _PLAIN_VALUE.fullmatch(text) and not _ENCODED_VALUE.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='replace')).decode()}?="
