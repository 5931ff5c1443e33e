import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.hostile_server import Reply, answer, as_json, serving
from tests.support.registry_server import KEYS, RegistryServer

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import (
    Conflict,
    Gone,
    InvalidAnswer,
    NotAuthorized,
    NotFound,
    NotPermitted,
    Stale,
    Unprocessable,
)
from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import AgentSummary, HeartbeatConfig
from lifesign.errors import InvalidValue

AGENTS = "/api/v1/agents"


async def test_agent_can_be_registered_used_and_ended(client: RegistryClient) -> None:
    record = await client.agents.register(
        "billing-1",
        role_id="billing",
        name="Billing",
        capabilities=["invoices", "refunds"],
        max_concurrent_tasks=5,
        endpoint="https://agent.example",
        heartbeat_config=HeartbeatConfig(interval_seconds=10, unhealthy_after_seconds=20),
        drain_timeout_seconds=60,
        metadata={"runtime": "python"},
    )
    assert (record.agent_id, record.status, record.etag) == ("billing-1", Status.ACTIVE, '"1"')
    assert record.capacity.max_concurrent_tasks == 5
    assert record.heartbeat_config.unhealthy_after_seconds == 20
    assert record.metadata == {"runtime": "python"}
    assert record.agent_key is not None
    assert record.agent_key not in repr(record)

    reply = await client.agents.heartbeat(
        "billing-1", current_load=2, tasks_in_progress=["t1"], incarnation=1
    )
    assert (reply.acknowledged, reply.agent_status, reply.pending_commands) == (True, Status.ACTIVE, [])
    seen = await client.agents.get("billing-1")
    assert (seen.capacity.current_load, seen.reported.tasks_in_progress) == (2, ["t1"])

    changed = await client.agents.update(
        "billing-1", if_match=seen.etag, name=None, capabilities=["invoices"]
    )
    assert (changed.name, changed.capabilities, changed.endpoint) == (
        None,
        ["invoices"],
        "https://agent.example",
    )

    sent = await client.agents.send_command("billing-1", reason="new version", drain_timeout_seconds=9)
    reply = await client.agents.heartbeat("billing-1")
    assert [command.id for command in reply.pending_commands] == [sent.id]

    draining = await client.agents.drain("billing-1", drain_timeout_seconds=30)
    assert draining.status is Status.DRAINING
    await client.agents.deregister("billing-1")
    assert (await client.agents.get("billing-1")).status is Status.DEREGISTERED


async def test_agent_key_acts_for_its_agent(client: RegistryClient, registry: RegistryServer) -> None:
    key = (await client.agents.register("a")).agent_key
    await client.agents.register("b")
    async with RegistryClient(registry.url, key=key) as own:
        assert (await own.agents.heartbeat("a")).acknowledged
        with pytest.raises(NotPermitted):
            await own.agents.heartbeat("b")
        again = await own.agents.register("a", supersede=True)
        assert (again.incarnation, again.agent_key) == (2, None)
        with pytest.raises(Gone):
            await own.agents.heartbeat("a", incarnation=1)


async def test_each_refusal_raises_its_own_exception(
    client: RegistryClient, registry: RegistryServer
) -> None:
    await client.agents.register("a")
    with pytest.raises(Conflict) as conflict:
        await client.agents.register("a")
    assert conflict.value.code == "already_registered"
    with pytest.raises(NotFound):
        await client.agents.get("nobody")
    await client.agents.update("a", if_match='"1"', name="A")
    with pytest.raises(Stale) as stale:
        await client.agents.update("a", if_match='"1"', name="B")
    assert stale.value.current_version == 2
    with pytest.raises(Stale):
        await client.agents.drain("a", if_match='"1"')
    with pytest.raises(Unprocessable) as faults:
        await client.agents.list(status=["bogus"])
    assert faults.value.details["faults"][0]["pointer"].startswith("/status")
    await client.agents.deregister("a", if_match='"2"')
    with pytest.raises(Gone):
        await client.agents.heartbeat("a")
    for key, kind in (
        (KEYS[Role.READER], NotPermitted),
        ("ahk_nobodys", NotAuthorized),
        (None, NotAuthorized),
    ):
        async with RegistryClient(registry.url, key=key) as other:
            with pytest.raises(kind):
                await other.agents.register("c")


async def test_registry_sets_omitted_members(client: RegistryClient) -> None:
    record = await client.agents.register()
    assert record.agent_id.startswith("agent_")
    probed = await client.agents.register(card_url="https://agent.example", monitoring="probe")
    # Not our default of 30 s: that of agents which are probed.
    assert probed.heartbeat_config.interval_seconds == 300


async def test_agent_in_maintenance_does_not_go_down(client: RegistryClient) -> None:
    await client.agents.register("a", role_id="pool")
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    assert (await client.agents.maintain("a", until=until, reason="disk")).maintenance_until == until
    assert (await client.agents.end_maintenance("a")).maintenance_until is None
    begun = await client.agents.maintain_pool("pool", seconds=60, reason="deploy")
    assert begun.agents == ["a"]
    assert begun.until is not None
    assert (await client.agents.end_pool_maintenance("pool")).until is None


@pytest.mark.parametrize("end", [{}, {"seconds": 1.0, "until": datetime.now(UTC)}, {"seconds": 0.0}])
async def test_maintenance_requires_exactly_one_end(end: dict[str, Any]) -> None:
    async with serving({}) as server, RegistryClient(server.url) as client:
        with pytest.raises(InvalidValue):
            await client.agents.maintain("a", reason="x", **end)
    assert server.heads == []


