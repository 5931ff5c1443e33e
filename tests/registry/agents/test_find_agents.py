import pytest
from tests.support.probed_fleet import report, result
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role


async def _ids(api: RegistryApi, query: str = "", key: Role = Role.READER) -> list[str]:
    answer = await api.ask("GET", f"{AGENTS}?{query}", key=key)
    assert answer.status == 200, answer.body
    listed = answer.json()
    assert listed["total"] == len(listed["agents"])
    return [agent["agent_id"] for agent in listed["agents"]]


async def _some(api: RegistryApi) -> None:
    await api.register("a", capabilities=["billing"], capacity={"max_concurrent_tasks": 5})
    await api.register("b", capabilities=["billing", "invoicing"], capacity={"max_concurrent_tasks": 2})
    await api.register("c", capabilities=["translation"], role_id="translator")
    await api.register("d")


async def test_active_agents_are_listed_in_order_of_registration_by_default(api: RegistryApi) -> None:
    await _some(api)
    await api.ask("DELETE", f"{AGENTS}/d")
    assert await _ids(api) == ["a", "b", "c"]
    assert await _ids(api, "status=deregistered") == ["d"]
    assert await _ids(api, "status=active,deregistered") == ["a", "b", "c", "d"]


async def test_agent_with_any_listed_capability_matches(api: RegistryApi) -> None:
    await _some(api)
    assert await _ids(api, "capabilities=billing") == ["a", "b"]
    assert await _ids(api, "capabilities=invoicing,translation") == ["b", "c"]
    assert await _ids(api, "capabilities=billing,invoicing") == ["a", "b"]
    assert await _ids(api, "capabilities=absent") == []


async def test_agent_without_capacity_has_no_free_capacity(api: RegistryApi) -> None:
    await _some(api)
    key = await api.add_agent_key("a")
    await api.send_heartbeat("a", key, current_load=4)
    assert await _ids(api, "min_available_capacity=2") == ["b"]
    assert await _ids(api, "min_available_capacity=1") == ["a", "b"]
    assert await _ids(api, "min_available_capacity=0") == ["a", "b"]


async def test_draining_agent_is_not_found_by_default(api: RegistryApi) -> None:
    await _some(api)
    key = await api.add_agent_key("a")
    await api.send_heartbeat("a", key, status="draining")
    assert await _ids(api, "capabilities=billing") == ["b"]
    assert await _ids(api, "capabilities=billing&status=draining") == ["a"]


async def test_least_loaded_agents_come_first_on_request(api: RegistryApi) -> None:
    await _some(api)
    for agent_id, load in (("a", 4), ("b", 1), ("c", 2), ("d", 1)):
        await api.send_heartbeat(agent_id, await api.add_agent_key(agent_id), current_load=load)
    assert await _ids(api, "sort=least_loaded") == ["b", "d", "c", "a"]


@pytest.mark.both_databases
async def test_agent_filters_can_be_combined(api: RegistryApi) -> None:
    await _some(api)
    await api.register("e", capabilities=["billing"], role_id="clerk", capacity={"max_concurrent_tasks": 3})
    for agent_id, load in (("a", 4), ("b", 1), ("c", 2), ("e", 0)):
        await api.send_heartbeat(agent_id, await api.add_agent_key(agent_id), current_load=load)
    both = "capabilities=billing,invoicing"
    assert await _ids(api, f"{both}&min_available_capacity=1") == ["a", "b", "e"]
    assert await _ids(api, f"{both}&min_available_capacity=1&sort=least_loaded") == ["e", "b", "a"]
    assert await _ids(api, f"{both}&sort=least_loaded") == ["e", "b", "a"]
    assert await _ids(api, f"{both}&min_available_capacity=2") == ["e"]
    assert await _ids(api, "capabilities=billing&min_available_capacity=2&sort=least_loaded") == ["e"]
    assert await _ids(api, f"{both}&role_id=clerk&min_available_capacity=1") == ["e"]
    assert await _ids(api, f"{both}&role_id=clerk") == ["e"]
    assert await _ids(api, f"{both}&health=healthy&min_available_capacity=1") == []
    assert await _ids(api, "capabilities=translation&min_available_capacity=0") == []


