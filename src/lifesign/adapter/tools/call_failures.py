"""Failures of calls to a tool server, and whether the call may have been executed.

Only the server knows. Therefore an unclear failure counts as possibly executed, and is paid.
"""

from mcp_types import CallToolResult

from lifesign.mcp.tool_definition import ToolFailed


class CallNotExecuted(ToolFailed):
    """A tool call was certainly not executed: it was not sent, or the server itself reported a failure."""


class ResultWithheld(ToolFailed):
    """The server has answered, but the answer cannot be passed on."""

    def __init__(self, text: str, *, code: str, answer: CallToolResult) -> None:
        super().__init__(text, code=code)
        self.answer = answer
