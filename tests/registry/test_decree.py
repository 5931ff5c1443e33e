from typing import Any

import pytest
from tests.support.registry_api import AGENTS, RegistryApi

from agent_health.access import Role

MAINTENANCE = f"{AGENTS}/agent-1/maintenance"
OVERRIDE = f"{AGENTS}/agent-1/override"
POOL = "/api/v1/pools/billing/maintenance"


async def _status(api: RegistryApi, agent_id: str = "agent-1") -> str:
    return str((await api.record(agent_id))["status"])


async def test_in_maintenance_nothing_goes_down_until_it_is_over(api: RegistryApi) -> None:
    await api.register("agent-1")
    body = {"seconds": 1000, "reason": "new disks"}
    answer = await api.ask("PUT", MAINTENANCE, body, key=Role.COORDINATOR)
    assert answer.status == 200, answer.body
    assert answer.json()["maintenance_until"] == "2025-11-20T12:16:40.000Z"
    api.clock.advance(999.9)
    await api.sweep()
    assert await _status(api) == "active"
    api.clock.advance(0.2)
    await api.sweep()
    assert await _status(api) == "dead"
    events = await api.events(type="agent.maintenance_changed")
    assert [event["payload"] for event in events] == [
        {"agent_id": "agent-1", "until": "2025-11-20T12:16:40.000Z", "reason": "new disks"}
    ]


