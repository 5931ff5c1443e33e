"""How is it served to the program that started it?

Over the pipes to its parent, which is trusted as whoever typed the command is. Nothing but the protocol is
written to standard output: while it is served, what anybody else writes there goes to standard error.
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
