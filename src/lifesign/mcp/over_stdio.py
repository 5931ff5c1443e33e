"""MCP server over stdio, for the program that started it.

The parent process at the other end of the pipes is trusted like the user of a command. Standard output
belongs to the protocol: other output of this process goes to standard error meanwhile.
"""

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server

from lifesign.domain.parsing.surrogate_escapes import replace_half_pairs


async def over_stdio(server: Server) -> None:
    """Serve one client until it closes the standard input of this process."""
    if threading.current_thread() is threading.main_thread():
        # A thread waits for the next line, and cannot be called back: there is nothing to save either.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    incoming_lines: Any = _StandardInput()
    try:
        async with stdio_server(stdin=incoming_lines) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    except* BrokenPipeError:
        # The client has ended during a call.
        pass


class _StandardInput:
    """Standard input, line by line, as the SDK reads a text file."""

    async def __aiter__(self) -> AsyncIterator[str]:
        # Not closed, as a thread may still read it at the end.
        with os.fdopen(os.dup(sys.stdin.fileno()), "rb", closefd=False) as opened:
            async for line in anyio.wrap_file(opened):
                yield replace_half_pairs(line).decode("utf-8", "replace")