async def test_maintenance_ends_when_it_is_taken_back(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("PUT", MAINTENANCE, {"until": "2025-11-20T13:00:00Z", "reason": "new disks"})
    api.clock.advance(100)
    for _ in range(2):
        answer = await api.ask("DELETE", MAINTENANCE)
        assert answer.status == 200
        assert "maintenance_until" not in answer.json()
    assert len(await api.events(type="agent.maintenance_changed")) == 2
    await api.sweep()
    assert await _status(api) == "unhealthy"


async def test_a_pool_is_in_maintenance_as_a_whole_and_nobody_else(api: RegistryApi) -> None:
    for name in ("agent-1", "agent-2"):
        await api.register(name, role_id="billing")
    await api.register("gone", role_id="billing")
    await api.ask("DELETE", f"{AGENTS}/gone")
    await api.register("other", role_id="shipping")
    answer = await api.ask("PUT", POOL, {"seconds": 1000, "reason": "move"}, key=Role.COORDINATOR)
    assert answer.json() == {
        "role_id": "billing",
        "agents": ["agent-1", "agent-2"],
        "until": "2025-11-20T12:16:40.000Z",
    }
    api.clock.advance(301)
    await api.sweep()
    names = ("agent-1", "agent-2", "other")
    assert [await _status(api, name) for name in names] == ["active", "active", "dead"]
    ended = await api.ask("DELETE", POOL)
    assert ended.json() == {"role_id": "billing", "agents": ["agent-1", "agent-2"]}
    await api.sweep()
    assert await _status(api) == "dead"


async def test_a_pool_of_too_many_is_refused(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_health.registry.decree.MAX_MEMBERS", 1)
    for name in ("agent-1", "agent-2"):
        await api.register(name, role_id="billing")
    answer = await api.ask("PUT", POOL, {"seconds": 60, "reason": "move"})
    assert (answer.status, answer.json()["error"]["code"]) == (409, "pool_too_large")
    assert await api.events(type="agent.maintenance_changed") == []


async def test_an_override_holds_until_its_time_and_then_evidence_counts_again(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    body = {"status": "unhealthy", "seconds": 60, "reason": "wrong answers"}
    answer = await api.ask("PUT", OVERRIDE, body)
    assert answer.json()["status"] == "unhealthy"
    assert answer.json()["override"] == {"status": "unhealthy", "until": "2025-11-20T12:01:00.000Z"}
    api.clock.advance(59)
    assert (await api.beat("agent-1", key)).json()["agent_status"] == "unhealthy"
    api.clock.advance(1)
    await api.sweep()
    assert await _status(api) == "active"
    assert [step[1:] for step in (await api.lifecycle("agent-1"))[1:]] == [
        ("unhealthy", "operator_override"),
        ("active", "operator_override"),
    ]
    types = [event["type"] for event in await api.events(agent_id="agent-1")]
    assert types[-3:] == ["agent.override_changed", "agent.lifecycle", "agent.lifecycle"]


async def test_an_override_keeps_a_silent_agent_active(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("PUT", OVERRIDE, {"status": "active", "seconds": 1000, "reason": "it works"})
    api.clock.advance(900)
    await api.sweep()
    assert await _status(api) == "active"
    api.clock.advance(101)
    await api.sweep()
    assert await _status(api) == "dead"


async def test_an_override_that_is_taken_back_is_over_at_once(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("PUT", OVERRIDE, {"status": "unhealthy", "seconds": 60, "reason": "wrong answers"})
    for _ in range(2):
        answer = await api.ask("DELETE", OVERRIDE)
        assert answer.json()["status"] == "active"
        assert "override" not in answer.json()
    assert len(await api.events(type="agent.override_changed")) == 2


async def test_a_draining_agent_cannot_be_declared_active_and_one_that_is_gone_nothing(
    api: RegistryApi,
) -> None:
    await api.register("agent-1")
    body = {"status": "active", "seconds": 60, "reason": "stay"}
    await api.ask("PATCH", f"{AGENTS}/agent-1/status", {"status": "draining"}, headers={"if-match": "*"})
    assert (await api.ask("PUT", OVERRIDE, body)).status == 409
    await api.ask("DELETE", f"{AGENTS}/agent-1")
    assert (await api.ask("PUT", OVERRIDE, body)).status == 410
    assert (await api.ask("PUT", MAINTENANCE, {"seconds": 60, "reason": "x"})).status == 410
    assert (await api.ask("DELETE", f"{AGENTS}/nobody/maintenance")).status == 404


@pytest.mark.parametrize(
    ("method", "path", "role", "status"),
    [
        ("PUT", MAINTENANCE, Role.READER, 403),
        ("PUT", POOL, Role.PROBER, 403),
        ("PUT", OVERRIDE, Role.COORDINATOR, 403),
        ("DELETE", OVERRIDE, Role.COORDINATOR, 403),
    ],
)
async def test_others_decree_nothing(
    api: RegistryApi, method: str, path: str, role: Role, status: int
) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    body = None if method == "DELETE" else {"seconds": 60, "reason": "x"}
    if path == OVERRIDE and body is not None:
        body["status"] = "active"
    for caller in (role, key):
        assert (await api.ask(method, path, body, key=caller)).status == status


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"seconds": 60},
        {"seconds": 60, "until": "2025-11-20T13:00:00Z", "reason": "x"},
        {"until": "2025-11-20T11:59:59Z", "reason": "x"},
        {"until": "2026-11-20T13:00:00Z", "reason": "x"},
        {"seconds": 0, "reason": "x"},
        {"seconds": 60, "reason": "line\nbreak"},
        {"seconds": 60, "reason": "x", "for_ever": True},
    ],
)
async def test_what_has_no_end_or_no_reason_is_refused(api: RegistryApi, wrong: dict[str, Any]) -> None:
    await api.register("agent-1")
    assert (await api.ask("PUT", MAINTENANCE, wrong)).status == 422
    assert (await api.ask("PUT", OVERRIDE, {"status": "active", **wrong})).status == 422
    assert (await api.record("agent-1")).get("maintenance_until") is None


@pytest.mark.parametrize(("method", "body"), [("PUT", {"seconds": 60, "reason": "x"}), ("DELETE", None)])
async def test_a_pool_without_living_members_is_not_found(
    api: RegistryApi, method: str, body: dict[str, object] | None
) -> None:
    await api.register("gone", role_id="billing")
    await api.ask("DELETE", f"{AGENTS}/gone")
    answer = await api.ask(method, POOL, body)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "pool_not_found")


async def test_a_refused_override_is_told_in_words(api: RegistryApi) -> None:
    key = (await api.register("a"))["agent_key"]
    await api.ask("POST", "/api/v1/leases", {"resource": "task:1"}, key=key)
    await api.ask("PATCH", f"{AGENTS}/a/status", {"status": "draining"}, headers={"if-match": "*"})
    body = {"status": "active", "seconds": 60, "reason": "x"}
    answer = await api.ask("PUT", f"{AGENTS}/a/override", body)
    assert answer.status == 409
    assert answer.json()["message"] == "an agent that is draining cannot take the signal declared_active"
