import pytest
from tests.support.asgi_client import Answer
from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.targets.target import target_id
from lifesign.errors import InvalidValue
from lifesign.registry.openintent_dialect import OPERATIONS, PREFIX
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.engine.transaction import Database

AGENTS = f"{PREFIX}/agents"


@pytest.fixture
async def api(database: Database, clock: WoundClock) -> RegistryApi:
    """Shadows the usual one: it speaks the dialect too."""
    api = RegistryApi(database, clock, dialects=("openintent",))
    await api.add_keys()
    return api


async def registered(api: RegistryApi, agent_id: str = "one") -> str:
    """Register an agent in the dialect and return its key."""
    answer = await api.ask("POST", f"{AGENTS}/register", {"agent_id": agent_id})
    assert answer.status == 200, answer.body
    return str(answer.json()["agent_key"])


async def acquired(api: RegistryApi, key: str, intent_id: str = "i", scope: str = "s") -> Answer:
    return await api.ask("POST", f"{PREFIX}/intents/{intent_id}/leases", {"scope": scope}, key=key)


async def test_dialect_is_served_only_if_switched_on(database: Database, clock: WoundClock) -> None:
    api = RegistryApi(database, clock)
    for operation in OPERATIONS:
        path = operation.path.replace("{agent_id}", "a").replace("{intent_id}", "i")
        assert (await api.ask(operation.method, path)).status == 404


def test_another_dialect_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"dialects: .*openintent"):
        RegistrySettings.read(dialects=("esperanto",))


async def test_dialect_registration_ignores_null_and_unknown_members(api: RegistryApi) -> None:
    body = {"agent_id": "one", "capacity": None, "heartbeat_config": None, "public_key": "x", "did": 1}
    answer = await api.ask("POST", f"{AGENTS}/register", body, key=Role.ENROLL)
    assert answer.status == 200
    record = answer.json()
    assert record["capacity"] == {"max_concurrent_tasks": None, "current_load": 0}
    assert record["registered_at"] == record["last_heartbeat_at"] == "2025-11-20T12:00:00.000"
    assert answer.header("etag") == "1"
    assert await api.lifecycle("one") == [("registering", "active", "registered")]


async def test_registration_by_target_id_is_refused(api: RegistryApi) -> None:
    body = {"agent_id": target_id("https://agent.example/")}
    assert (await api.ask("POST", f"{AGENTS}/register", body, key=Role.ENROLL)).status == 400


async def test_agent_without_heartbeats_has_null_for_the_sdk(api: RegistryApi) -> None:
    body = {"agent_id": "one", "monitoring": "probe", "card_url": "https://agent.example/card"}
    answer = await api.ask("POST", f"{AGENTS}/register", body)
    assert answer.json()["last_heartbeat_at"] is None
    (shown,) = (await api.ask("GET", AGENTS)).json()
    assert shown["last_heartbeat_at"] is None


@pytest.mark.both_databases
async def test_a_heartbeat_without_a_time_shows_no_drift(api: RegistryApi) -> None:
    key = await registered(api)
    api.clock.advance(95)
    await api.sweep()
    path = f"{AGENTS}/one/heartbeat"
    answer = await api.ask("POST", path, {"current_load": 2, "tasks_in_progress": []}, key=key)
    assert (answer.status, answer.json()["agent_status"]) == (200, "active")
    assert [step[2] for step in await api.lifecycle("one")][1:] == ["heartbeat_timeout", "heartbeat_resumed"]
    late = {"client_timestamp": "2025-11-20T11:00:00Z"}
    assert (await api.ask("POST", path, late, key=key)).status == 200
    assert [event["type"] for event in await api.events(type="agent.drift_warning")] == [
        "agent.drift_warning"
    ]


async def test_heartbeat_for_another_agent_is_refused(api: RegistryApi) -> None:
    await registered(api)
    key = await registered(api, "two")
    answer = await api.ask("POST", f"{AGENTS}/one/heartbeat", {}, key=key)
    assert answer.status == 403
    assert answer.json()["message"] == answer.json()["error"]["message"]


@pytest.mark.both_databases
async def test_dialect_status_change_needs_no_version_or_a_bare_one(api: RegistryApi) -> None:
    key = await registered(api)
    path, draining = f"{AGENTS}/one/status", {"status": "draining"}
    stale = await api.ask("PATCH", path, draining, key=key, headers={"If-Match": "7"})
    assert (stale.status, stale.json()["current_version"]) == (409, 1)
    assert stale.header("etag") is None
    changed = await api.ask("PATCH", path, draining, key=key, headers={"If-Match": '"1"'})
    assert (changed.status, changed.header("etag")) == (200, "2")
    gone = await api.ask("PATCH", path, {"status": "deregistered"}, key=key)
    assert (gone.status, gone.json()["status"]) == (200, "deregistered")


async def test_bare_version_matches_in_a_later_incarnation(api: RegistryApi) -> None:
    key = await registered(api)
    await api.ask("PATCH", f"{AGENTS}/one/status", {"status": "deregistered"}, key=key)
    again = await api.ask("POST", f"{AGENTS}/register", {"agent_id": "one"}, key=key)
    assert (again.status, again.header("etag")) == (200, "1")
    headers = {"If-Match": "1"}
    answer = await api.ask("PATCH", f"{AGENTS}/one/status", {"status": "draining"}, key=key, headers=headers)
    assert answer.status == 200


