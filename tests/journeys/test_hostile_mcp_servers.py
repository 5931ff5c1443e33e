"""Hostile MCP servers on loopback: each probe and each check ends with a class, and leaves nothing open."""

import asyncio
import socket
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.hostile_mcp import OVER_HTTP, OVER_SSE, Hostile, HostileStream, reacting
from tests.support.open_files import nothing_left_over
from tests.support.probing import PATIENT, SHORT_SECONDS, layer, probing

from lifesign.client import fetch_health

SERVERS = {f"HTTP: {name}": server for name, server in OVER_HTTP.items()} | {
    f"SSE: {name}": server for name, server in OVER_SSE.items()
}
LATE = PATIENT | {"first_byte_seconds": SHORT_SECONDS, "total_seconds": 2 * SHORT_SECONDS}

hostile = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)


def run(server: Hostile | HostileStream) -> AbstractAsyncContextManager[str]:
    return reacting(server.react) if isinstance(server, Hostile) else server.serving()


@hostile
async def test_probe_ends_with_a_class_and_leaves_nothing_open(server: Hostile | HostileStream) -> None:
    timeouts = LATE if server.is_late else PATIENT
    async with run(server) as url:
        target = {"url": url, "kind": "mcp", "ask": {"health": False, "tools": True}}
        async with probing(targets=[target], timeouts=timeouts) as probes, nothing_left_over():
            first = await probes.see(url)
            again = await probes.see(url)
    for observation in (first, again):
        discovery = layer(observation.discovery)
        assert server.discovery in {discovery.result, None}
        assert discovery.has_failed is (server.discovery != "ok")
        tools = observation.tools and observation.tools.result
        assert tools == server.tools


@hostile
async def test_check_ends_with_a_class_and_leaves_nothing_open(server: Hostile | HostileStream) -> None:
    async with run(server) as url, nothing_left_over():
        seconds = 2 * SHORT_SECONDS if server.is_late else 60.0
        checked = await fetch_health(url, kind="mcp", identify=True, timeout_seconds=seconds)
    assert checked.server is not None
    assert checked.server.is_server is (server.discovery == "ok")
    assert checked.decision.reasons


def a_task() -> asyncio.Task[None]:
    return asyncio.ensure_future(asyncio.sleep(60))


@pytest.mark.parametrize("leaking", [a_task, socket.socket, tempfile.TemporaryFile])
async def test_open_sockets_and_files_are_detected(leaking: Callable[[], Any]) -> None:
    left = None
    with pytest.raises(AssertionError):
        async with nothing_left_over(pauses=1):
            left = leaking()
    if isinstance(left, asyncio.Task):
        left.cancel()
    elif left is not None:
        left.close()
