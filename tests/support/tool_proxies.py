"""Holds a task behind a tool proxy and talks to the proxy as the agent's process does."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult
from tests.support.registry_server import RegistryServer
from tests.support.servers import PATIENCE_SECONDS
from tests.support.task_tools import Holder, holding

from lifesign.adapter.tools.proxy_context import EndRequest, ToolProxyContext
from lifesign.adapter.tools.tool_proxy import OpenProxy, open_tool_proxy
from lifesign.adapter.tools.tools_file import Upstreams
from lifesign.client import RegistryClient
from lifesign.domain.models.tasks import TaskRecord


@dataclass
class Proxied:
    """A held task and the tools of its holder."""

    holder: Holder
    held: ToolProxyContext
    is_held: bool = True
    heard: list[str] = field(default_factory=list)
    """Messages to the holder."""
    requests: list[EndRequest] = field(default_factory=list)
    """Calls that should have ended the run, as the holder would repeat them."""
    progress: list[str] = field(default_factory=list)
    """When a call began to count as progress, and when it ended."""
    open: OpenProxy | None = None
    model: Client | None = None

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> CallToolResult:
        assert self.model is not None
        return await self.model.call_tool(tool, dict(arguments or {}))

    @contextmanager
    def noting_progress(self) -> Iterator[None]:
        self.progress.append("begun")
        yield
        self.progress.append("ended")

    async def task(self) -> TaskRecord:
        return await self.holder.admin.tasks.get(self.holder.task_id)

    async def budget(self) -> dict[str, float]:
        """Return what has become of the money, in dollars."""
        budget = (await self.task()).budget
        return {
            name: getattr(budget, name).usd
            for name in ("settled", "reserved", "overrun")
            if getattr(budget, name).usd
        }


@asynccontextmanager
async def proxied(
    registry: RegistryServer,
    agent_id: str,
    upstreams: Upstreams | None = None,
    *,
    timeout_seconds: float = 10,
    **task: Any,
) -> AsyncIterator[Proxied]:
    """Hold a task, open its proxy, and connect to it."""
    async with (
        holding(registry, agent_id, **task) as holder,
        RegistryClient(registry.url, key=holder.key, timeout_seconds=timeout_seconds) as client,
    ):
        works: list[Proxied] = []
        held = ToolProxyContext(
            registry=client,
            run=holder.run,
            is_held=lambda: works[0].is_held,
            ending=lambda request: works[0].requests.append(request),  # noqa: PLW0108 - it is not there yet
            ended=lambda tool: works[0].heard.append(tool),  # noqa: PLW0108 - see above
            budget_gone=lambda: works[0].heard.append("budget_gone"),
            progress=lambda: works[0].noting_progress(),  # noqa: PLW0108 - see above
        )
        works.append(Proxied(holder, held))
        async with open_tool_proxy(held, upstreams) as opened, connected(opened) as model:
            works[0] = replace(works[0], open=opened, model=model)
            yield works[0]


@asynccontextmanager
async def connected(
    opened: OpenProxy, token: str | None = None, *, mode: str = "auto"
) -> AsyncIterator[Client]:
    """Speak to a proxy with its token, in the way of the SDK."""
    headers = {"Authorization": f"Bearer {token or opened.run_token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SECONDS, trust_env=False) as http,
        Client(streamable_http_client(opened.url, http_client=http), mode=mode) as client,
    ):
        yield client


def read(**members: Any) -> Upstreams:
    """Return what a tools file says that holds this."""
    return Upstreams.model_validate(members)
