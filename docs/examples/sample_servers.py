"""MCP servers whose tool fails behind HTTP 200.

    python sample_servers.py wrapped | bare

Serves one of two servers, built with the MCP SDK, on a free port of this machine. It prints the URL of its
endpoint, and runs until its standard input ends. "wrapped" has a health document, "bare" has none.
"""

import argparse
import os
import signal
import socket
import sys
import threading
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from lifesign import AgentHealthMiddleware

server = MCPServer("weather", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def forecast(city: str) -> str:
    """Return the weather of a city."""
    # The SDK turns the exception into a result with isError: true, and HTTP answers 200.
    raise ConnectionError(f"the database with the weather of {city} does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a sample MCP server until standard input ends.")
    parser.add_argument("kind", choices=["wrapped", "bare"])
    kind = parser.parse_args().kind
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    app: Any = server.streamable_http_app(json_response=True)
    if kind == "wrapped":
        app = AgentHealthMiddleware(app, agent_id=url, refresh_seconds=1)
    # Standard input is a pipe from the program that started this server: the server ends with it.
    threading.Thread(target=_end_with_input, daemon=True).start()
    print(url, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
