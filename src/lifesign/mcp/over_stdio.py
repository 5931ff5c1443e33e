"""MCP server over stdio, for the program that started it.

The parent process at the other end of the pipes is trusted like the user of a command. Standard output
belongs to the protocol: other output of this process goes to standard error meanwhile.
"""

import signal
import threading

from mcp.server import Server
from mcp.server.stdio import stdio_server


async def over_stdio(server: Server) -> None:
    """Serve one client until it closes our standard input."""
    if threading.current_thread() is threading.main_thread():
        # A thread waits for the next line, and cannot be called back: there is nothing to save either.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
