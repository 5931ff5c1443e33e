"""An MCP server on fastmcp, bare and wrapped, for uvicorn in `.venv-fastmcp`: `app` and `wrapped`."""

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


app: Any = server.http_app()
wrapped = AgentHealthMiddleware(server.http_app(), agent_id="urn:example:tools", refresh_seconds=1)
