"""How has a call of a server's tool failed: was it carried out all the same?

Nobody is told so but by the server. So a failure that says nothing else leaves it open, and is paid for.
"""

from mcp_types import CallToolResult

from lifesign.mcp.tool import ToolFailed


class CallNotExecuted(ToolFailed):
    """The call was never sent, or the server's own answer is that it has failed."""


class ResultWithheld(ToolFailed):
    """The server has answered, with what is not handed on."""

    def __init__(self, text: str, *, code: str, answer: CallToolResult) -> None:
        super().__init__(text, code=code)
        self.answer = answer