async def test_agent_list_contains_the_endpoint_of_each_agent(api: RegistryApi) -> None:
    card_url = "https://a.example/.well-known/agent-card.json"
    await api.register("a", endpoint="https://a.example/a2a", card_url=card_url)
    await api.register("b")
    a, b = (await api.ask("GET", AGENTS, key=Role.READER)).json()["agents"]
    assert (a["endpoint"], a["card_url"]) == ("https://a.example/a2a", card_url)
    assert b.keys().isdisjoint({"endpoint", "card_url"})


@pytest.mark.both_databases
@pytest.mark.parametrize("sort", ["registered", "least_loaded"])
async def test_pages_show_each_agent_once(api: RegistryApi, sort: str) -> None:
    ids = [f"agent-{number:02}" for number in range(23)]
    for number, agent_id in enumerate(ids):
        record = await api.register(agent_id)
        await api.send_heartbeat(agent_id, record["agent_key"], current_load=number % 3)
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await api.ask("GET", f"{AGENTS}?limit=5&sort={sort}{cursor}")).json()
        assert page["total"] == 23
        seen += [agent["agent_id"] for agent in page["agents"]]
        if "cursor" not in page:
            break
        cursor = f"&cursor={page['cursor']}"
    assert sorted(seen) == ids
    assert len(seen) == 23


async def test_pool_totals_are_sums_of_its_active_members(api: RegistryApi) -> None:
    for number in range(3):
        await api.register(f"m{number}", role_id="billing-processor", capacity={"max_concurrent_tasks": 5})
    await api.register("quiet", role_id="billing-processor")
    await api.send_heartbeat("m0", await api.add_agent_key("m0"), current_load=4)
    await api.send_heartbeat("quiet", await api.add_agent_key("quiet"), current_load=9)
    await api.ask("DELETE", f"{AGENTS}/m2")
    answer = (await api.ask("GET", f"{AGENTS}?role_id=billing-processor")).json()
    assert answer["pool"] == {
        "role_id": "billing-processor",
        "members": {"active": 3, "deregistered": 1},
        "max_concurrent_tasks": 10,
        "current_load": 4,
        "available_capacity": 6,
    }


@pytest.mark.both_databases
async def test_agents_key_reads_only_the_totals_of_its_pool(api: RegistryApi) -> None:
    await api.register("member", role_id="billing-processor")
    await api.register("other", role_id="writers")
    for agent_id, is_shown in (("member", True), ("other", False)):
        key = await api.add_agent_key(agent_id)
        answer = (await api.ask("GET", f"{AGENTS}?role_id=billing-processor", key=key)).json()
        assert ("pool" in answer) is is_shown


async def test_agents_key_lists_only_itself(api: RegistryApi) -> None:
    await _some(api)
    key = await api.add_agent_key("a")
    listed = (await api.ask("GET", AGENTS, key=key)).json()
    assert [agent["agent_id"] for agent in listed["agents"]] == ["a"]
    assert listed["total"] == 1
    assert (await api.ask("GET", f"{AGENTS}/a", key=key)).status == 200
    assert (await api.ask("GET", f"{AGENTS}/b", key=key)).status == 403


async def test_enrolling_key_cannot_list_agents(api: RegistryApi) -> None:
    assert (await api.ask("GET", AGENTS, key=Role.ENROLL)).status == 403


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("limit=0", "/limit"),
        ("limit=1001", "/limit"),
        ("limit=x", "/limit"),
        ("status=alive", "/status/0"),
        ("status=", "/status"),
        ("status=active,,dead", "/status/1"),
        ("capabilities=a,", "/capabilities/1"),
        ("health=fine", "/health/0"),
        ("sort=random", "/sort"),
        ("cursor=nonsense", "/cursor"),
        ("cursor=W10", "/cursor"),
        ("cursor=Wy0xXQ", "/cursor"),
        ("cursor=" + "W" * 600, "/cursor"),
        ("min_available_capacity=-1", "/min_available_capacity"),
        ("role_id=a%20b", "/role_id"),
        ("limit=1&limit=2", "/limit"),
        ("colour=red", "/colour"),
    ],
)
async def test_invalid_agent_query_is_refused_with_its_pointer(
    api: RegistryApi, query: str, pointer: str
) -> None:
    answer = await api.ask("GET", f"{AGENTS}?{query}")
    assert answer.status == 422
    assert answer.json()["error"]["details"]["faults"][0]["pointer"] == pointer


