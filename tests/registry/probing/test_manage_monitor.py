from datetime import datetime
from typing import Any

import pytest
from tests.support.asgi_client import Answer
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents, count_by_status
from tests.support.probed_fleet import CLASS, report, result
from tests.support.probed_fleet import fleet as probed_fleet
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.registry.probing import manage_monitor
from lifesign.storage.engine.transaction import Database

MONITOR = "/api/v1/monitor"


async def shown(api: RegistryApi) -> dict[str, Any]:
    return dict((await api.ask("GET", MONITOR)).json())


async def confirm(api: RegistryApi, members: dict[str, str], key: Role = Role.ADMIN) -> Answer:
    return await api.ask("POST", f"{MONITOR}/confirm", members, key=key)


async def test_registry_before_its_first_sweep_is_normal(api: RegistryApi) -> None:
    shown = (await api.ask("GET", MONITOR, key=Role.READER)).json()
    assert shown == {
        "state": "normal",
        "since": "2025-11-20T12:00:00.000Z",
        "tracks": {
            name: {
                "state": "normal",
                "since": "2025-11-20T12:00:00.000Z",
                "exits": 0,
                "limit": 20,
                "baseline": 0,
                "unwitnessed": 0,
            }
            for name in ("heartbeat", "probe")
        },
        "silent_classes": {},
        "confirmed_classes": {},
        "disallowed_targets": [],
        "missing_credentials": [],
        "credential_faults": [],
        "excluded_downtime": [],
    }
    await api.sweep()
    assert (await api.ask("GET", MONITOR)).json()["swept_at"] == "2025-11-20T12:00:00.000Z"


async def test_silent_agents_die_after_an_operator_ends_the_suspension(api: RegistryApi) -> None:
    await add_agents(api.database, 30)
    api.clock.advance(91)
    await api.sweep()
    shown = (await api.ask("GET", MONITOR)).json()
    assert (shown["state"], shown["tracks"]["heartbeat"]["exits"]) == ("suspended", 30)
    assert shown["tracks"]["probe"]["state"] == "normal"
    api.clock.advance(10)
    released = await api.ask("POST", f"{MONITOR}/release")
    assert released.json()["state"] == "resuming"
    assert released.json()["excluded_downtime"] == [
        {"begin": "2025-11-20T12:01:31.000Z", "end": "2025-11-20T12:01:41.000Z"}
    ]
    api.clock.advance(6)
    await api.sweep()
    assert await count_by_status(api.database) == {"unhealthy": 30}
    events = await api.events(type="monitor.resuming")
    assert [event["payload"]["cause"] for event in events] == ["released"]
    assert [event["actor"] for event in events] == ["key:key_admin_"]


async def test_suspended_time_does_not_count_as_missed_heartbeats(api: RegistryApi) -> None:
    await add_agents(api.database, 30)
    api.clock.advance(91)
    await api.sweep()
    for _ in range(30):
        api.clock.advance(10)
        await api.sweep()
    await api.ask("POST", f"{MONITOR}/release")
    for wound_s, expected in ((16, "unhealthy"), (192, "unhealthy"), (2, "dead")):
        api.clock.advance(wound_s)
        await api.sweep()
        assert await count_by_status(api.database) == {expected: 30}


async def test_ending_an_absent_suspension_changes_nothing(api: RegistryApi) -> None:
    assert (await api.ask("POST", f"{MONITOR}/release")).json()["state"] == "normal"
    assert await api.events(type="monitor.resuming") == []


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [("GET", MONITOR, Role.ENROLL), ("POST", f"{MONITOR}/release", Role.COORDINATOR)],
)
async def test_other_roles_cannot_end_a_suspension(
    api: RegistryApi, method: str, path: str, role: Role
) -> None:
    assert (await api.ask(method, path, key=role)).status == 403


async def test_no_key_of_a_prober_suspends_verdicts(api: RegistryApi) -> None:
    body = {"ill": True, "why": "no DNS", "seconds": 300}
    assert (await api.ask("POST", f"{MONITOR}/illness", body, key=Role.PROBER)).status == 404
    assert (await api.ask("POST", f"{MONITOR}/release?track=both")).status == 422


