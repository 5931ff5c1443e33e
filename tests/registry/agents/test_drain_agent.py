import pytest
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role

STATUS = f"{AGENTS}/agent-1/status"


async def test_an_agent_drains_and_is_then_deregistered(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    body = {"status": "draining", "drain_timeout_seconds": 60}
    answer = await api.ask("PATCH", STATUS, body, key=key, headers={"if-match": '"1"'})
    assert answer.status == 200
    assert answer.header("etag") == '"2"'
    assert answer.json()["status"] == "draining"
    assert answer.json()["drain_deadline"] == "2025-11-20T12:01:00.000Z"
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "deregistered"
    assert (await api.lifecycle("agent-1"))[1:] == [
        ("active", "draining", "drain_initiated"),
        ("draining", "deregistered", "drain_completed"),
    ]
    assert (await api.send_heartbeat("agent-1", key)).status == 410


async def test_leases_keep_a_draining_agent_until_released(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    lease = (await api.ask("POST", "/api/v1/leases", {"resource": "task:t1"}, key=key)).json()
    await api.ask("PATCH", STATUS, {"status": "draining"}, key=key, headers={"if-match": '"1"'})
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "draining"
    refused = await api.ask("POST", "/api/v1/leases", {"resource": "task:t2"}, key=key)
    assert (refused.status, refused.json()["error"]["code"]) == (409, "agent_draining")
    released = await api.ask("DELETE", f"/api/v1/leases/{lease['lease_id']}", key=key)
    assert released.status == 204
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "deregistered"


async def test_drain_waits_for_the_reported_load(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.send_heartbeat("agent-1", key, current_load=2)
    await api.ask("PATCH", STATUS, {"status": "draining"}, headers={"if-match": '"1"'})
    await api.sweep()
    answer = await api.send_heartbeat("agent-1", key, current_load=1)
    assert (answer.status, answer.json()["agent_status"]) == (200, "draining")
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "draining"
    await api.send_heartbeat("agent-1", key, current_load=0)
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "deregistered"


async def test_drain_timeout_ends_work_without_a_lease(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.send_heartbeat("agent-1", key, current_load=2)
    body = {"status": "draining", "drain_timeout_seconds": 20}
    await api.ask("PATCH", STATUS, body, headers={"if-match": '"1"'})
    for _ in range(21):
        await api.sweep()
        api.clock.advance(1)
    await api.sweep()
    assert (await api.lifecycle("agent-1"))[-1] == ("draining", "deregistered", "drain_completed")


async def test_lease_holder_is_dead_at_the_drain_timeout(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.ask("POST", "/api/v1/leases", {"resource": "task:t1"}, key=key)
    body = {"status": "draining", "drain_timeout_seconds": 60}
    await api.ask("PATCH", STATUS, body, key=key, headers={"if-match": '"1"'})
    for _ in range(60):
        await api.sweep()
        api.clock.advance(1)
        assert (await api.send_heartbeat("agent-1", key)).status == 200
    api.clock.advance(0.5)
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "dead"
    types = [event["type"] for event in await api.events()]
    ending = types[types.index("agent.drain_warning") - 1 :]
    assert ending == ["agent.lifecycle", "agent.drain_warning", "lease.expired"]
    leases = await api.ask("GET", "/api/v1/leases")
    assert leases.json()["leases"] == []


@pytest.mark.both_databases
async def test_a_version_is_required_and_must_be_the_current_one(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    body = {"status": "draining"}
    absent = await api.ask("PATCH", STATUS, body, key=key)
    assert (absent.status, absent.json()["error"]["code"]) == (428, "version_required")
    stale = await api.ask("PATCH", STATUS, body, key=key, headers={"if-match": '"7"'})
    assert stale.status == 412
    assert stale.header("etag") == '"1"'
    assert stale.json()["current_version"] == 1
    assert stale.json()["error"]["details"]["incarnation"] == 1
    any_version = await api.ask("PATCH", STATUS, body, key=key, headers={"if-match": "*"})
    assert any_version.status == 200


async def test_version_of_a_former_incarnation_never_matches(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.ask("POST", AGENTS, {"agent_id": "agent-1", "supersede": True}, key=key)
    stale = await api.ask("PATCH", STATUS, {"status": "draining"}, key=key, headers={"if-match": '"1"'})
    assert stale.status == 412
    assert stale.header("etag") == '"2.1"'


@pytest.mark.parametrize(
    ("role", "status"),
    [
        (Role.COORDINATOR, 200),
        (Role.ADMIN, 200),
        (Role.READER, 403),
        (Role.PROBER, 403),
        (Role.ENROLL, 403),
    ],
)
async def test_only_the_agent_its_coordinator_or_an_operator_drains_it(
    api: RegistryApi, role: Role, status: int
) -> None:
    await api.register("agent-1")
    answer = await api.ask("PATCH", STATUS, {"status": "draining"}, key=role, headers={"if-match": '"1"'})
    assert answer.status == status


async def test_drain_by_another_agent_is_refused(api: RegistryApi) -> None:
    await api.register("agent-1")
    other = (await api.register("agent-2"))["agent_key"]
    headers = {"if-match": '"1"'}
    assert (await api.ask("PATCH", STATUS, {"status": "draining"}, key=other, headers=headers)).status == 403
    assert (await api.ask("DELETE", f"{AGENTS}/agent-1", key=other)).status == 403


@pytest.mark.parametrize("wrong", ["active", "unhealthy", "dead", "registering", "", None])
async def test_status_request_accepts_only_draining(api: RegistryApi, wrong: str | None) -> None:
    await api.register("agent-1")
    answer = await api.ask("PATCH", STATUS, {"status": wrong}, headers={"if-match": '"1"'})
    assert answer.status == 422


async def test_a_draining_agent_cannot_drain_again(api: RegistryApi) -> None:
    await api.register("agent-1")
    body = {"status": "draining"}
    assert (await api.ask("PATCH", STATUS, body, headers={"if-match": '"1"'})).status == 200
    answer = await api.ask("PATCH", STATUS, body, headers={"if-match": '"2"'})
    assert answer.status == 409
    assert answer.json()["error"]["code"] == "invalid_transition"


async def test_deregistration_with_end_key_revokes_only_the_key_of_an_agent_caller(api: RegistryApi) -> None:
    key, other = [(await api.register(f"agent-{number}"))["agent_key"] for number in (1, 2)]
    assert (await api.ask("DELETE", f"{AGENTS}/agent-2?end_key=true")).status == 204
    # The caller is an admin, whose key stays valid, and so does the agent's.
    assert (await api.send_heartbeat("agent-2", other)).status == 410
    assert (await api.ask("DELETE", f"{AGENTS}/agent-1?end_key=true", key=key)).status == 204
    assert (await api.send_heartbeat("agent-1", key)).status == 401
    assert [event["type"] for event in await api.events()][-2:] == ["agent.lifecycle", "key.revoked"]


async def test_deregistering_expires_the_leases_after_the_agents_own_event(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    for number in range(2):
        await api.ask("POST", "/api/v1/leases", {"resource": f"task:t{number}"}, key=key)
    answer = await api.ask("DELETE", f"{AGENTS}/agent-1", key=key)
    assert (answer.status, answer.body) == (204, b"")
    ending = (await api.events(agent_id="agent-1"))[-3:]
    assert [event["type"] for event in ending] == ["agent.lifecycle", "lease.expired", "lease.expired"]
    assert {event["payload"]["reason"] for event in ending[1:]} == {"agent_deregistered"}
    again = await api.ask("DELETE", f"{AGENTS}/agent-1", key=key)
    assert again.status == 409


@pytest.mark.parametrize("tag", ["1", 'W/"1"', "'1'", '"1'])
async def test_malformed_version_is_refused_with_the_expected_form(api: RegistryApi, tag: str) -> None:
    await api.register("agent-1")
    headers = {"if-match": tag}
    answer = await api.ask("PATCH", f"{AGENTS}/agent-1/status", {"status": "draining"}, headers=headers)
    assert answer.status == 412
    assert "in double quotes" in answer.json()["message"]
    answer = await api.ask(
        "PATCH", f"{AGENTS}/agent-1/status", {"status": "draining"}, headers={"if-match": '"7"'}
    )
    assert '"1"' in answer.json()["message"]
