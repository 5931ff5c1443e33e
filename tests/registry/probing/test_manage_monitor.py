import pytest
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents, count_by_status
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.storage.engine.transaction import Database

MONITOR = "/api/v1/monitor"


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