async def test_suspension_policy_follows_the_settings(database: Database, clock: WoundClock) -> None:
    api = RegistryApi(database, clock, mass_exit_min_exits=3)
    await api.add_keys()
    await add_agents(database, 4)
    clock.advance(91)
    await api.sweep()
    shown = (await api.ask("GET", MONITOR)).json()["tracks"]["heartbeat"]
    assert (shown["state"], shown["limit"], shown["exits"]) == ("suspended", 3, 4)


@pytest.mark.both_databases
async def test_an_operator_confirms_a_class(api: RegistryApi, clock: WoundClock) -> None:
    await probed_fleet(api, 1)
    clock.advance(60)
    done = await confirm(api, {"network_class": CLASS})
    at = done.json()["confirmed_at"]
    assert (done.status, done.json()) == (200, {"network_class": CLASS, "confirmed_at": at})
    assert (await shown(api))["confirmed_classes"] == {CLASS: at}
    assert (await report(api, result(clock, 0)))["confirmed_classes"] == {CLASS: at}
    clock.advance(60)
    later = (await confirm(api, {"network_class": CLASS})).json()["confirmed_at"]
    assert (await shown(api))["confirmed_classes"] == {CLASS: later}
    events = await api.events(type="monitor.confirmed")
    assert [(event["actor"], event["payload"]) for event in events] == [
        ("key:key_admin_", {"network_class": CLASS})
    ] * 2


async def test_an_operator_confirms_one_agent(api: RegistryApi) -> None:
    await probed_fleet(api, 2)
    before = (await api.ask("GET", "/api/v1/shards", key=Role.PROBER)).json()["version"]
    done = await confirm(api, {"agent_id": "agent-1"})
    at = done.json()["confirmed_at"]
    shard = (await api.ask("GET", "/api/v1/targets/agent-1")).json()["shard"]
    changes = await api.ask("GET", f"/api/v1/shards/{shard}/targets?after_version={before}", key=Role.PROBER)
    fed = changes.json()["targets"]
    [target] = fed
    assert target["subject_id"] == "agent-1"
    assert datetime.fromisoformat(target["confirmed_at"]) == datetime.fromisoformat(at)
    [event] = await api.events(type="monitor.confirmed", agent_id="agent-1")
    assert (event["actor"], event["payload"]) == ("key:key_admin_", {"agent_id": "agent-1"})


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("members", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"network_class": CLASS, "agent_id": "agent-0"}, 422, "invalid_request"),
        ({"network_class": "public_ipv4"}, 404, "network_class_not_found"),
        ({"agent_id": "nobody"}, 404, "target_not_found"),
    ],
)
async def test_empty_confirmation_is_refused(
    api: RegistryApi, members: dict[str, str], status: int, code: str
) -> None:
    await probed_fleet(api, 1)
    refused = await confirm(api, members)
    assert (refused.status, refused.json()["error"]["code"]) == (status, code)
    if code == "network_class_not_found":
        assert refused.json()["error"]["details"]["classes"] == CLASS, "existing classes"
    assert await api.events(type="monitor.confirmed") == []


@pytest.mark.parametrize("role", [role for role in Role if role not in {Role.ADMIN, Role.AGENT}])
async def test_only_an_admin_confirms(api: RegistryApi, role: Role) -> None:
    await probed_fleet(api, 1)
    assert (await confirm(api, {"network_class": CLASS}, role)).status == 403


async def test_only_the_latest_confirmed_classes_are_kept(
    api: RegistryApi, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manage_monitor, "MAX_CONFIRMED_CLASSES", 5)
    await probed_fleet(api, 1)
    for number in range(6):
        clock.advance(1)
        await report(api, result(clock, 0, network_class=f"10.{number}.0.0/16"))
        assert (await confirm(api, {"network_class": f"10.{number}.0.0/16"})).status == 200
    classes = (await shown(api))["confirmed_classes"]
    assert len(classes) == 5
    assert "10.0.0.0/16" not in classes
