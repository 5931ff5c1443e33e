"""Metered tools of an agent under a lease. Adapter, agent and server are processes."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.adapting import adapter_process
from tests.support.registry_server import ADMIN_KEY, RegistryServer, registry_server
from tests.support.servers import REPOSITORY

from lifesign.client import RegistryClient

AGENT = """
import asyncio, os
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main():
    headers = {"Authorization": f"Bearer {os.environ['LIFESIGN_RUN_TOKEN']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(os.environ["LIFESIGN_PROXY_URL"], http_client=http)) as tools,
    ):
        await tools.call_tool("report_progress", {"summary": "read the brief", "nextStep": "fetch"})
        results = [await tools.call_tool("fetch", {}) for _ in range(3)]
        codes = [(result.meta or {}).get("lifesign/error", "") for result in results]
        await tools.call_tool("mark_complete", {"output": {"codes": codes}})

asyncio.run(main())
"""
UPSTREAM = REPOSITORY / "tests" / "support" / "upstream_tools.py"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A real registry on loopback."""
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


async def test_agent_reports_progress_calls_tools_within_budget_and_submits(
    registry: RegistryServer, tmp_path: Path
) -> None:
    (tmp_path / "acme.key").write_text("s3cret")
    (tmp_path / "tools.yml").write_text(f"""
upstreams:
  acme:
    command: ["{sys.executable}", "{UPSTREAM}", "{tmp_path}/record"]
    environment: {{ACME_KEY: {{file: acme.key}}}}
    tools: {{fetch: {{usd_per_call: 0.2}}}}
""")
    async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
        made = await admin.tasks.create("Fetch it", role_id="coder", budget={"usd": 0.5})
        who = ("--agent-id", "coder-tools", "--pool", "coder")
        arguments = (
            *who,
            "--once",
            "--tools",
            str(tmp_path / "tools.yml"),
            "--",
            sys.executable,
            "-c",
            AGENT,
        )
        with adapter_process(registry, tmp_path, *arguments) as adapter:
            code = await asyncio.to_thread(adapter.end)
        task = await admin.tasks.get(made.task_id)
    assert code == 0
    assert (task.status, task.output) == ("review", {"codes": ["", "", "budget_exceeded"]})
    assert (tmp_path / "record").read_text().split() == ["fetch", "fetch"]
    assert (task.budget.settled.usd, task.budget.available.usd) == (0.4, 0.1)
    assert task.latest_report is not None
    assert task.latest_report.report["summary"] == "read the brief"
