"""The official MCP clients read the answers of our servers. Clients and servers are processes."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.adapting import adapter_process
from tests.support.agent_check import card, document
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, as_json, serving
from tests.support.mcp_process import COMMAND, http_server, settings
from tests.support.official_clients import Answers, OfficialClient, Plan, ask, each_client
from tests.support.registry_server import ADMIN_KEY, RegistryServer, registry_server
from tests.support.servers import REPOSITORY
from tests.support.task_tools import Holder, holding

from lifesign.client import RegistryClient

UPSTREAM: Final = REPOSITORY / "tests" / "support" / "upstream_tools.py"
ERROR_KEY: Final = "lifesign/error"
TOOLS: Final = [
    "heartbeat",
    "check_agent",
    "find_agents",
    "report_progress",
    "mark_complete",
    "request_human_help",
    "delegate_subtask",
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A real registry on loopback."""
    with registry_server(tmp_path_factory.mktemp("registry"), sweep_seconds=60) as server:
        yield server


def codes(answers: list[dict[str, Any]]) -> list[str]:
    """Return the code of each refusal as programs read it; the text has to begin with it."""
    assert all(answer.get("is_error") for answer in answers), answers
    found = [answer["meta"].get(ERROR_KEY, "") for answer in answers]
    assert [answer["text"].partition(":")[0] for answer in answers] == found
    assert [answer["structured"] for answer in answers] == [None] * len(answers)
    return found


