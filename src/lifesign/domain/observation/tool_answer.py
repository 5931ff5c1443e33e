"""Classification of the answer to a tool call of an MCP server.

A tool that fails answers with HTTP 200: SDKs turn its exception into `isError`. The definition names the tool
and its arguments, so that an error of any code is a failed call.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lifesign.domain.mcp.conversation import McpReply
from lifesign.domain.mcp.tools import tool_text
from lifesign.domain.observation.message_answer import MAX_SHOWN_CHARS
from lifesign.domain.observation.results import ResultClass

URL_ELICITATION_REQUIRED: Final = -32042
"""The tool asks the user to open a URL first: this is an answer."""


@dataclass(frozen=True, slots=True)
class ToolCallAnswer:
    """Result of a tool call, by the answer of the MCP server."""

    result: ResultClass
    reason: str = ""
    """For people; empty if the class is sufficient. May quote the peer."""


def classify_tool_answer(reply: McpReply) -> ToolCallAnswer | None:
    """Return the result of a tool call by its JSON-RPC answer; None without one: the HTTP answer decides."""
    if reply.code == URL_ELICITATION_REQUIRED:
        return ToolCallAnswer(ResultClass.OK, "the tool asks for more input")
    if reply.code is not None:
        return ToolCallAnswer(ResultClass.HTTP_ERROR, f"the tool call failed: JSON-RPC error {reply.code}")
    return None if reply.result is None else _classify_result(reply.result)


def _classify_result(result: Mapping[str, Any]) -> ToolCallAnswer:
    if result.get("isError", False) is not False:
        # No client takes any other value for a good result.
        text = tool_text(result)[:MAX_SHOWN_CHARS]
        return ToolCallAnswer(ResultClass.HTTP_ERROR, f"the tool failed{f': {text!a}' if text else ''}")
    if result.get("resultType") == "input_required":
        return ToolCallAnswer(ResultClass.OK, "the tool asks for more input")
    if not isinstance(result.get("content"), list) and "structuredContent" not in result:
        return ToolCallAnswer(ResultClass.INVALID_DOCUMENT, "the answer has no content of a tool")
    return ToolCallAnswer(ResultClass.OK)
