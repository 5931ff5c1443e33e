"""Tool proxy: the MCP server for an agent under a lease (protocol 6.11).

An MCP server (streamable HTTP, stateless) on loopback, at a free port, for clients with the run's token: only
the agent's process gets it, and it is valid for this run only. It is the only way to metered tools. Without
servers in a tools file, it is only a socket until a client connects.
"""

import asyncio
import importlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from lifesign.adapter.tools.proxy_context import ToolProxyContext
from lifesign.adapter.tools.tools_file import NO_UPSTREAMS, Upstreams
from lifesign.mcp.authentication import PATH, new_token
from lifesign.serving.listening_socket import bound, url_of

if TYPE_CHECKING:
    from lifesign.adapter.tools.proxy_server import ProxyServer

HOST: Final = "127.0.0.1"
_log = logging.getLogger("lifesign.adapter.tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProxy:
    """URL and token of a running tool proxy, for the agent's process."""

    url: str
    run_token: str = field(repr=False)


@asynccontextmanager
async def open_tool_proxy(
    held: ToolProxyContext, upstreams: Upstreams | None = None
) -> AsyncIterator[OpenProxy]:
    """Start an MCP server that offers the tools of a run until the block ends; upstream servers end with it.

    CannotListen; ModuleNotFoundError without the extra `mcp`.
    """
    if find_spec("mcp") is None:
        raise ModuleNotFoundError("the tool proxy needs the extra mcp", name="mcp")
    token = new_token()
    with bound(HOST, 0) as listening:
        serving = asyncio.create_task(_serve(held, upstreams or NO_UPSTREAMS, token, listening))
        try:
            yield OpenProxy(url=url_of(listening, HOST) + PATH, run_token=token)
        finally:
            await _ended(serving)


async def _serve(held: ToolProxyContext, upstreams: Upstreams, token: str, listening: socket.socket) -> None:
    """Wait for the first connection, then serve until cancelled."""
    if not upstreams.upstreams:
        # An agent that never requests tools does not pay for them. An agent with a tools file does request
        # them.
        await _connected(listening)
    try:
        # An agent that waits for its first answer does not hang.
        with held.progress():
            # In a thread: it takes a second or two, in which the lease must be renewed.
            module: Any = await asyncio.to_thread(
                importlib.import_module, "lifesign.adapter.tools.proxy_server"
            )
        await _connected(listening)
        server: ProxyServer = module.ProxyServer(held, upstreams, token)
    except Exception:
        _log.exception("the tool proxy could not start")
        raise
    serving = asyncio.ensure_future(server.serve(listening))
    try:
        await asyncio.shield(serving)
    finally:
        server.end()
        await serving


async def _connected(listening: socket.socket) -> None:
    """Wait until a connection can be accepted."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(listening.fileno(), came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(listening.fileno())


async def _ended(serving: "asyncio.Task[None]") -> None:
    serving.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await serving