def successes(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the structured content of answers that are no errors."""
    assert [answer.get("is_error") for answer in answers] == [False] * len(answers), answers
    return [answer["structured"] for answer in answers]


def refused_calls(holder: Holder, client: OfficialClient) -> list[tuple[str, Mapping[str, Any]]]:
    """Return a call that is refused of each tool but the heartbeat, whose refusals are the contract's."""
    # JavaScript cuts texts in the middle of a character; the Python SDK cannot send that.
    half_pair = "" if client.sdk == "python" else "\ud83d"
    stale = {**holder.shown(), "fencingToken": holder.run.fencing_token + 1}
    return [
        ("check_agent", {"url": f"http://10.0.0.5/{half_pair}"}),
        ("find_agents", {"limit": 0}),
        ("report_progress", {**stale, "summary": "late"}),
        ("mark_complete", {**stale, "output": {}}),
        ("request_human_help", {**stale, "reason": "why?"}),
        ("delegate_subtask", {**holder.shown(), "title": "A part", "budget": {"usd": 9}}),
    ]


REFUSED: Final = [
    "not_asked",
    "invalid_argument",
    "stale_token",
    "stale_token",
    "stale_token",
    "budget_exceeded",
]
UNKNOWN: Final = ("heartbeat", {"agentId": "absent", "teamName": "none"})


def is_unknown_agent(answer: dict[str, Any]) -> bool:
    """Return whether a heartbeat was refused as its contract says."""
    error = "Agent 'absent' not found"
    shown = (answer.get("is_error"), answer.get("text"), answer.get("structured"))
    return shown == (True, error, {"success": False, "error": error})


@each_client
async def test_each_refusal_of_the_tools_reaches_the_client_over_stdio_and_http(
    registry: RegistryServer, tmp_path: Path, client: OfficialClient
) -> None:
    async with holding(registry, f"refused-{client.sdk}-{client.mode}", budget={"usd": 1}) as holder:
        calls = [UNKNOWN, *refused_calls(holder, client)]
        environment = settings(registry.url, holder.key)
        stdio = Plan(calls, command=[sys.executable, *COMMAND], environment=environment)
        by_stdio = await asyncio.to_thread(ask, client, stdio, tmp_path)
        with http_server([], environment) as server:
            plan = Plan(calls, url=server.url, token=server.token)
            by_http = await asyncio.to_thread(ask, client, plan, tmp_path)
    for got in (by_stdio, by_http):
        assert got.tools == TOOLS
        assert is_unknown_agent(got.answers[0])
        assert codes(got.answers[1:]) == REFUSED


@each_client
async def test_each_success_of_the_tools_reaches_the_client(
    registry: RegistryServer, tmp_path: Path, client: OfficialClient
) -> None:
    name = f"served-{client.sdk}-{client.mode}"
    async with (
        holding(registry, name, role_id=name, budget={"usd": 1}) as holder,
        serving({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}) as agent,
    ):
        calls: list[tuple[str, Mapping[str, Any]]] = [
            ("heartbeat", {"agentId": name, "teamName": name, "status": "idle"}),
            ("check_agent", {"url": agent.url}),
            ("find_agents", {"role_id": name}),
            ("report_progress", {**holder.shown(), "summary": "begun"}),
            ("delegate_subtask", {**holder.shown(), "title": "A part", "agentId": name}),
            ("mark_complete", {**holder.shown(), "output": {}}),
        ]
        server = [sys.executable, *COMMAND, "--allow-network", "127.0.0.0/8"]
        plan = Plan(calls, command=server, environment=settings(registry.url, holder.key))
        answers = (await asyncio.to_thread(ask, client, plan, tmp_path)).answers
    send_heartbeat, checked, found, reported, delegated, completed = successes(answers)
    assert (send_heartbeat["success"], send_heartbeat["agentStatus"]) == (True, "idle")
    assert checked["decision"]["action"] == "proceed"
    assert [one["agent_id"] for one in found["agents"]] == [name]
    assert (reported["report"], delegated["childId"][:5], completed["status"]) == (1, "task_", "review")


@each_client
async def test_each_refusal_of_the_tool_proxy_reaches_the_agent(
    registry: RegistryServer, tmp_path: Path, client: OfficialClient
) -> None:
    pool = f"pool-{client.sdk}-{client.mode}"
    (tmp_path / "tools.yml").write_text(f"""
limits: {{answer_bytes: 4096}}
upstreams:
  acme:
    command: ["{sys.executable}", "{UPSTREAM}", "{tmp_path}/record"]
    tools:
      typed: {{usd_per_call: 0.2}}
      long: {{usd_per_call: 0}}
      refuse: {{usd_per_call: 0}}
      absent: {{usd_per_call: 0}}
  gone:
    url: http://127.0.0.1:9/mcp
    tools: {{search: {{usd_per_call: 0}}}}
""")
    plan = Plan([
        ("typed", {"word": "hé"}),
        ("typed", {"word": "ho"}),
        ("report_progress", {}),
        ("delegate_subtask", {"title": "A part", "budget": {"usd": 9}}),
        ("long", {"bytes": 9_000}),
        ("refuse", {}),
        ("absent", {}),
        ("search", {}),
        ("nowhere", {}),
        ("mark_complete", {"output": {"words": 1}}),
        ("report_progress", {"summary": "late"}),
    ])  # fmt: skip
    file, written = plan.written(client, tmp_path)
    async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
        made = await admin.tasks.create("Say it", role_id=pool, budget={"usd": 0.3})
        options = [
            "--agent-id",
            f"{pool}-1",
            "--pool",
            pool,
            "--once",
            "--tools",
            str(tmp_path / "tools.yml"),
        ]
        with adapter_process(registry, tmp_path, *options, "--", *client.command(file)) as adapter:
            code = await asyncio.to_thread(adapter.end)
        task = await admin.tasks.get(made.task_id)
    assert (code, task.status, task.output) == (0, "review", {"words": 1})
    got = Answers.read(written)
    assert {"typed", "long", "mark_complete"} <= set(got.tools)
    first, *refused, absent, completed, late = got.answers
    assert successes([first, completed])[0] == {"word": "hé"}
    assert first["meta"]["lifesign/available"] == {"tokens": 0, "usd": 0.1}
    assert codes(refused) == [
        "budget_exceeded",
        "invalid_argument",
        "budget_exceeded",
        "answer_too_large",
        "upstream_refused",
        "tool_missing",
        "upstream_unavailable",
    ]
    # A tool that is not there is an error of the protocol.
    assert absent["code"] == -32602
    assert "'nowhere'" in absent["raised"]
    assert codes([late]) == ["run_ended"]
    assert (task.budget.settled.usd, task.budget.available.usd) == (0.2, 0.1)
