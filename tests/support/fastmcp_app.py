"""An MCP server on fastmcp, bare and wrapped, for uvicorn in `.venv-fastmcp`: `app` and `wrapped`.

FASTMCP_APP_FORM is its form, such as `json:stateless`; without it that is `sse:stateful`.
"""

import os
from typing import Any

from fastmcp import FastMCP

from lifesign import AgentHealthMiddleware

server: Any = FastMCP("tools")


@server.tool(annotations={"readOnlyHint": True})  # type: ignore[untyped-decorator]
def double(number: int) -> int:
    return 2 * number


@server.tool  # type: ignore[untyped-decorator]
def fail() -> str:
    raise RuntimeError("the backend is down")


_content, _, _sessions = os.environ.get("FASTMCP_APP_FORM", "sse:stateful").partition(":")
_form = {"json_response": _content == "json", "stateless_http": _sessions == "stateless"}
app: Any = server.http_app(**_form)
wrapped = AgentHealthMiddleware(server.http_app(**_form), agent_id="urn:example:tools", refresh_seconds=1)
