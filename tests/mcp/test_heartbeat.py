import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support.mcp_tools import Model, text_of
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Signal
from lifesign.domain.models.agents import AgentRecord, HeartbeatConfig
from lifesign.mcp.heartbeat import MAX_WRITES, METADATA_MEMBER, HeartbeatInput
from lifesign.mcp.heartbeat import heartbeat as heartbeat_result
from lifesign.mcp.tool_definition import ToolContext
from lifesign.registry.status_changes.agent_status import change_status
from lifesign.registry.status_changes.agent_verdicts import Change
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Transaction

CONTRACT = HeartbeatConfig(interval_seconds=30, unhealthy_after_seconds=60, dead_after_seconds=120)
"""The timing of the contract."""
TIMES = {"heartbeatTs", "nextDeadline"}


@pytest.fixture
async def known(registry: RegistryServer) -> AsyncIterator[RegistryClient]:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        yield client


@pytest.fixture
def model(registry: RegistryServer) -> Model:
    return Model(registry.url, ADMIN_KEY)


async def register(known: RegistryClient, agent_id: str, **more: Any) -> AgentRecord:
    return await known.agents.register(agent_id, role_id="team-1", heartbeat_config=CONTRACT, **more)


async def send_heartbeat(model: Model, agent_id: str, **more: Any) -> dict[str, Any]:
    result = await model.call("heartbeat", **{"agentId": agent_id, "teamName": "team-1", **more})
    answer = result.structured_content
    assert isinstance(answer, dict)
    assert result.is_error is not answer["success"]
    return answer


async def die(registry: RegistryServer, agent_id: str) -> None:
    def end(transaction: Transaction) -> None:
        agent = agent_rows.find(transaction, agent_id, to_change=True)
        assert agent is not None
        silent = (Signal.HEARTBEAT_TIMEOUT, Signal.HEARTBEAT_TIMEOUT)
        change = Change(
            agent=agent, signals=silent, explanation="silent", health=HealthStatus.UNKNOWN, assess_at_s=None
        )
        change_status(transaction, [change], "test")

    await asyncio.to_thread(registry.write, end)


# ── the four errors of the contract, verbatim ──


@pytest.mark.parametrize(
    ("agent_id", "state", "team", "error"),
    [
        ("absent", "absent", "team-1", "Agent 'absent' not found"),
        ("../../keys", "absent", "team-1", "Agent '../../keys' not found"),
        ("..", "absent", "team-1", "Agent '..' not found"),
        ("elsewhere", "active", "team-2", "Agent 'elsewhere' not found"),
        ("gone", "deregistered", "team-1", "Cannot heartbeat for terminated agent"),
        ("silent", "dead", "team-1", "Agent is inactive. Requires re-spawn."),
    ],
)
async def test_agent_without_heartbeat_permission_gets_the_reason_and_no_times(
    registry: RegistryServer,
    known: RegistryClient,
    *,
    agent_id: str,
    state: str,
    team: str,
    error: str,
) -> None:
    model = Model(registry.url, ADMIN_KEY)
    if state != "absent":
        await register(known, agent_id)
    if state == "deregistered":
        await known.agents.deregister(agent_id)
    if state == "dead":
        await die(registry, agent_id)
    answer = await send_heartbeat(model, agent_id, teamName=team)
    assert answer == {"success": False, "error": error}


async def test_unreachable_registry_is_the_fourth_error() -> None:
    result = await Model("http://127.0.0.1:9", ADMIN_KEY).call("heartbeat", agentId="a", teamName="t")
    assert result.is_error
    assert text_of(result).startswith("Failed to update heartbeat: no connection to 127.0.0.1:9")
    assert result.structured_content == {"success": False, "error": text_of(result)}


async def test_heartbeat_with_the_key_of_another_is_refused(
    registry: RegistryServer, known: RegistryClient
) -> None:
    await register(known, "victim")
    other = await register(known, "other")
    assert other.agent_key is not None
    model = Model(registry.url, other.agent_key)
    assert (await send_heartbeat(model, "other"))["success"]
    assert (await send_heartbeat(model, "victim"))["error"] == "Agent 'victim' not found"
    for role in (Role.READER, Role.ENROLL):
        refused = await send_heartbeat(Model(registry.url, KEYS[role]), "victim")
        assert refused["error"].startswith("Failed to update heartbeat: HTTP 403: ")
        assert refused["error"].endswith("the operator of this server must give it the agent's own key")
        assert KEYS[role] not in refused["error"]


async def test_unknown_agent_is_not_found_with_an_agents_own_key(
    registry: RegistryServer, known: RegistryClient
) -> None:
    own = await register(known, "finder")
    assert own.agent_key is not None
    answer = await send_heartbeat(Model(registry.url, own.agent_key), "absent")
    assert answer == {"success": False, "error": "Agent 'absent' not found"}


# ── accepted heartbeats ──


async def test_heartbeat_counts_and_returns_the_next_deadline(known: RegistryClient, model: Model) -> None:
    before = await register(known, "worker")
    answer = await send_heartbeat(model, "worker")
    after = await known.agents.get("worker")
    assert answer.keys() == {"success", "agentStatus", *TIMES}
    assert answer["agentStatus"] == "active"
    assert answer["heartbeatTs"].endswith("Z")
    taken, due = (datetime.fromisoformat(answer[name]) for name in ("heartbeatTs", "nextDeadline"))
    assert due - taken == timedelta(seconds=60)
    assert after.last_heartbeat_at == taken
    assert before.last_heartbeat_at is not None
    assert taken > before.last_heartbeat_at
    # No call has changed the record.
    assert after.version == before.version