async def test_an_unknown_agent_is_not_found(api: RegistryApi) -> None:
    answer = await api.ask("GET", f"{AGENTS}/nobody")
    assert answer.status == 404
    assert answer.json()["error"]["code"] == "agent_not_found"
    assert answer.json()["message"]


async def test_agent_record_contains_reported_facts_and_verdict(api: RegistryApi) -> None:
    await api.register("a")
    api.clock.advance(12)
    record = await api.record("a")
    assert record["reported"]["last_heartbeat_at"] == "2025-11-20T12:00:00.000Z"
    assert record["reason"] == "registered"
    assert record["explanation"]
    assert record["is_unreachable"] is False


@pytest.mark.both_databases
async def test_agent_that_was_probed_as_an_mcp_server_has_that_kind(api: RegistryApi) -> None:
    for number in range(2):
        await api.register(f"agent-{number}", monitoring="probe", card_url="https://agent.example/card")
    await report(api, result(api.clock, 0, kind="mcp"), result(api.clock, 1))
    found = (await api.ask("GET", AGENTS)).json()["agents"]
    assert [agent.get("kind") for agent in found] == ["mcp", None]
    assert (await api.record("agent-0"))["kind"] == "mcp"


async def test_record_of_a_probed_agent_has_no_heartbeat(api: RegistryApi) -> None:
    for monitoring in ("heartbeat", "probe", "both"):
        record = await api.register(monitoring, monitoring=monitoring, card_url="https://agent.example/card")
        assert ("last_heartbeat_at" in record) is (monitoring != "probe")
    listing = (await api.ask("GET", AGENTS)).json()["agents"]
    assert [agent["agent_id"] for agent in listing if "last_heartbeat_at" in agent] == ["heartbeat", "both"]
    record = await api.record("probe")
    assert "last_heartbeat_at" not in record
    assert "last_heartbeat_at" not in record["reported"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("PUT", AGENTS, 405, "method_not_allowed"),
        ("DELETE", f"{AGENTS}/a/heartbeat", 405, "method_not_allowed"),
        ("GET", f"{AGENTS}/../../etc/passwd", 404, "not_found"),
    ],
)
async def test_unrouted_request_gets_the_common_error_form(
    api: RegistryApi, method: str, path: str, status: int, code: str
) -> None:
    answer = await api.ask(method, path)
    assert answer.status == status
    assert answer.json()["error"]["code"] == code


async def test_deregistering_key_is_named_to_readers_of_events(
    api: RegistryApi,
) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    assert "names" not in await api.record("agent-1")
    await api.ask("DELETE", f"{AGENTS}/agent-1", key=Role.COORDINATOR)
    record = await api.record("agent-1")
    assert record["explanation"] == "asked by key:key_coordinator_"
    assert record["names"] == {"key:key_coordinator_": "coordinator"}
    its_own = await api.ask("GET", f"{AGENTS}/agent-1", key=key)
    assert (its_own.status, "names" in its_own.json()) == (200, False)


async def test_pending_commands_are_shown_with_their_agent(api: RegistryApi) -> None:
    await api.register("agent-1")
    assert (await api.record("agent-1"))["pending_commands"] == []
    body = {"command": "drain", "reason": "new disk", "expires_in_seconds": 60}
    sent = (await api.ask("POST", f"{AGENTS}/agent-1/commands", body)).json()
    (shown,) = (await api.record("agent-1"))["pending_commands"]
    assert shown == {"id": sent["id"], "command": "drain", "reason": "new disk"}
    api.clock.advance(60)
    assert (await api.record("agent-1"))["pending_commands"] == []
