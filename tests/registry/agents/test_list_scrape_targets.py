import pytest
from tests.support.fleet import add_agents
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.registry.agents import list_scrape_targets
from lifesign.registry.agents.list_scrape_targets import ScrapeTargets

PATH = "/api/v1/http-sd"


async def found(api: RegistryApi, query: str = "", key: str | Role = Role.READER) -> dict[str, str]:
    """Return the address of each agent that is listed."""
    answer = await api.ask("GET", f"{PATH}?{query}", key=key)
    assert answer.status == 200, answer.body
    groups = ScrapeTargets.model_validate_json(answer.body).root
    return {group.labels["__meta_lifesign_agent_id"]: group.targets[0] for group in groups}


@pytest.mark.both_databases
async def test_agent_is_a_scrape_target_with_labels(api: RegistryApi) -> None:
    await api.register("a", endpoint="http://10.0.0.1:9000/a2a", role_id="billing")
    answer = await api.ask("GET", PATH, key=Role.READER)
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    assert answer.json() == [
        {
            "targets": ["10.0.0.1:9000"],
            "labels": {
                "__scheme__": "http",
                "__meta_lifesign_agent_id": "a",
                "__meta_lifesign_role_id": "billing",
                "__meta_lifesign_status": "active",
                "__meta_lifesign_health": "unknown",
                "__meta_lifesign_url": "http://10.0.0.1:9000/a2a",
            },
        }
    ]


async def test_the_card_is_the_address_of_an_agent_without_a_usable_endpoint(api: RegistryApi) -> None:
    card = "https://a.example/.well-known/agent-card.json"
    await api.register("a", card_url=card)
    await api.register("b", card_url=card, endpoint="https://169.254.169.254/latest")
    await api.register("c")
    assert await found(api) == {"a": "a.example:443", "b": "a.example:443"}


@pytest.mark.both_databases
async def test_active_and_draining_agents_are_scrape_targets_by_default(api: RegistryApi) -> None:
    for agent_id in ("active", "draining", "gone"):
        await api.register(agent_id, endpoint="http://a.example")
    key = await api.add_agent_key("draining")
    await api.send_heartbeat("draining", key, status="draining", current_load=1)
    await api.ask("DELETE", f"{AGENTS}/gone")
    assert {*await found(api)} == {"active", "draining"}
    assert {*await found(api, "status=active")} == {"active"}
    assert {*await found(api, "status=deregistered")} == {"gone"}


@pytest.mark.both_databases
async def test_scrape_targets_are_filtered_by_pool_and_capabilities(api: RegistryApi) -> None:
    await api.register("a", endpoint="http://a.example", role_id="p", capabilities=["x"])
    await api.register("b", endpoint="http://b.example", role_id="p", capabilities=["y"])
    await api.register("c", endpoint="http://c.example", capabilities=["x"])
    assert {*await found(api, "role_id=p")} == {"a", "b"}
    assert {*await found(api, "capabilities=x")} == {"a", "c"}
    assert {*await found(api, "capabilities=x,y&role_id=p")} == {"a", "b"}


@pytest.mark.both_databases
async def test_hosts_from_directories_are_listed_only_on_request(api: RegistryApi) -> None:
    await api.register("own", endpoint="http://own.example", capabilities=["x"])
    url = "https://stranger.example/"
    await add_agents(api.database, 1, "found", target_url=url, card_url=url, capabilities=["x"])
    assert await found(api) == await found(api, "capabilities=x") == {"own": "own.example:80"}
    everyone = await found(api, "include_found=true")
    assert everyone == {"own": "own.example:80", "found-0": "stranger.example:443"}


async def test_agents_key_lists_only_its_agent(api: RegistryApi) -> None:
    record = await api.register("a", endpoint="http://a.example")
    await api.register("b", endpoint="http://b.example")
    assert {*await found(api, key=record["agent_key"])} == {"a"}


async def test_more_agents_than_one_answer_holds_are_refused(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_scrape_targets, "MAX_AGENTS", 3)
    await add_agents(api.database, 3, endpoint="http://a.example")
    assert len(await found(api)) == 3
    await api.register("one-more", endpoint="http://b.example", role_id="p")
    answer = await api.ask("GET", PATH)
    assert (answer.status, answer.json()["error"]["code"]) == (409, "too_many_agents")
    assert answer.json()["error"]["details"] == {"most": 3}
    assert {*await found(api, "role_id=p")} == {"one-more"}


@pytest.mark.parametrize("query", ["status=", "status=none", "limit=3", "include_found=perhaps"])
async def test_invalid_queries_are_refused(api: RegistryApi, query: str) -> None:
    assert (await api.ask("GET", f"{PATH}?{query}")).status == 422
