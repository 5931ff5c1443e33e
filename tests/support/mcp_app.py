"""An MCP server on the Python SDK, bare or wrapped, for uvicorn: `bare:json:stateless` in MCP_APP_FORM."""

import os
from typing import Any

from mcp.server import MCPServer

from lifesign import AgentHealthMiddleware

server = MCPServer("tools", log_level="ERROR")


@server.tool()
def double(number: int) -> int:
    return 2 * number


@server.tool()
def fail() -> str:
    raise RuntimeError("the backend is down")


_wrapping, _content, _sessions = os.environ["MCP_APP_FORM"].split(":")
app: Any = server.streamable_http_app(
    json_response=_content == "json", stateless_http=_sessions == "stateless"
)
if _wrapping == "wrapped":
    app = AgentHealthMiddleware(app, agent_id="urn:example:tools", refresh_seconds=1)
