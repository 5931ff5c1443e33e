import asyncio

import pytest
from tests.support.hostile_server import Reply, answer, as_json, serving
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer

from lifesign.activity import heartbeat_sink
from lifesign.activity.heartbeat_sink import (
    Dropped,
    HeartbeatAccepted,
    HeartbeatRefused,
    RegistryHeartbeatSink,
)
from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.activity.passive_heartbeat import DueHeartbeat, HeartbeatCause
from lifesign.domain.models.agents import AgentRecord
from lifesign.errors import InvalidValue


def due(agent_id: str, busy: int = 0) -> DueHeartbeat:
    return DueHeartbeat(
        agent_id=agent_id, cause=HeartbeatCause.IDLE, session_id="ses_1", source="", busy_sessions=busy
    )


async def keys_of(registry: RegistryServer, *agent_ids: str) -> dict[str, str]:
    """Register agents and return their keys."""
    keys = {}
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        for agent_id in agent_ids:
            record = await client.agents.register(agent_id)
            assert record.agent_key is not None
            keys[agent_id] = record.agent_key
    return keys


async def test_each_agent_sends_heartbeats_with_its_own_key_and_load(registry: RegistryServer) -> None:
    keys = await keys_of(registry, "a", "b")
    async with RegistryHeartbeatSink(registry.url, keys) as heart:
        assert await heart.send_heartbeat(due("a", busy=2)) == HeartbeatAccepted("active")
        assert await heart.send_heartbeat(due("b")) == HeartbeatAccepted("active")
        record = await heart.record("a")
        assert isinstance(record, AgentRecord)
        assert record.reported.current_load == 2


async def test_heartbeat_cannot_be_sent_for_another_agent(registry: RegistryServer) -> None:
    keys = await keys_of(registry, "a", "b")
    async with RegistryHeartbeatSink(registry.url, {"a": keys["b"], "b": KEYS[Role.COORDINATOR]}) as heart:
        for agent_id in ("a", "b"):
            ending = await heart.send_heartbeat(due(agent_id))
            assert isinstance(ending, HeartbeatRefused)
            assert "403" in ending.why
    async with RegistryHeartbeatSink(registry.url, {"a": ADMIN_KEY}) as heart:
        assert await heart.send_heartbeat(due("a")) == HeartbeatAccepted("active"), "an admin key may"


async def test_heartbeat_answer_returns_pending_commands(registry: RegistryServer) -> None:
    keys = await keys_of(registry, "a")
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        command = await client.agents.send_command("a", reason="an update")
    async with RegistryHeartbeatSink(registry.url, keys) as heart:
        assert await heart.send_heartbeat(due("a")) == HeartbeatAccepted(
            "active", (f"drain ({command.id}: an update)",)
        )


async def test_unknown_or_ended_agent_is_refused(registry: RegistryServer) -> None:
    keys = await keys_of(registry, "a")
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        await client.agents.deregister("a")
    async with RegistryHeartbeatSink(registry.url, {**keys, "b": "ahk_" + "x" * 43, "c": ADMIN_KEY}) as heart:
        endings = [
            *[await heart.send_heartbeat(due(agent_id)) for agent_id in "abc"],
            await heart.record("c"),
        ]
    assert [ending.why[:8] for ending in endings if isinstance(ending, HeartbeatRefused)] == [
        "HTTP 410", "HTTP 401", "HTTP 404", "HTTP 404",
    ]  # fmt: skip


async def test_a_registry_that_does_not_answer_drops_the_heartbeat(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_sink, "INTERVAL_SECONDS", 0.2)
    async with RegistryHeartbeatSink(registry.url, {"a": ADMIN_KEY}) as heart:
        await asyncio.to_thread(registry.stop)
        assert isinstance(await heart.send_heartbeat(due("a")), Dropped)
        assert isinstance(await heart.record("a"), Dropped)
        await asyncio.to_thread(registry.start)


@pytest.mark.parametrize("reply", [answer(429, Retry_After="60"), answer(500), as_json({"who": "else"})])
async def test_invalid_answer_to_a_heartbeat_drops_it(reply: Reply) -> None:
    async with (
        serving({"/api/v1/agents/a/heartbeat": reply}) as server,
        RegistryHeartbeatSink(server.url, {"a": ADMIN_KEY}) as heart,
    ):
        assert isinstance(await heart.send_heartbeat(due("a")), Dropped)


async def test_malformed_key_is_refused_without_quoting_it() -> None:
    with pytest.raises(InvalidValue, match="not shown"):
        async with RegistryHeartbeatSink("http://127.0.0.1:1", {"a": "two words"}):
            pass
