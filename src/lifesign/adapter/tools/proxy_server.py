"""Server of the tool proxy, once an agent has connected.

It runs in a thread with a loop of its own: the agent decides how much arrives and how hard it is to parse,
and the adapter's loop must renew the lease meanwhile. The tool servers have another thread. The adapter's
loop only pays for the calls.

Loaded on demand: the MCP SDK and an HTTP server take half as much memory as everything else.
"""

import asyncio
import socket
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import uvicorn
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, Tool

from lifesign.adapter.tools.proxied_calls import ProxiedCalls
from lifesign.adapter.tools.proxy_app import ConcurrentMessageLimit, RequestCanceller
from lifesign.adapter.tools.proxy_context import ToolProxyContext
from lifesign.adapter.tools.tools_file import Upstreams
from lifesign.domain.parsing.json_limits import is_plain
from lifesign.mcp.authentication import Guard
from lifesign.mcp.http_app import app_of, config_of
from lifesign.mcp.listen_address import LOOPBACK_NAMES
from lifesign.mcp.refusal_code import ToolRefusalCode
from lifesign.mcp.server import server_of
from lifesign.mcp.tool_definition import ToolFailed

if TYPE_CHECKING:
    from lifesign.adapter.tools.server_thread import ServerThread, ThreadedServer

_Given = TypeVar("_Given")
ASIDE_SECONDS: Final = 30.0
"""Time of a call besides the server's own: for requests to the registry, before and after."""
GRACE_SECONDS: Final = 1.0
"""Time for running answers after the end of the run."""
FAREWELL_SECONDS: Final = 0.5
"""Time after that to notify clients of the end; then connections are closed."""
UVICORN_SECONDS: Final = 10
"""Time after which uvicorn itself would close them and log where each one was."""
END_SECONDS: Final = 3.0
"""Time for the thread to end. Calls that still run then are charged."""
LINGER_SECONDS: Final = 10.0
"""Time for the thread to end after that, since it closes the socket."""
SWITCH_SECONDS: Final = 0.0005
"""Maximum time that the thread runs Python code while the adapter's loop waits; the default is 0.005."""
SPARE_MESSAGES: Final = 4
"""Number of messages besides calls that are handled at once: lists of tools, and refusals."""
INSTRUCTIONS: Final = (
    "You work on a task under a lease. Call report_progress when you have something new to report; "
    "mark_complete with the result when all is done, or request_human_help when you cannot continue. "
    "Other tools are paid from the task's budget; a call whose error begins with budget_exceeded was "
    "not executed. After stale_token or lease_lost, stop: the task is not yours any more. After "
    "run_ended, stop: you have submitted the result."
)


class ProxyServer:
    """MCP server that offers one run's tools to the agent, in a thread of its own."""

    def __init__(self, held: ToolProxyContext, upstreams: Upstreams, token: str) -> None:
        limits = upstreams.limits
        self._thread, self._servers = _servers_of(upstreams, held)
        self._calls = ProxiedCalls(held, upstreams, self._servers)
        offer = _FromThread(self._calls, asyncio.get_running_loop())
        server = server_of(offer, "lifesign-tools", title="Tools of a task", instructions=INSTRUCTIONS)
        self._gate = ConcurrentMessageLimit(
            app_of(server, LOOPBACK_NAMES), most_at_once=limits.calls_at_once + SPARE_MESSAGES
        )
        call_seconds = limits.start_seconds + limits.call_seconds + ASIDE_SECONDS
        self._uvicorn = _ThreadedServer(RequestCanceller(Guard(self._gate, token, call_seconds=call_seconds)))
        self._has_ended = asyncio.Event()

    async def serve(self, listening: socket.socket) -> None:
        """Serve on an open socket until `end` is called.

        Then settle running calls, and end the upstream servers.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="tool proxy")
        serving = asyncio.get_running_loop().run_in_executor(thread, self._uvicorn.serve_in_thread, listening)
        ends = asyncio.ensure_future(self._has_ended.wait())
        try:
            await asyncio.wait((serving, ends), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((serving,), timeout=END_SECONDS)
        finally:
            self.end()
            ends.cancel()
            thread.shutdown(wait=False)
            await self._calls.close()
            await asyncio.gather(*(server.close() for server in self._servers.values()))
            if self._thread is not None:
                await self._thread.close()
            await asyncio.wait((serving,), timeout=LINGER_SECONDS)
        if serving.done():
            serving.result()

    def end(self) -> None:
        """Stop the server: it accepts no further call."""
        self._gate.end()
        self._uvicorn.should_exit = True
        self._has_ended.set()


class _FromThread:
    """The calls of a run, for a server in another thread than theirs."""

    def __init__(self, calls: ProxiedCalls, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._loop = loop

    async def list(self) -> Sequence[Tool]:
        return await self._there(self._calls.list())

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        if not is_plain(arguments):
            what = "arguments: expected plain JSON: finite numbers, and text without half surrogate pairs"
            refused = ToolFailed(what, code=ToolRefusalCode.INVALID_ARGUMENT)
            return await self._there(self._calls.refuse(name, refused))
        return await self._there(self._calls.call(name, arguments))

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        return self._calls.input_schema(name)

    async def _there(self, function: Coroutine[Any, Any, _Given]) -> _Given:
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function, self._loop))
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if asking is None or asking.cancelling():
                raise
            # The run has ended it there, and the SDK waits for an answer here.
            raise MCPError(INTERNAL_ERROR, "the run is over") from None


def _servers_of(
    upstreams: Upstreams, held: ToolProxyContext
) -> "tuple[ServerThread | None, dict[str, ThreadedServer]]":
    if not upstreams.upstreams:
        return None, {}
    from lifesign.adapter.tools.server_thread import ServerThread, ThreadedServer  # noqa: PLC0415 - YAML
    from lifesign.adapter.tools.upstream_server import UpstreamServer  # noqa: PLC0415 - it brings YAML

    thread = ServerThread()
    return thread, {
        name: ThreadedServer(
            UpstreamServer(
                name,
                upstream,
                upstreams.limits,
                run_deadline=held.run_deadline,
                agent_uid=held.agent_uid,
            ),
            thread,
        )
        for name, upstream in upstreams.upstreams.items()
    }


class _ThreadedServer(uvicorn.Server):
    """Serves in a thread, and leaves signals to the adapter."""

    def __init__(self, app: RequestCanceller) -> None:
        super().__init__(config_of(app, grace_seconds=UVICORN_SECONDS))
        self._app = app

    def serve_in_thread(self, listening: socket.socket) -> None:
        """Serve in the calling thread, with an event loop of its own, until `should_exit` is set."""
        sys.setswitchinterval(SWITCH_SECONDS)
        asyncio.run(self.serve([listening]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests go on for a grace period, then cancel them, and close their connections."""
        loop = asyncio.get_running_loop()
        loop.call_later(GRACE_SECONDS, self._app.end)
        loop.call_later(GRACE_SECONDS + FAREWELL_SECONDS, self._cut)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        """Close all connections: a client that sends without a pause would be read forever."""
        for connection in [*self.server_state.connections]:
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
