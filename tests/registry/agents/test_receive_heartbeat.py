import asyncio
import time

import pytest
from sqlalchemy import text
from tests.support.databases import WoundClock
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS
from tests.support.task_api import create, steer, worker

from lifesign.domain.access.permissions import Role
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.postgresql import PostgresqlDatabase
from lifesign.storage.engine.transaction import Database, Transaction

_WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


async def test_heartbeat_is_acknowledged_and_stored(api: RegistryApi) -> None:
    key = (await api.register("agent-1", capacity={"max_concurrent_tasks": 5}))["agent_key"]
    api.clock.advance(20)
    answer = await api.send_heartbeat("agent-1", key, current_load=3, tasks_in_progress=[])
    assert answer.status == 200
    assert answer.json() == {
        "acknowledged": True,
        "server_timestamp": "2025-11-20T12:00:20.000Z",
        "agent_status": "active",
        "pending_commands": [],
    }
    record = await api.record("agent-1")
    assert record["last_heartbeat_at"] == "2025-11-20T12:00:20.000Z"
    assert record["capacity"]["current_load"] == 3
    assert record["version"] == 1


async def test_heartbeat_keeps_members_that_it_omits(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.send_heartbeat("agent-1", key, current_load=3, tasks_in_progress=["t"])
    await api.send_heartbeat("agent-1", key)
    heartbeat = (await api.record("agent-1"))["reported"]
    assert (heartbeat["current_load"], heartbeat["tasks_in_progress"]) == (3, ["t"])


async def test_heartbeats_that_arrive_together_are_each_answered(api: RegistryApi) -> None:
    ids = [f"agent-{number}" for number in range(30)]
    keys = {agent_id: (await api.register(agent_id))["agent_key"] for agent_id in ids}
    beats = [
        api.send_heartbeat(agent_id, keys[agent_id], current_load=number)
        for number, agent_id in enumerate(ids)
    ]
    refused = [api.send_heartbeat("agent-0", keys["agent-1"]), api.send_heartbeat("nobody", keys["agent-1"])]
    answers = await asyncio.gather(*beats, *refused)
    assert [answer.status for answer in answers] == [200] * 30 + [403, 403]
    listed = (await api.ask("GET", AGENTS)).json()["agents"]
    assert [agent["capacity"]["current_load"] for agent in listed] == list(range(30))


async def test_concurrent_heartbeats_keep_all_reported_values(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    answers = await asyncio.gather(
        api.send_heartbeat("agent-1", key, current_load=2),
        api.send_heartbeat("agent-1", key, tasks_in_progress=["t"]),
        api.send_heartbeat("agent-1", key),
    )
    assert [answer.status for answer in answers] == [200] * 3
    heartbeat = (await api.record("agent-1"))["reported"]
    assert (heartbeat["current_load"], heartbeat["tasks_in_progress"]) == (2, ["t"])


@pytest.mark.parametrize("role", [Role.ENROLL, Role.READER, Role.PROBER, Role.COORDINATOR])
async def test_heartbeat_cannot_be_sent_for_another_agent(api: RegistryApi, role: Role) -> None:
    await api.register("agent-1")
    other = (await api.register("agent-2"))["agent_key"]
    assert (await api.send_heartbeat("agent-1", api.keys[role])).status == 403
    assert (await api.send_heartbeat("agent-1", other)).status == 403


async def test_unknown_key_gets_401_for_any_agent_and_valid_key_404_for_an_unknown_one(
    api: RegistryApi,
) -> None:
    await api.register("agent-1")
    assert (await api.send_heartbeat("agent-1", "ahk_" + "x" * 43)).status == 401
    assert (await api.send_heartbeat("nobody", "ahk_" + "x" * 43)).status == 401
    assert (await api.send_heartbeat("nobody", api.keys[Role.ADMIN])).status == 404


async def test_missed_heartbeats_make_unhealthy_and_a_heartbeat_makes_active(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    api.clock.advance(90)
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "active"
    api.clock.advance(0.1)
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "unhealthy"
    answer = await api.send_heartbeat("agent-1", key)
    assert answer.json()["agent_status"] == "active"
    assert (await api.lifecycle("agent-1"))[1:] == [
        ("active", "unhealthy", "heartbeat_timeout"),
        ("unhealthy", "active", "heartbeat_resumed"),
    ]
    assert (await api.record("agent-1"))["version"] == 3


async def test_dead_agent_must_register_again(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.sweep()
    for _ in range(5):
        api.clock.advance(61)
        await api.sweep()
    answer = await api.send_heartbeat("agent-1", key)
    assert answer.status == 410
    assert answer.json()["error"]["details"] == {"agent_id": "agent-1", "status": "dead", "incarnation": 1}


async def test_former_incarnation_is_refused(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.ask("POST", AGENTS, {"agent_id": "agent-1", "supersede": True}, key=key)
    body = {"status": "active", "client_timestamp": "2025-11-20T12:00:00Z"}
    path = f"{AGENTS}/agent-1/heartbeat"
    former = await api.ask("POST", path, body, key=key, headers={"x-agent-incarnation": "1"})
    current = await api.ask("POST", path, body, key=key, headers={"x-agent-incarnation": "2"})
    nonsense = await api.ask("POST", path, body, key=key, headers={"x-agent-incarnation": "two"})
    assert (former.status, current.status, nonsense.status) == (410, 200, 422)


async def test_heartbeat_with_status_draining_starts_the_drain(api: RegistryApi) -> None:
    key = (await api.register("agent-1", drain_timeout_seconds=50))["agent_key"]
    answer = await api.send_heartbeat("agent-1", key, status="draining")
    assert answer.json()["agent_status"] == "draining"
    assert (await api.record("agent-1"))["drain_deadline"] == "2025-11-20T12:00:50.000Z"
    still = await api.send_heartbeat("agent-1", key, status="active")
    assert still.json()["agent_status"] == "draining"


@pytest.mark.both_databases
async def test_command_is_in_each_heartbeat_reply_until_the_agent_follows_it(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    path = f"{AGENTS}/agent-1/commands"
    sent = await api.ask(
        "POST",
        path,
        {"command": "drain", "reason": "maintenance_window", "drain_timeout_seconds": 77},
        key=Role.COORDINATOR,
    )
    assert sent.status == 201
    for _ in range(2):
        pending = (await api.send_heartbeat("agent-1", key)).json()["pending_commands"]
        assert pending == [
            {
                "id": sent.json()["id"],
                "command": "drain",
                "reason": "maintenance_window",
                "drain_timeout_seconds": 77,
            }
        ]
    answer = (await api.send_heartbeat("agent-1", key, status="draining")).json()
    assert (answer["agent_status"], answer["pending_commands"]) == ("draining", [])
    assert (await api.record("agent-1"))["drain_deadline"] == "2025-11-20T12:01:17.000Z"
    types = [event["type"] for event in await api.events(agent_id="agent-1")]
    assert types[-3:] == ["agent.command_sent", "agent.lifecycle", "agent.command_honoured"]


@pytest.mark.parametrize(("given", "seconds"), [({"expires_in_seconds": 10}, 10), ({}, 20)])
async def test_ignored_command_expires(
    database: Database, clock: WoundClock, given: dict[str, int], seconds: int
) -> None:
    api = RegistryApi(database, clock, command_seconds=20)
    await api.add_keys()
    key = (await api.register("agent-1"))["agent_key"]
    await api.ask("POST", f"{AGENTS}/agent-1/commands", {"command": "drain", **given})
    api.clock.advance(seconds - 1)
    assert len((await api.send_heartbeat("agent-1", key)).json()["pending_commands"]) == 1
    api.clock.advance(1)
    assert (await api.send_heartbeat("agent-1", key)).json()["pending_commands"] == []
    await api.sweep()
    assert "agent.command_expired" in [event["type"] for event in await api.events()]


async def test_clock_difference_is_reported_once_and_does_not_change_the_status(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    for _ in range(3):
        answer = await api.send_heartbeat("agent-1", key, client_timestamp="2025-11-20T11:58:00Z")
        assert answer.status == 200
    await api.send_heartbeat("agent-1", key)
    await api.send_heartbeat("agent-1", key, client_timestamp="2025-11-20T12:01:00.001Z")
    drifts = await api.events(type="agent.drift_warning")
    assert [event["payload"]["drift_seconds"] for event in drifts] == [-120.0, 60.001]
    assert (await api.record("agent-1"))["status"] == "active"


@pytest.mark.both_databases
async def test_heartbeat_delayed_by_the_server_is_no_drift(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    now_s = time.monotonic()
    api.registry.dispatcher.pauses.tick(now_s - 100)
    # Sent within our pause: its clock may be right.
    await api.send_heartbeat("agent-1", key, client_timestamp="2025-11-20T11:58:30Z")
    assert await api.events(type="agent.drift_warning") == []
    # Before it, and after now: it cannot be.
    await api.send_heartbeat("agent-1", key, client_timestamp="2025-11-20T11:57:00Z")
    (warning,) = await api.events(type="agent.drift_warning")
    assert -80.1 < warning["payload"]["drift_seconds"] < -61
    # A heartbeat that may have been delayed does not end the warning.
    await api.send_heartbeat("agent-1", key, client_timestamp="2025-11-20T11:58:30Z")
    api.registry.dispatcher.pauses.tick(time.monotonic())
    await api.send_heartbeat("agent-1", key, client_timestamp="2025-11-20T11:57:00Z")
    assert len(await api.events(type="agent.drift_warning")) == 1


async def test_tasks_without_a_lease_are_reported_once_per_change(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    for _ in range(3):
        await api.send_heartbeat("agent-1", key, tasks_in_progress=["t1"])
    await api.send_heartbeat("agent-1", key, tasks_in_progress=["t1", "t2"])
    found = [event["payload"] for event in await api.events(type="agent.tasks_mismatch")]
    assert [payload["without_lease"] for payload in found] == [["t1"], ["t1", "t2"]]


@pytest.mark.both_databases
async def test_next_heartbeat_reply_reports_a_cancelled_task(
    api: RegistryApi,
) -> None:
    made, one = await create(api), await worker(api)
    await one.granted()
    working = {"tasks_in_progress": [made["task_id"]]}
    for _ in range(2):
        assert (await api.send_heartbeat(one.agent_id, one.key, **working)).json()["pending_commands"] == []
    await steer(api, made["task_id"], "cancel")
    for _ in range(2):  # the first reply may be lost
        (result,) = (await api.send_heartbeat(one.agent_id, one.key, **working)).json()["pending_commands"]
        assert result["command"] == "renew_leases"
        assert result["reason"].endswith(f": {made['task_id']}")
    assert len(await api.events(type="agent.tasks_mismatch")) == 1
    for _ in range(2):
        stopped = await api.send_heartbeat(one.agent_id, one.key, tasks_in_progress=[])
        assert stopped.json()["pending_commands"] == []


@pytest.mark.parametrize(
    "members",
    [
        {"status": "healthy"},
        {"current_load": -1},
        {"current_load": "3"},
        {"client_timestamp": "yesterday"},
        {"client_timestamp": "2025-11-20T12:00:00"},
        {"tasks_in_progress": "t"},
        {"tasks_in_progress": ["t"] * 1001},
        {"load": 1},
    ],
)
async def test_invalid_heartbeat_is_refused_and_not_counted(
    api: RegistryApi, members: dict[str, object]
) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    api.clock.advance(5)
    assert (await api.send_heartbeat("agent-1", key, **members)).status == 422
    assert (await api.record("agent-1"))["last_heartbeat_at"] == "2025-11-20T12:00:00.000Z"


@pytest.mark.both_databases
async def test_a_heartbeat_that_is_no_json_is_a_bad_request(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    for raw in (b"", b"{", b"\xff", b"[" * 50_000):
        assert (await api.ask("POST", f"{AGENTS}/agent-1/heartbeat", raw=raw, key=key)).status == 400


@pytest.mark.postgresql_only
async def test_heartbeat_that_waited_for_a_row_lock_is_dated_to_its_processing(api: RegistryApi) -> None:
    # On SQLite no caller waits inside a transaction: there is one writer.
    assert isinstance(api.database, PostgresqlDatabase)
    key = (await api.register("agent-1"))["agent_key"]
    url = api.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    other = open_database(url, clock=api.clock.now_s)
    is_held = asyncio.Event()

    def hold(transaction: Transaction) -> None:
        agent_rows.find(transaction, "agent-1", to_change=True)
        is_held.set()
        while not transaction.connection.scalar(_WAITING):
            pass
        api.clock.advance(20)

    async with asyncio.timeout(PATIENCE_SECONDS):
        holding = asyncio.create_task(other.write(hold))
        await is_held.wait()
        answer = await api.send_heartbeat("agent-1", key)
        await holding
    await other.close()
    assert answer.json()["server_timestamp"] == "2025-11-20T12:00:20.000Z"
    assert (await api.record("agent-1"))["last_heartbeat_at"] == "2025-11-20T12:00:20.000Z"
