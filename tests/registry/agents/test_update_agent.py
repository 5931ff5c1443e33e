import pytest
from tests.support.registry_api import AGENTS, RegistryApi

PATH = f"{AGENTS}/agent-1"
FIRST = {"if-match": '"1"'}
SHORT = {"interval_seconds": 5, "unhealthy_after_seconds": 10, "dead_after_seconds": 20}


async def test_update_changes_only_named_members(api: RegistryApi) -> None:
    record = await api.register("agent-1", name="old", capabilities=["a", "b"], metadata={"x": 1})
    body = {"capabilities": ["b", "c"], "max_concurrent_tasks": 9, "endpoint": "https://e.example/"}
    answer = await api.ask("PATCH", PATH, body, key=record["agent_key"], headers=FIRST)
    assert answer.status == 200
    assert answer.header("etag") == '"2"'
    changed = answer.json()
    assert changed["capabilities"] == ["b", "c"]
    assert changed["capacity"]["max_concurrent_tasks"] == 9
    assert (changed["name"], changed["metadata"], changed["version"]) == ("old", {"x": 1}, 2)
    listed = (await api.ask("GET", f"{AGENTS}?capabilities=c")).json()["agents"]
    assert [agent["agent_id"] for agent in listed] == ["agent-1"]
    assert (await api.ask("GET", f"{AGENTS}?capabilities=a")).json()["total"] == 0
    event = (await api.events(type="agent.updated"))[0]["payload"]
    assert event["changed"] == ["capabilities", "endpoint", "max_concurrent_tasks"]


@pytest.mark.both_databases
async def test_null_removes_optional_members_only(api: RegistryApi) -> None:
    await api.register("agent-1", name="old")
    answer = await api.ask("PATCH", PATH, {"name": None}, headers=FIRST)
    assert "name" not in answer.json()
    refused = await api.ask("PATCH", PATH, {"metadata": None}, headers={"if-match": "*"})
    assert refused.status == 422


async def test_update_without_change_keeps_the_version(api: RegistryApi) -> None:
    await api.register("agent-1", name="same")
    answer = await api.ask("PATCH", PATH, {"name": "same"}, headers=FIRST)
    assert (answer.status, answer.header("etag")) == (200, '"1"')
    assert await api.events(type="agent.updated") == []


async def test_one_of_two_changes_of_one_version_is_accepted(api: RegistryApi) -> None:
    await api.register("agent-1")
    first = await api.ask("PATCH", PATH, {"name": "x"}, headers=FIRST)
    second = await api.ask("PATCH", PATH, {"name": "y"}, headers=FIRST)
    assert (first.status, second.status) == (200, 412)
    assert (await api.record("agent-1"))["name"] == "x"


async def sweep_for(api: RegistryApi, seconds: int) -> None:
    for _ in range(seconds):
        api.clock.advance(1)
        await api.sweep()


@pytest.mark.both_databases
async def test_shorter_thresholds_count_from_the_change(api: RegistryApi) -> None:
    await api.register("agent-1")
    await sweep_for(api, 60)
    await api.ask("PATCH", PATH, {"heartbeat_config": SHORT}, headers=FIRST)
    await sweep_for(api, 10)
    assert (await api.record("agent-1"))["status"] == "active"
    await sweep_for(api, 1)
    assert (await api.record("agent-1"))["status"] == "unhealthy"
    await sweep_for(api, 10)
    assert (await api.record("agent-1"))["status"] == "dead"


@pytest.mark.both_databases
async def test_shorter_thresholds_count_alone_after_the_next_heartbeat(api: RegistryApi) -> None:
    record = await api.register("agent-1")
    await sweep_for(api, 60)
    await api.ask("PATCH", PATH, {"heartbeat_config": SHORT}, headers=FIRST)
    await api.send_heartbeat("agent-1", record["agent_key"])
    await sweep_for(api, 10)
    assert (await api.record("agent-1"))["status"] == "active"
    await sweep_for(api, 11)
    assert (await api.record("agent-1"))["status"] == "dead"


async def test_shorter_thresholds_delay_no_death(api: RegistryApi) -> None:
    await api.register("agent-1")
    await sweep_for(api, 299)
    config = {"interval_seconds": 30, "unhealthy_after_seconds": 60, "dead_after_seconds": 200}
    await api.ask("PATCH", PATH, {"heartbeat_config": config}, headers={"if-match": "*"})
    await sweep_for(api, 2)
    assert (await api.record("agent-1"))["status"] == "dead"


@pytest.mark.parametrize(
    "body", [{"status": "active"}, {"agent_id": "b"}, {"heartbeat_config": {"dead_after_seconds": 1}}]
)
async def test_change_of_a_fixed_member_is_refused(api: RegistryApi, body: dict[str, object]) -> None:
    await api.register("agent-1")
    assert (await api.ask("PATCH", PATH, body, headers=FIRST)).status == 422


async def test_former_agent_cannot_be_changed(api: RegistryApi) -> None:
    await api.register("agent-1")
    await api.ask("DELETE", PATH)
    assert (await api.ask("PATCH", PATH, {"name": "x"}, headers={"if-match": "*"})).status == 410
