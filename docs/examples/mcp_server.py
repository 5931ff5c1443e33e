"""An MCP server with a health document.

uvicorn --app-dir docs/examples mcp_server:app
"""

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from lifesign import AgentHealthMiddleware

server = MCPServer("weather")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def forecast(city: str) -> str:
    """Return the weather of a city."""
    if city == "Atlantis":
        raise LookupError("no station there")
    return f"It is sunny in {city}."


plain = server.streamable_http_app(stateless_http=True, json_response=True)
app = AgentHealthMiddleware(plain, agent_id="https://weather.example.com/mcp")
