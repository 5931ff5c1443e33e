"""Holds a task and calls the tools of its holder."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp import Client
from mcp.server import Server
from mcp_types import CallToolResult
from tests.support.mcp_tools import text_of
from tests.support.registry_server import ADMIN_KEY, RegistryServer

from lifesign.client import RegistryClient
from lifesign.client.registry_tasks import GrantedTask, HeldRun
from lifesign.mcp.answer import code_of
from lifesign.mcp.server import new_server
from lifesign.mcp.tool_definition import ToolContext
from lifesign.mcp.tool_list import offered


@dataclass(frozen=True)
class Holder:
    """An agent that holds a task, and the registry as an admin sees it."""

    agent_id: str
    key: str
    grant: GrantedTask
    run: HeldRun
    own: RegistryClient
    admin: RegistryClient

    @property
    def task_id(self) -> str:
        return self.run.task_id

    def shown(self) -> dict[str, Any]:
        """Return the arguments of the tools where the server is bound to no run."""
        return {
            "taskId": self.run.task_id,
            "runId": self.run.run_id,
            "fencingToken": self.run.fencing_token,
        }

    async def status(self) -> str:
        return str((await self.admin.tasks.get(self.task_id)).status)


@asynccontextmanager
async def holding(
    registry: RegistryServer,
    agent_id: str,
    *,
    role_id: str | None = None,
    ttl_seconds: float = 300,
    **task: Any,
) -> AsyncIterator[Holder]:
    """Create a task reserved for one agent, and claim it."""
    async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
        key = (await admin.agents.register(agent_id, role_id=role_id)).agent_key
        assert key is not None
        await admin.tasks.create(**{"title": "Write it", "agent_id": agent_id, **task})
        async with RegistryClient(registry.url, key=key) as own:
            grant = await own.tasks.claim(ttl_seconds=ttl_seconds)
            assert grant is not None
            yield Holder(agent_id, key, grant, HeldRun.of(grant), own, admin)


def server_of(registry: RegistryClient, run: HeldRun | None = None) -> Server[dict[str, Any]]:
    """Return a server of the task tools, bound to a run or to none."""

    async def nobody(*_: object) -> Any:
        raise AssertionError

    return new_server(
        offered(has_registry=True, has_run=run is not None),
        ToolContext(get=nobody, registry=registry, run=run),
    )


async def call(server: Server[dict[str, Any]], tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
    """Call one tool as a model's client does."""
    async with Client(server) as client:
        return await client.call_tool(tool, dict(arguments))


def failed(result: CallToolResult) -> tuple[str, str]:
    """Return the code and the words of a tool that failed."""
    assert result.is_error
    return (code_of(result) or "", text_of(result))
