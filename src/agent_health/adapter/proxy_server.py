"""How is the tool proxy served, once an agent has connected?

Loaded when that happens: uvicorn and the models of MCP take some MiB. The SDK is loaded where the tools file
names servers, and takes as much memory as half of all the rest.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Final

import uvicorn
from mcp_types import Implementation

from agent_health.adapter.held_work import HeldWork
from agent_health.adapter.lease_timer import LeaseTimer
from agent_health.adapter.proxied_calls import ProxiedCalls
from agent_health.adapter.proxy_answers import ProxyAnswers
from agent_health.adapter.proxy_app import Ending, ProxyApp
from agent_health.adapter.upstreams import Upstreams
from agent_health.mcp.guard import Guard
from agent_health.mcp.http_server import config_of
from agent_health.mcp.place import LOOPBACK_NAMES

if TYPE_CHECKING:
    from agent_health.adapter.upstream_server import UpstreamServer

ASIDE_SECONDS: Final = 30.0
"""Of a call, beside what the server may take: for the registry, before and after."""
GRACE_SECONDS: Final = 1
"""For answers under way when the run is over."""
INSTRUCTIONS: Final = (
    "You work at a task under a lease. report_progress when you have something new to say; mark_complete "
    "with the result when all is done, or request_human_help when you cannot go on. Other tools are paid out "
    "of the task's budget; an error that begins with budget_exceeded was not carried out. After stale_token "
    "or lease_lost, stop: the task is not yours any more. After run_ended, stop: you have handed it in."
)


class ProxyServer:
    """Serves one run's tools on a socket that listens already."""

    def __init__(self, held: HeldWork, upstreams: Upstreams, token: str) -> None:
        limits = upstreams.limits
        self._servers = _servers_of(upstreams, held.timer)
        self._calls = ProxiedCalls(held, upstreams, self._servers)
        about = Implementation(
            name="agent-health-tools", version=metadata.version("agent-health"), title="The tools of a task"
        )
        app = ProxyApp(ProxyAnswers(self._calls, about, INSTRUCTIONS), LOOPBACK_NAMES)
        call_seconds = limits.start_seconds + limits.call_seconds + ASIDE_SECONDS
        guarded = Guard(app, token, call_seconds=call_seconds)
        self._ending = Ending(guarded)
        self._uvicorn = _Server(config_of(self._ending, grace_seconds=2 * GRACE_SECONDS, lifespan="off"))

    async def serve(self, listening: socket.socket) -> None:
        """Serve until `end`."""
        try:
            await self._uvicorn.serve([listening])
        finally:
            await self._calls.close()
            await asyncio.gather(*(server.close() for server in self._servers.values()))

    def end(self) -> None:
        """Take no call any more, and end."""
        self._uvicorn.should_exit = True
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._ending.end)


def _servers_of(upstreams: Upstreams, timer: LeaseTimer | None) -> dict[str, "UpstreamServer"]:
    if not upstreams.upstreams:
        return {}
    from agent_health.adapter.upstream_server import UpstreamServer  # noqa: PLC0415 - it brings the SDK

    limits = upstreams.limits
    return {
        name: UpstreamServer(name, upstream, limits, timer=timer)
        for name, upstream in upstreams.upstreams.items()
    }


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the agent."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
