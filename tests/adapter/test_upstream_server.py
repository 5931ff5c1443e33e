"""How is one upstream MCP server kept alive, and asked? Real processes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import upstream_tools
from tests.support.mcp_tools import text_of
from tests.support.servers import REPOSITORY

from agent_health.adapter import upstream_server
from agent_health.adapter.upstream_server import UpstreamServer
from agent_health.adapter.upstreams import Limits, Upstream
from agent_health.mcp.tool import ToolFailed

PROGRAM = str(REPOSITORY / "tests" / "support" / "upstream_tools.py")


@asynccontextmanager
async def started(
    command: list[str], secrets: Mapping[str, str] | None = None, *, start_seconds: float = 30, **said: Any
) -> AsyncIterator[UpstreamServer]:
    upstream = Upstream.model_validate(
        {"command": command, "offer_all": True, "price": {"usd_per_call": 0}, **said}
    )
    limits = Limits(start_seconds=start_seconds)
    server = UpstreamServer("acme", upstream, limits, environment=secrets or {}, chance=lambda: 0.0)
    try:
        yield server
    finally:
        await server.close()


def program(record: Path | str) -> list[str]:
    return [sys.executable, PROGRAM, str(record)]


async def running(server: UpstreamServer) -> None:
    """Wait until it answers."""
    async with asyncio.timeout(30):
        while True:
            try:
                await server.call("fetch", {})
            except ToolFailed:
                await asyncio.sleep(0.05)
            else:
                return


async def test_one_that_dies_fails_the_call_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    async with started(program(tmp_path / "record")) as server:
        assert text_of(await server.call("fetch", {})) == "fetch"
        assert set(server.tools) == set(upstream_tools.NAMES)
        with pytest.raises(
            ToolFailed, match="acme is gone in the middle of the call; whether it was"
        ) as gone:
            await server.call("die", {})
        assert gone.value.code == "upstream_unavailable"
        # Nobody waits for one that is down.
        with pytest.raises(ToolFailed, match="acme does not run: it is being started again; try again later"):
            await server.call("fetch", {})
        await running(server)


async def test_a_secret_reaches_the_server_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_HEALTH_KEY", "ahk_of_the_adapter")
    (tmp_path / "key").write_text("from a file\n")
    said = {"ONE": {"variable": "MINE"}, "TWO": {"file": str(tmp_path / "key"), "prefix": "Bearer "}}
    async with started(program(tmp_path / "record"), {"MINE": "s3cret"}, environment=said) as server:
        found = [
            text_of(await server.call("environment", {"name": name}))
            for name in ("ONE", "TWO", "AGENT_HEALTH_KEY", "MINE")
        ]
    assert found == ["s3cret", "Bearer from a file", "", ""]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/no/such/program"], "No such file or directory"),
        ([sys.executable, "-c", "print('hello')"], "Connection closed"),
        (program("never"), "it did not start within 1 s"),
    ],
    ids=["absent", "no server", "silent"],
)
async def test_one_that_does_not_start_is_told_with_the_reason(command: list[str], why: str) -> None:
    async with started(command, start_seconds=1) as server:
        with pytest.raises(ToolFailed, match=f"acme does not run: {why}; try again later"):
            await server.call("fetch", {})
        assert not server.tools


async def test_a_secret_that_is_gone_by_then_is_named() -> None:
    async with started(["/bin/true"], environment={"ONE": {"variable": "MINE"}}) as server:
        with pytest.raises(ToolFailed, match="acme does not run: variable: expected one that is set: MINE"):
            await server.call("fetch", {})
