from typing import Any

import pytest
from sqlalchemy import select
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.repetitions import in_faults

from lifesign.domain.access.permissions import Role
from lifesign.registry.events.verify_events import verify_log
from lifesign.storage.engine.table_definitions import targets
from lifesign.storage.engine.transaction import Transaction

MAINTENANCE = f"{AGENTS}/agent-1/maintenance"
OVERRIDE = f"{AGENTS}/agent-1/override"
POOL = "/api/v1/pools/billing/maintenance"


async def _status(api: RegistryApi, agent_id: str = "agent-1") -> str:
    return str((await api.record(agent_id))["status"])


async def test_agent_does_not_go_down_during_maintenance(api: RegistryApi) -> None:
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


async def test_withdrawn_maintenance_ends_at_once(api: RegistryApi) -> None:
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


async def test_pool_maintenance_covers_all_members_of_one_pool(api: RegistryApi) -> None:
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


@pytest.mark.both_databases
async def test_maintenance_of_a_too_large_pool_is_refused(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.registry.agents.override_status.MAX_MEMBERS", 1)
    for name in ("agent-1", "agent-2"):
        await api.register(name, role_id="billing")
    answer = await api.ask("PUT", POOL, {"seconds": 60, "reason": "move"})
    assert (answer.status, answer.json()["error"]["code"]) == (409, "pool_too_large")
    assert await api.events(type="agent.maintenance_changed") == []


async def test_override_decides_until_its_end_and_evidence_afterwards(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    body = {"status": "unhealthy", "seconds": 60, "reason": "wrong answers"}
    answer = await api.ask("PUT", OVERRIDE, body)
    assert answer.json()["status"] == "unhealthy"
    assert answer.json()["override"] == {"status": "unhealthy", "until": "2025-11-20T12:01:00.000Z"}
    api.clock.advance(59)
    assert (await api.send_heartbeat("agent-1", key)).json()["agent_status"] == "unhealthy"
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


async def test_withdrawn_override_ends_at_once(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("PUT", OVERRIDE, {"status": "unhealthy", "seconds": 60, "reason": "wrong answers"})
    for _ in range(2):
        answer = await api.ask("DELETE", OVERRIDE)
        assert answer.json()["status"] == "active"
        assert "override" not in answer.json()
    assert len(await api.events(type="agent.override_changed")) == 2


async def test_draining_or_deregistered_agent_cannot_be_overridden(
    api: RegistryApi,
) -> None:
    await api.register("agent-1")
    body = {"status": "active", "seconds": 60, "reason": "stay"}
    await api.ask("PATCH", f"{AGENTS}/agent-1/status", {"status": "draining"}, headers={"if-match": "*"})
    assert (await api.ask("PUT", OVERRIDE, body)).status == 409
    await api.ask("DELETE", f"{AGENTS}/agent-1")
    assert (await api.ask("PUT", OVERRIDE, body)).status == 410
    assert (await api.ask("PUT", MAINTENANCE, {"seconds": 60, "reason": "x"})).status == 410
    assert (await api.ask("DELETE", OVERRIDE)).status == 200
    assert (await api.ask("DELETE", MAINTENANCE)).status == 200
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
async def test_other_roles_cannot_override(
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
async def test_maintenance_without_end_or_reason_is_refused(api: RegistryApi, wrong: dict[str, Any]) -> None:
    await api.register("agent-1")
    assert (await api.ask("PUT", MAINTENANCE, wrong)).status == 422
    assert (await api.ask("PUT", OVERRIDE, {"status": "active", **wrong})).status == 422
    assert (await api.record("agent-1")).get("maintenance_until") is None


@pytest.mark.parametrize(("method", "body"), [("PUT", {"seconds": 60, "reason": "x"}), ("DELETE", None)])
async def test_pool_without_alive_members_is_not_found(
    api: RegistryApi, method: str, body: dict[str, object] | None
) -> None:
    await api.register("gone", role_id="billing")
    await api.ask("DELETE", f"{AGENTS}/gone")
    answer = await api.ask(method, POOL, body)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "pool_not_found")


async def test_refused_override_has_a_reason(api: RegistryApi) -> None:
    key = (await api.register("a"))["agent_key"]
    await api.ask("POST", "/api/v1/leases", {"resource": "task:1"}, key=key)
    await api.ask("PATCH", f"{AGENTS}/a/status", {"status": "draining"}, headers={"if-match": "*"})
    body = {"status": "active", "seconds": 60, "reason": "x"}
    answer = await api.ask("PUT", f"{AGENTS}/a/override", body)
    assert answer.status == 409
    assert {"draining", "declared_active"} <= set(answer.json()["message"].split())


WRONG = {"status": "unhealthy", "seconds": 3600, "reason": "wrong answers"}
DISKS = {"seconds": 3600, "reason": "new disks"}
UNTIL = "2025-11-20T13:00:00.000Z"


async def _end_life(api: RegistryApi, how: str) -> None:
    """Let a life of agent-1 end in one of the ways that there are."""
    match how:
        case "superseded":
            pass
        case "deregistered":
            await api.ask("DELETE", f"{AGENTS}/agent-1")
        case "drained":
            status = {"status": "draining"}
            path = f"{AGENTS}/agent-1/status"
            answer = await api.ask("PATCH", path, status, headers={"if-match": "*"})
            assert answer.status == 200, answer.body
            await api.sweep()
            assert await _status(api) == "deregistered"


@pytest.mark.both_databases
@pytest.mark.parametrize("how", ["superseded", "deregistered", "drained"])
async def test_registration_does_not_end_an_override(api: RegistryApi, how: str) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    assert (await api.ask("PUT", OVERRIDE, WRONG)).status == 200
    assert (await api.ask("PUT", MAINTENANCE, DISKS)).status == 200
    await _end_life(api, how)
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-1", "supersede": True}, key=key)
    record = answer.json()
    assert (answer.status, record["status"], record["incarnation"]) == (201, "unhealthy", 2)
    assert record["override"] == {"status": "unhealthy", "until": UNTIL}
    assert record["maintenance_until"] == UNTIL
    assert answer.header("etag") == (await api.record("agent-1"))["etag"]
    assert (await api.send_heartbeat("agent-1", key)).json()["agent_status"] == "unhealthy"
    steps = await api.lifecycle("agent-1")
    assert steps[-2:] == [
        ("deregistered", "active", "re_registered"),
        ("active", "unhealthy", "operator_override"),
    ]
    *_, again, pinned = await api.events(type="agent.lifecycle")
    stays = ("maintenance_until", "override_status", "override_until")
    assert [again["payload"].get(name) for name in stays] == [UNTIL, "unhealthy", UNTIL]
    assert [pinned["payload"].get(name) for name in stays] == [None, None, None]
    assert (again["actor"], pinned["actor"]) == ("agent-1", "monitor")
    api.clock.advance(3600)
    await api.send_heartbeat("agent-1", key)
    await api.sweep()
    record = await api.record("agent-1")
    assert (record["status"], record.get("override"), record.get("maintenance_until")) == (
        "active",
        None,
        None,
    )


async def test_log_and_store_agree_on_overrides_after_registration(api: RegistryApi) -> None:
    for seconds in (10, 3600):
        await api.register("agent-1", supersede=True)
        api.clock.advance(0.1234567)
        await api.ask("PUT", OVERRIDE, WRONG | {"seconds": seconds})
        await api.ask("PUT", MAINTENANCE, DISKS | {"seconds": seconds})
        api.clock.advance(11)
    await api.register("agent-1", supersede=True)
    await api.sweep()
    report = await api.database.read(verify_log)
    assert (report.fault, report.differences) == (None, ())


async def test_registration_drops_ended_overrides(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("PUT", OVERRIDE, WRONG)
    await api.ask("PUT", MAINTENANCE, DISKS)
    api.clock.advance(3600)
    record = await api.register("agent-1", supersede=True)
    assert (record["status"], record.get("override")) == ("active", None)
    assert "override_until" not in (await api.events(type="agent.lifecycle"))[-1]["payload"]


async def test_override_and_maintenance_survive_death_and_registration(
    api: RegistryApi,
) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.ask("POST", "/api/v1/leases", {"resource": "r", "ttl_seconds": 600}, key=key)
    await api.ask("PUT", OVERRIDE, WRONG | {"status": "active"})
    await api.ask("PUT", MAINTENANCE, DISKS)
    body = {"status": "draining", "drain_timeout_seconds": 5}
    await api.ask("PATCH", f"{AGENTS}/agent-1/status", body, headers={"if-match": "*"})
    api.clock.advance(6)
    await api.sweep()
    assert await _status(api) == "dead"
    await api.register("agent-1")
    api.clock.advance(1000)
    await api.sweep()
    assert await _status(api) == "active"


@pytest.mark.both_databases
async def test_override_of_a_former_agent_can_be_withdrawn(api: RegistryApi) -> None:
    await api.register("agent-1", role_id="billing")
    await api.ask("PUT", OVERRIDE, WRONG)
    await api.ask("PUT", POOL, DISKS)
    await api.ask("DELETE", f"{AGENTS}/agent-1")
    assert (await api.ask("DELETE", OVERRIDE)).json()["status"] == "deregistered"
    assert (await api.ask("DELETE", POOL)).json() == {"role_id": "billing", "agents": ["agent-1"]}
    record = await api.register("agent-1", role_id="billing")
    assert (record["status"], record.get("maintenance_until")) == ("active", None)


async def test_pool_maintenance_stays_with_its_members_and_excludes_later_ones(
    api: RegistryApi,
) -> None:
    for name in ("agent-1", "gone"):
        await api.register(name, role_id="billing")
    await api.ask("DELETE", f"{AGENTS}/gone")
    await api.ask("PUT", POOL, DISKS)
    for name in ("agent-1", "gone", "new"):
        await api.register(name, role_id="billing", supersede=name == "agent-1")
    names = ("agent-1", "gone", "new")
    found = [(await api.record(name)).get("maintenance_until") for name in names]
    assert found == [UNTIL, None, None]


async def test_end_of_a_pools_maintenance_names_its_agents(api: RegistryApi) -> None:
    for name in ("agent-1", "agent-2", "agent-3"):
        await api.register(name, role_id="billing")
    await api.ask("PUT", MAINTENANCE, DISKS)
    await api.ask("PUT", f"{AGENTS}/agent-2/maintenance", {"seconds": 1, "reason": "short"})
    api.clock.advance(2)
    assert (await api.ask("DELETE", POOL)).json()["agents"] == ["agent-1"]
    assert (await api.ask("DELETE", POOL)).json()["agents"] == []
    assert len(await api.events(type="agent.maintenance_changed")) == 3


async def test_ended_maintenance_is_hidden_without_an_event(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("PUT", OVERRIDE, WRONG)
    await api.ask("PUT", MAINTENANCE, DISKS)
    before = await api.record("agent-1")
    api.clock.advance(3600)
    record = await api.record("agent-1")
    assert (record.get("override"), record.get("maintenance_until")) == (None, None)
    assert record["etag"] == before["etag"]
    assert (await api.ask("DELETE", OVERRIDE)).json()["status"] == "active"
    assert (await api.ask("DELETE", MAINTENANCE)).status == 200
    assert len(await api.events(type="agent.override_changed")) == 1
    assert len(await api.events(type="agent.maintenance_changed")) == 1


async def test_erased_agent_returns_without_overrides(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("PUT", OVERRIDE, WRONG)
    await api.ask("PUT", MAINTENANCE, DISKS)
    assert (await api.ask("DELETE", f"{AGENTS}/agent-1/record")).status == 200
    record = await api.register("agent-1")
    assert (record["status"], record.get("override"), record.get("maintenance_until")) == (
        "active",
        None,
        None,
    )


CARD = "https://aa.example/.well-known/agent-card.json"


@pytest.mark.parametrize(
    ("path", "is_taken_back"),
    [
        pytest.param(MAINTENANCE, True, marks=pytest.mark.both_databases),
        (MAINTENANCE, False),
        (OVERRIDE, True),
        pytest.param(OVERRIDE, False, marks=pytest.mark.both_databases),
    ],
)
@pytest.mark.parametrize("failures", [10, *in_faults(20)])
async def test_failures_before_an_operators_decision_take_no_agent_down(
    api: RegistryApi,
    path: str,
    is_taken_back: bool,  # noqa: FBT001 - a parameter of pytest
    failures: int,
) -> None:
    await api.register("agent-1", card_url=CARD, monitoring="probe")
    await _probe(api, "ok")
    status = {"status": "active"} if path == OVERRIDE else {}
    answer = await api.ask("PUT", path, {"seconds": failures * 300 + 10, "reason": "new disks", **status})
    assert answer.status == 200, answer.body
    for _ in range(failures):
        api.clock.advance(300)
        await _probe(api, "refused")
        await api.sweep()
    if is_taken_back:
        assert (await api.ask("DELETE", path)).status == 200
    api.clock.advance(11)
    await api.sweep()
    # A recheck is requested; without its result the status stays.
    assert await _status(api) == "active"
    assert await _rechecks(api) == [api.clock.at_s - (11 if is_taken_back else 0)]
    record = await api.record("agent-1")
    assert record["observed"]["failures_in_row"] == failures
    statuses = []
    for _ in range(16):
        await _probe(api, "refused")
        await api.sweep()
        statuses.append(await _status(api))
        api.clock.advance(300)
    # The timeout begins at the last result before the end, 11 s before the first sweep here.
    assert statuses == ["active"] * 3 + ["unhealthy"] * 9 + ["dead"] * 4


async def _probe(api: RegistryApi, result: str) -> None:
    seen = {"agent_id": "agent-1", "observed_at": api.time_text(), "discovery": {"result": result}}
    answer = await api.report(seen)
    assert answer.json()["counts"] == {"accepted": 1}, answer.body


async def _rechecks(api: RegistryApi) -> list[float]:
    def recheck_times(transaction: Transaction) -> list[float]:
        return list(transaction.connection.scalars(select(targets.c.recheck_at_s)))

    return await api.database.read(recheck_times)