async def test_all_pages_are_read_one_after_another(client: RegistryClient) -> None:
    for number in range(5):
        await client.agents.register(f"a-{number}", role_id="pool", max_concurrent_tasks=2)
    page = await client.agents.list(limit=2, role_id="pool")
    assert (len(page.agents), page.total) == (2, 5)
    assert page.pool is not None
    assert page.pool.available_capacity == 10
    found = [agent async for agent in client.agents.each(page=2, status=["active", Status.DEAD])]
    assert [agent.agent_id for agent in found] == [f"a-{number}" for number in range(5)]
    assert all(type(agent) is AgentSummary for agent in found)
    assert [agent async for agent in client.agents.each(capabilities=["none", "such"])] == []


async def test_a_list_that_has_no_end_is_not_followed() -> None:
    page = as_json({"agents": [], "total": 1, "cursor": "same"})
    replies = {f"{AGENTS}?limit=100": page, f"{AGENTS}?limit=100&cursor=same": page}
    async with serving(replies) as server, RegistryClient(server.url) as client:
        with pytest.raises(InvalidAnswer, match="not end"):
            [agent async for agent in client.agents.each()]
    assert len(server.heads) == 2


async def test_members_of_a_newer_registry_are_ignored() -> None:
    summary = {
        "agent_id": "a", "capabilities": [], "status": "active", "health": "unknown", "new": {"x": 1},
        "capacity": {"current_load": 0, "new": 1}, "monitoring": "heartbeat",
        "last_heartbeat_at": "2026-11-20T12:00:00Z",
    }  # fmt: skip
    replies = {f"{AGENTS}?limit=100": as_json({"agents": [summary], "total": 1, "new": []})}
    async with serving(replies) as server, RegistryClient(server.url) as client:
        assert [agent.agent_id for agent in (await client.agents.list()).agents] == ["a"]


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ({"agent_id": "a b"}, "agent_id"),
        ({"capabilities": ["a,b"]}, "capabilities.0"),
        ({"monitoring": "telepathy"}, "monitoring"),
        ({"max_concurrent_tasks": -1}, "max_concurrent_tasks"),
        ({"metadata": {"secret": "x" * 20_000}}, "metadata"),
    ],
)
async def test_request_that_a_registry_would_refuse_is_not_sent(members: dict[str, Any], name: str) -> None:
    async with serving({}) as server, RegistryClient(server.url) as client:
        with pytest.raises(InvalidValue) as caught:
            await client.agents.register(**members)
    assert caught.value.name == name
    assert "xxx" not in str(caught.value)
    assert server.heads == []


async def test_heartbeat_contains_the_local_time_unless_given() -> None:
    bodies: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({
            "acknowledged": True, "server_timestamp": "2026-11-20T12:00:00Z", "agent_status": "active",
            "pending_commands": [],
        })  # fmt: skip

    app = web.Application()
    app.router.add_post(f"{AGENTS}/a/heartbeat", take)
    async with TestServer(app) as server, RegistryClient(str(server.make_url("/"))) as client:
        await client.agents.heartbeat("a")
        at = datetime(2026, 1, 2, tzinfo=UTC)
        await client.agents.heartbeat("a", client_timestamp=at, status="draining")
    sent = datetime.fromisoformat(bodies[0].pop("client_timestamp"))
    assert abs(datetime.now(UTC) - sent) < timedelta(minutes=1)
    assert bodies == [
        {"status": "active"},
        {"status": "draining", "client_timestamp": "2026-01-02T00:00:00Z"},
    ]


@pytest.mark.parametrize(("status", "is_done"), [("deregistered", True), ("dead", False)])
async def test_repeated_end_after_a_lost_answer_is_no_conflict(status: str, *, is_done: bool) -> None:
    body = {
        "error": {"code": "invalid_transition", "message": "no", "details": {"status": status}},
        "message": "",
    }
    replies: list[Reply] = [
        answer(503),
        answer(409, json.dumps(body).encode(), Content_Type="application/json"),
    ]

    async def one_by_one(writer: Any, head: str) -> None:
        await replies.pop(0)(writer, head)

    async with serving({f"{AGENTS}/a": one_by_one}) as server, RegistryClient(server.url) as client:
        if is_done:
            await client.agents.deregister("a")
        else:
            with pytest.raises(Conflict):
                await client.agents.deregister("a")
    assert len(server.heads) == 2


async def test_agent_is_erased_permanently(client: RegistryClient) -> None:
    record = await client.agents.register("a")
    with pytest.raises(Stale):
        await client.agents.erase("a", if_match='"9"')
    erased = await client.agents.erase("a", if_match=record.etag)
    assert (erased.agent_id, erased.events, erased.archived_sequence) == ("a", 3, 0)
    with pytest.raises(NotFound):
        await client.agents.erase("a")


async def test_link_token_is_returned_again_for_a_listed_target(client: RegistryClient) -> None:
    await client.directories.put("dir", ["https://agent.example/"])
    await client.agents.register("a", card_url="https://agent.example/")
    token = await client.agents.link("a", "https://agent.example")
    assert token.token.startswith("ahl_")
    assert (token.url, token.proven_at) == ("https://agent.example/", None)
    assert token.proof_url == "https://agent.example/.well-known/lifesign-proof"
    assert token.token not in repr(token)
    assert (await client.agents.link("a", "https://agent.example/")).token == token.token
    with pytest.raises(Unprocessable):
        await client.agents.link("a", "https://other.example/")