async def test_idle_status_is_kept_until_active_is_sent(known: RegistryClient, model: Model) -> None:
    await register(known, "resting")
    statuses = [
        (await send_heartbeat(model, "resting", **more))["agentStatus"]
        for more in ({"status": "idle"}, {}, {"status": "idle"}, {"status": "active"}, {})
    ]
    assert statuses == ["idle", "idle", "idle", "active", "active"]
    record = await known.agents.get("resting")
    assert record.status == "active"
    # Said twice, it was written once; and once when it was active again.
    assert record.version == 3


async def test_metadata_are_merged_into_the_record(known: RegistryClient, model: Model) -> None:
    await register(known, "busy", metadata={"opencode_session": "ses_1"})
    await send_heartbeat(model, "busy", metadata={"task": "t-1", "progress": 0.5})
    await send_heartbeat(model, "busy", status="active")
    assert (await known.agents.get("busy")).metadata == {
        "opencode_session": "ses_1",
        METADATA_MEMBER: {"status": "active", "metadata": {"task": "t-1", "progress": 0.5}},
    }


async def test_metadata_that_cannot_be_stored_fail_although_the_agent_is_alive(
    known: RegistryClient, model: Model
) -> None:
    before = await register(known, "talkative")
    answer = await send_heartbeat(model, "talkative", metadata={"log": "x" * 20_000})
    assert answer["error"].startswith("Failed to update heartbeat: metadata: expected at most 16384 bytes")
    after = await known.agents.get("talkative")
    assert after.last_heartbeat_at is not None
    assert before.last_heartbeat_at is not None
    assert after.last_heartbeat_at > before.last_heartbeat_at


async def test_request_to_drain_is_returned(known: RegistryClient, model: Model) -> None:
    await register(known, "leaving")
    await known.agents.send_command("leaving", "drain")
    result = await model.call("heartbeat", agentId="leaving", teamName="team-1")
    assert text_of(result).endswith("the registry requests: drain")
    await known.agents.drain("leaving")
    assert (await send_heartbeat(model, "leaving", status="idle"))["agentStatus"] == "draining"


async def test_further_members_are_ignored(known: RegistryClient, model: Model) -> None:
    await register(known, "newer")
    assert (await send_heartbeat(model, "newer", color="blue"))["success"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"teamName": "t"}, "agentId: expected a value"),
        ({"agentId": "", "teamName": "t"}, "agentId: expected at least 1 character; got ''"),
        ({"agentId": "a", "teamName": ""}, "teamName: expected at least 1 character; got ''"),
        ({"agentId": "a", "teamName": "t", "status": "dead"}, "status: expected one of 'active' or 'idle'"),
        ({"agentId": "a", "teamName": "t", "metadata": "x"}, "metadata: expected "),
    ],
)
async def test_invalid_arguments_are_named(model: Model, arguments: dict[str, Any], message: str) -> None:
    result = await model.call("heartbeat", **arguments)
    assert result.is_error
    assert text_of(result).startswith(f"invalid_argument: {message}")


# ── concurrent changes of the record ──


class _Busy:
    """A registry's agents, whose records change between being read and written, so many times."""

    def __init__(self, real: RegistryClient, times: int) -> None:
        self._real = real.agents
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def update(self, agent_id: str, **members: Any) -> AgentRecord:
        if self.left:
            self.left -= 1
            record = await self._real.get(agent_id)
            await self._real.update(agent_id, if_match=record.etag, name=f"renamed {self.left}")
        return await self._real.update(agent_id, **members)


@pytest.mark.parametrize(("times", "is_taken"), [(MAX_WRITES - 1, True), (MAX_WRITES, False)])
async def test_record_changed_concurrently_is_read_again(
    known: RegistryClient, *, times: int, is_taken: bool
) -> None:
    await register(known, f"shared-{times}")

    class Registry:
        agents = _Busy(known, times)

    asked = HeartbeatInput(agent_id=f"shared-{times}", team_name="team-1", status="idle")
    reach: Any = ToolContext(get=None, registry=Registry())  # type: ignore[arg-type]
    result = await heartbeat_result(asked, reach)
    assert result.is_error is not is_taken
    after = await known.agents.get(f"shared-{times}")
    assert after.name == "renamed 0"
    assert (METADATA_MEMBER in after.metadata) is is_taken
    if not is_taken:
        assert result.text.startswith("Failed to update heartbeat: HTTP 412")


class _Fleeting:
    """A registry's agents, one of which begins or ends a life between being looked at and beating."""

    def __init__(self, real: RegistryClient, *, is_back: bool) -> None:
        self._real = real.agents
        self._is_back = is_back

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def heartbeat(self, agent_id: str, **members: Any) -> Any:
        await self._real.deregister(agent_id)
        if self._is_back:
            await self._real.register(agent_id, role_id="team-1")
        return await self._real.heartbeat(agent_id, **members)


@pytest.mark.parametrize(
    ("agent_id", "is_back", "error"),
    [
        ("leaver", False, "Cannot heartbeat for terminated agent"),
        ("returner", True, "Failed to update heartbeat: the agent has just registered again: try again"),
    ],
)
async def test_incarnation_that_ends_during_the_call_is_reported_like_an_ended_one(
    known: RegistryClient, agent_id: str, error: str, *, is_back: bool
) -> None:
    await register(known, agent_id)

    class Registry:
        agents = _Fleeting(known, is_back=is_back)

    reach: Any = ToolContext(get=None, registry=Registry())  # type: ignore[arg-type]
    result = await heartbeat_result(HeartbeatInput(agent_id=agent_id, team_name="team-1"), reach)
    assert (result.is_error, result.text) == (True, error)
