from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.mcp_tools import Model, text_of
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer
from tests.support.reporting import report
from tests.support.task_tools import failed

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.models.agents import AgentSummary
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import TargetKind, target_id
from lifesign.mcp import find_agents
from lifesign.mcp.tool_definition import MAX_ANSWER_BYTES, NOTICE

AGENTS: Mapping[str, Mapping[str, Any]] = {
    "bill-1": {"capabilities": ["billing"], "max_concurrent_tasks": 2},
    "bill-2": {"capabilities": ["billing", "mail"], "max_concurrent_tasks": 5},
    "mail-1": {
        "name": "Letters",
        "capabilities": ["mail"],
        "endpoint": "https://mail.example",
        "card_url": "https://mail.example/card.json",
    },
}


@pytest.fixture
async def model(registry: RegistryServer) -> Model:
    """With agents that can do things, and a reader's key."""
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        for agent_id, more in AGENTS.items():
            await known.agents.register(agent_id, role_id=agent_id[:4], supersede=True, **more)
        await known.agents.heartbeat("bill-1", current_load=2)
        await known.agents.register("gone", role_id="gone", supersede=True, max_concurrent_tasks=1)
        await known.agents.heartbeat("gone", current_load=1)
        await known.agents.deregister("gone")
    return Model(registry.url, KEYS[Role.READER])


async def found(model: Model, **arguments: Any) -> list[str]:
    result = await model.call("find_agents", **arguments)
    assert not result.is_error, text_of(result)
    content: Any = result.structured_content
    return [agent["agent_id"] for agent in content["agents"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["bill-1", "bill-2", "mail-1"]),
        ({"capabilities": ["billing"]}, ["bill-1", "bill-2"]),
        ({"capabilities": ["billing"], "min_available_capacity": 1}, ["bill-2"]),
        ({"capabilities": ["mail"], "role_id": "mail"}, ["mail-1"]),
        ({"capabilities": ["billing"], "least_loaded_first": True}, ["bill-2", "bill-1"]),
        ({"status": ["dead"]}, []),
        ({"health": ["healthy"]}, []),
        ({"limit": 1}, ["bill-1"]),
    ],
)
async def test_agents_are_found_by_capability(
    model: Model, arguments: dict[str, Any], expected: list[str]
) -> None:
    assert await found(model, **arguments) == expected


async def test_a_probed_agent_without_evidence_is_described_with_the_reason(registry: RegistryServer) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        card_url = "https://probed.example/card.json"
        await known.agents.register("probed", monitoring="probe", card_url=card_url, supersede=True)
        text = text_of(await Model(registry.url, KEYS[Role.READER]).call("find_agents"))
        await known.agents.deregister("probed")
    (line,) = [line for line in text.splitlines() if line.startswith("probed: ")]
    assert "(not_yet_probed)" in line
    assert line.endswith(card_url)


async def test_pool_is_described_with_totals_and_one_line_per_agent(model: Model) -> None:
    result = await model.call("find_agents", role_id="bill")
    content: Any = result.structured_content
    assert (content["pool"]["available_capacity"], content["notice"]) == (5, NOTICE)
    assert next(iter(content)) == "notice"
    assert text_of(result).splitlines() == [
        "2 of 2 matching agents",
        NOTICE,
        "bill-1: active, health unknown, 2 of 2 tasks",
        "bill-2: active, health unknown, 0 of 5 tasks",
    ]
    one = text_of(await model.call("find_agents", capabilities=["mail"], role_id="mail"))
    at = "https://mail.example, card at https://mail.example/card.json"
    assert one.splitlines()[2] == f"mail-1 (Letters): active, health unknown, 0 of ? tasks, at {at}"
    none = await model.call("find_agents", role_id="nobody")
    assert text_of(none) == "no agent matches"


async def test_invisible_characters_of_listed_agents_are_removed(registry: RegistryServer) -> None:
    name = "Odd\ufe01\ufe02\u3164"
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        await known.agents.register("odd-1", role_id="odd", name=name)
        result = await Model(registry.url, KEYS[Role.READER]).call("find_agents", role_id="odd")
        await known.agents.deregister("odd-1")
    content: Any = result.structured_content
    assert content["agents"][0]["name"] == "Odd\ufffd"
    assert "odd-1 (Odd\ufffd): active" in text_of(result)