async def test_full_page_of_the_dialect_links_to_the_next(api: RegistryApi) -> None:
    for agent_id in ("one", "two"):
        await registered(api, agent_id)
    first = await api.ask("GET", f"{AGENTS}?limit=1")
    assert [agent["agent_id"] for agent in first.json()] == ["one"]
    link = str(first.header("link"))
    assert link.endswith('>; rel="next"')
    second = await api.ask("GET", f"{AGENTS}{link[1:].partition('>')[0]}&limit=1")
    assert [agent["agent_id"] for agent in second.json()] == ["two"]
    assert second.header("link") is None


@pytest.mark.both_databases
async def test_leases_of_an_intent_have_exactly_its_resource_prefix(api: RegistryApi) -> None:
    key = await registered(api)
    for intent_id in ("i_1", "ix1", "I_1", "i_"):
        assert (await acquired(api, key, intent_id)).status == 200
    answer = await api.ask("GET", f"{PREFIX}/intents/i_1/leases", key=key)
    assert [(lease["intent_id"], lease["scope"]) for lease in answer.json()["leases"]] == [("i_1", "s")]


async def test_agent_key_lists_its_own_leases_and_a_reader_key_all(api: RegistryApi) -> None:
    await acquired(api, await registered(api))
    other = await registered(api, "two")
    path = f"{PREFIX}/intents/i/leases"
    assert (await api.ask("GET", path, key=other)).json() == {"leases": []}
    assert len((await api.ask("GET", path, key=Role.READER)).json()["leases"]) == 1


async def test_conflicting_lease_is_returned_in_the_dialect(api: RegistryApi) -> None:
    held = (await acquired(api, await registered(api))).json()
    answer = await acquired(api, await registered(api, "two"))
    assert answer.status == 409
    assert answer.json()["existing_lease"] == held
    assert held["agent_id"] == "one"
    assert held["expires_at"] == "2025-11-20T12:05:00.000"


async def test_a_lease_that_is_over_or_of_another_kind_is_not_renewed(api: RegistryApi) -> None:
    key = await registered(api)
    lease_id = (await acquired(api, key)).json()["id"]
    task = await api.ask("POST", "/api/v1/leases", {"resource": "task:i/s"}, key=key)
    path = f"{PREFIX}/intents/i/leases"
    for named in (task.json()["lease_id"], "lease_99_1", "lease_0_0", "nonsense", f"lease_{10**17}_1"):
        assert (await api.ask("PATCH", f"{path}/{named}", {}, key=key)).status == 404, named
        assert (await api.ask("DELETE", f"{path}/{named}", key=key)).status == 404, named
    api.clock.advance(200)
    kept = await api.ask("PATCH", f"{path}/{lease_id}", {"duration_seconds": 60}, key=key)
    assert (kept.status, kept.json()["expires_at"]) == (200, "2025-11-20T12:04:20.000")
    api.clock.advance(61)
    assert (await api.ask("PATCH", f"{path}/{lease_id}", {}, key=key)).status == 404


@pytest.mark.both_databases
async def test_lease_of_another_is_refused_like_one_that_does_not_exist(api: RegistryApi) -> None:
    lease_id = (await acquired(api, await registered(api))).json()["id"]
    other = await registered(api, "two")
    forged = lease_id[:-26] + "a" * 26
    for headers, status in (
        ({}, 404),
        ({"X-Agent-Incarnation": "7"}, 410),
        ({"X-Agent-Incarnation": "x"}, 400),
    ):
        result = set()
        for intent_id in ("i", "j"):
            for named in (lease_id, forged, lease_id[:-1], "lease_99_1", "nonsense"):
                path = f"{PREFIX}/intents/{intent_id}/leases/{named}"
                for method, body in (("PATCH", {}), ("DELETE", None)):
                    answer = await api.ask(method, path, body, key=other, headers=headers)
                    result.add((answer.status, answer.body.decode().replace(named, "ID")))
        assert len(result) == 1
        assert result.pop()[0] == status


async def test_released_lease_has_status_released_in_the_dialect(api: RegistryApi) -> None:
    key = await registered(api)
    lease_id = (await acquired(api, key)).json()["id"]
    answer = await api.ask("DELETE", f"{PREFIX}/intents/i/leases/{lease_id}", key=key)
    assert (answer.status, answer.json()["status"]) == (200, "released")
    assert answer.json()["released_at"] == "2025-11-20T12:00:00.000"


@pytest.mark.parametrize("scope", ["", "..", "a/./b", "a b", "a'b", "\x00", "s" * 600, 7])
async def test_invalid_resource_is_refused_with_its_place(api: RegistryApi, scope: object) -> None:
    key = await registered(api)
    answer = await api.ask("POST", f"{PREFIX}/intents/i/leases", {"scope": scope}, key=key)
    assert answer.status == 400
    assert isinstance(answer.json()["errors"], list)


@pytest.mark.parametrize("intent_id", ["..", "a b", "'", "i" * 129])
async def test_invalid_intent_is_refused(api: RegistryApi, intent_id: str) -> None:
    key = await registered(api)
    assert (await acquired(api, key, intent_id)).status == 400
    assert (await api.ask("GET", f"{PREFIX}/intents/{intent_id}/leases", key=key)).status == 400
