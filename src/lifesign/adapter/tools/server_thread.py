"""Thread of a run's tool servers, with an event loop of its own.

A server decides how large its answers are and how hard they are to parse, and the adapter's loop must renew
the lease meanwhile.
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from mcp_types import CallToolResult, Tool

from lifesign.adapter.tools.upstream_server import UpstreamServer

END_SECONDS: Final = 10.0
"""Time for the thread to end. It is no reason for the process to stay."""

_Given = TypeVar("_Given")


class ServerThread:
    """Runs coroutines in a thread. It starts at once; `close` ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tool servers", daemon=True)
        self._thread.start()

    async def run(self, function: Coroutine[Any, Any, _Given]) -> _Given:
        """Run a coroutine in the thread and return its result. A cancellation cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function, self._loop))

    async def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._loop.call_soon_threadsafe(self._is_ending.set)
        await asyncio.to_thread(self._thread.join, END_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_ending())

    async def _until_ending(self) -> None:
        await self._is_ending.wait()


class ThreadedServer:
    """A tool server in the thread of the servers, for callers in other threads."""

    def __init__(self, server: UpstreamServer, thread: ServerThread) -> None:
        self.name = server.name
        self._server = server
        self._thread = thread

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Tools when the server last listed them, by its own names."""
        return self._server.tools

    def clean_text(self, text: str) -> str:
        """Return a text without the secrets that the tools file gives to the server."""
        return self._server.clean_text(text)

    async def learn(self) -> None:
        """Start the server if that was not done, else request its list of tools again."""
        await self._thread.run(self._server.learn())

    async def check(self, tool: str) -> None:
        """Start the server if that was not done; ToolFailed if it has started and does not offer the tool."""
        await self._thread.run(self._server.check(tool))

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool of the server; ToolFailed if there is no answer that can be passed on."""
        return await self._thread.run(self._server.call(tool, arguments))

    async def close(self) -> None:
        """Stop the server."""
        await self._thread.run(self._server.close())
