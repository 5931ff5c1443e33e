"""Calls tools as a model's client does."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp import Client
from mcp.server import Server
from mcp_types import CallToolResult, TextContent

from lifesign.client import RegistryClient
from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.mcp.server import new_server
from lifesign.mcp.tool_definition import ToolContext
from lifesign.mcp.tool_list import offered
from lifesign.mcp.vetted_get import vetted_get

LOOPBACK = ("127.0.0.0/8",)


@asynccontextmanager
async def serving_tools(
    registry_url: str | None = None,
    key: str | None = None,
    *,
    networks: Sequence[str] = LOOPBACK,
) -> AsyncIterator[Server[dict[str, Any]]]:
    """Yield the server that the command would run."""
    async with AsyncExitStack() as opened:
        get = await opened.enter_async_context(vetted_get(read_networks(networks)))
        registry = None
        if registry_url is not None:
            registry = await opened.enter_async_context(RegistryClient(registry_url, key=key))
        yield new_server(offered(has_registry=registry is not None), ToolContext(get=get, registry=registry))


@asynccontextmanager
async def tools(
    registry_url: str | None = None, key: str | None = None, **more: Any
) -> AsyncIterator[Client]:
    """Yield the SDK's own client of such a server, in this process."""
    async with serving_tools(registry_url, key, **more) as server, Client(server) as client:
        yield client


@dataclass(frozen=True)
class Model:
    """Calls tools, each with a new client, which the task that opened it must close."""

    registry_url: str
    key: str

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:
        async with tools(self.registry_url, self.key) as client:
            return await client.call_tool(tool, arguments)


def text_of(result: CallToolResult) -> str:
    """Return the text for a model."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text
