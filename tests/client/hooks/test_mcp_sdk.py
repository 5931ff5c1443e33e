"""The real client of the MCP SDK asks a real server over loopback, in each generation of the protocol."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from tests.support.uvicorn_thread import served

from lifesign import AgentHealthMiddleware
from lifesign.client.hooks import call_guard
from lifesign.client.hooks.call_guard import CallRefused
from lifesign.client.hooks.mcp_sdk import AdvisedTransport
from lifesign.domain.observation.decision import Action

LOGGER = call_guard.__name__
PATIENT_SECONDS = 60


@dataclass
class Tools:
    """An MCP server with a tool that notes its calls, a prompt and a resource."""

    calls: list[str] = field(default_factory=list)
    url: str = ""

    def app(self, url: str, outcome: str) -> Any:
        server = MCPServer("tools")

        @server.tool()
        def echo(text: str) -> str:
            """Return the text."""
            self.calls.append("tool")
            return text

        @server.prompt()
        def ask() -> str:
            """Ask."""
            self.calls.append("prompt")
            return "?"

        @server.resource("note://one")
        def note() -> str:
            """A note."""
            self.calls.append("resource")
            return "noted"

        app = AgentHealthMiddleware(server.streamable_http_app(), agent_id=url)
        for _ in range(20):
            app.health.record(outcome, latency_ms=1)
        return app


@pytest.fixture
def failing() -> Iterator[Tools]:
    tools = Tools()
    with served(lambda url: tools.app(url, "task_failed")) as url:
        tools.url = f"{url}/mcp"
        yield tools


@pytest.fixture
def healthy() -> Iterator[Tools]:
    tools = Tools()
    with served(lambda url: tools.app(url, "answered")) as url:
        tools.url = f"{url}/mcp"
        yield tools


async def echoed(client: Client | ClientSession) -> str:
    result: Any = await client.call_tool("echo", {"text": "hi"})
    return str(result.content[0].text)


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@MODES
async def test_a_server_to_avoid_is_called_with_a_warning(
    failing: Tools, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = AdvisedTransport(failing.url, timeout_seconds=PATIENT_SECONDS)
    async with Client(transport, mode=mode) as client:
        assert [await echoed(client) for _ in range(2)] == ["hi"] * 2
    (warning,) = [record for record in caplog.records if record.name == LOGGER]
    assert failing.url in warning.getMessage()


@MODES
async def test_a_server_to_avoid_is_not_called_if_the_caller_refuses(failing: Tools, mode: str) -> None:
    transport = AdvisedTransport(failing.url, refuse=True, timeout_seconds=PATIENT_SECONDS)
    async with Client(transport, mode=mode) as client:
        # Requests that call no tool are still sent, before and after a refusal.
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
        with pytest.raises(CallRefused) as refused:
            await echoed(client)
        assert refused.value.decision.action is Action.AVOID
        with pytest.raises(CallRefused):
            await client.get_prompt("ask")
        with pytest.raises(CallRefused):
            await client.read_resource("note://one")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
    assert failing.calls == []


@MODES
async def test_healthy_server_is_called_without_a_warning(
    healthy: Tools, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = AdvisedTransport(healthy.url, refuse=True, timeout_seconds=PATIENT_SECONDS)
    async with Client(transport, mode=mode) as client:
        assert await echoed(client) == "hi"
        await client.get_prompt("ask")
        await client.read_resource("note://one")
    assert healthy.calls == ["tool", "prompt", "resource"]
    assert [record for record in caplog.records if record.name.startswith("lifesign")] == []


async def test_a_session_over_any_transport_is_advised(failing: Tools, healthy: Tools) -> None:
    transport = AdvisedTransport(
        failing.url, streamable_http_client(healthy.url), refuse=True, timeout_seconds=PATIENT_SECONDS
    )
    async with transport as streams, ClientSession(*streams) as session:
        await session.initialize()
        with pytest.raises(CallRefused) as refused:
            await echoed(session)
    assert refused.value.url == failing.url
    assert healthy.calls == []


async def test_health_document_url_can_be_configured(failing: Tools, healthy: Tools) -> None:
    transport = AdvisedTransport(
        healthy.url,
        health_url=failing.url.replace("/mcp", "/.well-known/agent-health"),
        refuse=True,
        timeout_seconds=PATIENT_SECONDS,
    )
    async with Client(transport) as client:
        with pytest.raises(CallRefused) as refused:
            await echoed(client)
    assert refused.value.url == healthy.url