async def test_remaining_items_follow_with_the_cursor(registry: RegistryServer) -> None:
    capabilities = [f"{number:02}" + "c" * 120 for number in range(64)]
    names = [f"long-{number:02}" for number in range(12)]
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        for name in names:
            await known.agents.register(name, role_id="long", capabilities=capabilities)
    seen: list[str] = []
    model = Model(registry.url, KEYS[Role.READER])
    arguments: dict[str, Any] = {"role_id": "long"}
    while True:
        result = await model.call("find_agents", **arguments)
        content: Any = result.structured_content
        page = [agent["agent_id"] for agent in content["agents"]]
        assert page
        assert len(page) * 64 * 122 < MAX_ANSWER_BYTES
        seen += page
        if "cursor" not in content:
            break
        assert text_of(result).startswith(f"{len(page)} of 12 matching agents; more with the cursor\n")
        arguments["cursor"] = content["cursor"]
    assert seen == names
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        for name in names:
            await known.agents.deregister(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role": "x"}, "role: expected no member of this name, but any of capabilities, role_id, status, "),
        ({"status": ["alive"]}, "status.0: expected one of 'registering', 'active'"),
        ({"limit": 1000}, "limit: expected at most 100; got 1000"),
    ],
)
async def test_invalid_filter_is_named(model: Model, arguments: dict[str, Any], message: str) -> None:
    result = await model.call("find_agents", **arguments)
    assert result.is_error
    assert text_of(result).startswith(f"invalid_argument: {message}")


async def test_refusal_of_the_registry_has_its_code(model: Model) -> None:
    code, answer = failed(await model.call("find_agents", cursor="x"))
    assert answer.startswith(f"{code}: HTTP 422: ")
    assert code == "invalid_request"


async def test_key_without_permission_gets_a_hint(registry: RegistryServer) -> None:
    refused = text_of(await Model(registry.url, KEYS[Role.ENROLL]).call("find_agents", limit=100))
    assert refused.startswith("not_allowed: HTTP 403: ")
    assert refused.endswith(
        ": the key of this server lacks that permission: its operator can give it another key"
    )
    unknown = text_of(await Model(registry.url, "ahk_" + "x" * 43).call("find_agents", limit=100))
    assert unknown.startswith("unknown_key: HTTP 401: ")
    assert "x" * 43 not in unknown


async def test_probed_agent_is_described_with_listing_and_card_url(
    registry: RegistryServer,
) -> None:
    listed, card = "https://found.example/", "https://found.example/.well-known/agent.json"
    seen = Observation(
        target_url=listed, observed_at=datetime.now(UTC), discovery=LayerResult(result=ResultClass.OK)
    )
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        await known.directories.put("found", [listed])
        await report(known, seen, memories=[ProbeMemory(card_url=card)])
        message = text_of(await Model(registry.url, KEYS[Role.READER]).call("find_agents", limit=100))
        (line,) = [line for line in message.splitlines() if line.startswith(target_id(listed))]
        assert line.endswith(f", listed as {listed}, card at {card}")
        await known.agents.deregister(target_id(listed))


async def test_mcp_server_is_described_as_an_agent_is(registry: RegistryServer) -> None:
    listed, answers = "https://tools.example/mcp", LayerResult(result=ResultClass.OK)
    seen = Observation(
        target_url=listed,
        observed_at=datetime.now(UTC),
        kind=TargetKind.MCP,
        discovery=answers,
        transport=answers,
    )
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        await known.directories.put("servers", [listed])
        await report(known, seen)
        message = text_of(await Model(registry.url, KEYS[Role.READER]).call("find_agents", limit=100))
        (line,) = [line for line in message.splitlines() if line.startswith(target_id(listed))]
        shown = await known.agents.get(target_id(listed))
        await known.agents.deregister(target_id(listed))
    assert line.split(":")[1].split(",")[0] == " active"
    assert line.endswith(f", listed as {listed}")
    assert shown.observed is not None
    assert shown.observed.kind is TargetKind.MCP


async def test_work_of_a_dead_agent_is_not_shown(model: Model) -> None:
    # Other tests of this file deregister agents as well.
    message = text_of(await model.call("find_agents", status=["deregistered"], role_id="gone"))
    assert message.splitlines()[2].removeprefix("gone: ").split(", ") == ["deregistered", "health unknown"]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"health": HealthStatus.HEALTHY}, "healthy"),
        (
            {"health": HealthStatus.UNKNOWN, "unknown_reason": UnknownReason.NO_WITNESS},
            "unknown (no_witness)",
        ),
        (
            {
                "health": HealthStatus.UNKNOWN,
                "unknown_reason": UnknownReason.NO_PROBER,
                "evidence_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
                "failing_probes": 2,
            },
            "unknown (no_prober, last measured 2026-01-02T03:04:05Z; last 2 probes failed)",
        ),
        ({"health": HealthStatus.HEALTHY, "is_unreachable": True}, "healthy (interface fails)"),
    ],
)
def test_line_of_an_agent_says_why_its_health_is_unknown(known: dict[str, Any], expected: str) -> None:
    absent = {"unknown_reason": None, "evidence_at": None, "failing_probes": 0, "is_unreachable": False}
    agent = AgentSummary.model_construct(**absent | known)
    assert find_agents._health_text(agent) == expected
