from pathlib import Path

import pytest
from tests.support.directories import document, listed, read, skipped
from tests.support.registry_api import RegistryApi
from tests.support.registry_server import ADMIN_KEY, KEYS, registry_server

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.targets.target import target_id
from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.prober.directories import ListSource, NotRead, Snapshot, read_directory
from lifesign.prober.directories.fetching import fetching_with
from lifesign.prober.directories.format_parser import Document, Kind, NotReadable
from lifesign.prober.directories.our_registry import OurRegistry
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver

EXAMPLE = {"agents": [{"agent_id": "a", "status": "active"}], "total": 1}

REGISTRY = OurRegistry()
CARD_URL = "https://a.example/.well-known/agent-card.json"


async def test_answers_of_the_registry_are_read(api: RegistryApi) -> None:
    await api.register("a", name="One", card_url=CARD_URL, endpoint="https://a.example/a2a")
    await api.register("b", endpoint="https://b.example/a2a")
    await api.register("c")
    answer = await api.ask("GET", REGISTRY.place, key=Role.PROBER)
    assert answer.status == 200, answer.body
    page = read(REGISTRY, answer.body)
    assert listed(page) == [
        (CARD_URL, "One", Kind.A2A_CARD),
        ("https://b.example/a2a", "b", Kind.A2A_ENDPOINT),
    ]
    assert skipped(page) == [("c", "no_url")]
    assert (page.items, page.total, page.next_page) == (3, 3, None)


def test_a_target_that_its_probers_found_is_listed_by_its_own_address() -> None:
    agent = {
        "agent_id": target_id("https://a.example/"),
        "status": "active",
        "target_url": "https://a.example/",
        "card_url": CARD_URL,
    }
    page = REGISTRY.read(document({"agents": [agent]}))
    assert listed(page) == [("https://a.example/", target_id("https://a.example/"), Kind.A2A_CARD)]


@pytest.mark.parametrize("at", ["target_url", "card_url", "endpoint"])
def test_mcp_server_is_listed_as_one(at: str) -> None:
    agent = {"agent_id": "a", "status": "active", "kind": "mcp", at: "https://a.example/mcp"}
    page = REGISTRY.read(document({"agents": [agent]}))
    assert listed(page) == [("https://a.example/mcp", "a", Kind.MCP)]


async def test_cursor_of_our_registry_gives_the_next_page(api: RegistryApi) -> None:
    for agent_id in "abc":
        await api.register(agent_id)
    answer = await api.ask("GET", "/api/v1/agents?limit=2", key=Role.PROBER)
    page = read(REGISTRY, answer.body)
    assert isinstance(page.next_page, dict)
    following = await api.ask(
        "GET", f"/api/v1/agents?limit=2&cursor={page.next_page['cursor']}", key=Role.PROBER
    )
    assert read(REGISTRY, following.body).items == 1


async def test_an_empty_registry_is_recognised(api: RegistryApi) -> None:
    answer = await api.ask("GET", REGISTRY.place, key=Role.PROBER)
    assert REGISTRY.recognises(Document(answer.body))


@pytest.mark.parametrize(
    "value", [[], {}, {"agents": []}, {"agents": [{"name": "x"}]}, {"agents": {}, "total": 0}]
)
def test_other_json_is_not_recognised(value: object) -> None:
    assert not REGISTRY.recognises(document(value))


@pytest.mark.parametrize("value", [[], {"error": {"code": "unknown_key"}}, {"agents": 1}])
def test_document_without_agents_is_refused_for_a_named_format(value: object) -> None:
    with pytest.raises(NotReadable):
        REGISTRY.read(document(value))


def test_invalid_cursor_is_refused() -> None:
    with pytest.raises(NotReadable, match="token"):
        REGISTRY.read(document({"agents": [], "cursor": ["x"]}))


async def test_reading_a_registry_requires_a_key(tmp_path: Path) -> None:
    networks = read_networks(["127.0.0.0/8"])
    with registry_server(tmp_path) as server:
        async with RegistryClient(server.url, key=ADMIN_KEY) as client:
            for number in range(5):
                await client.agents.register(f"a{number}", endpoint=f"https://a{number}.example/a2a")
        async with (
            Resolver() as resolver,
            Fetcher(
                timeouts=Timeouts(),
                networks=networks,
                user_agent="lifesign-prober/test",
                resolver=resolver,
            ) as fetcher,
        ):
            get = fetching_with(fetcher)
            place = f"{server.url}/api/v1/agents?limit=2"
            found = await read_directory(ListSource(url=place, key=KEYS[Role.PROBER]), get)
            refused = await read_directory(ListSource(url=server.url, format="lifesign"), get)
    assert isinstance(found, Snapshot)
    assert (found.format, len(found.entries), found.documents, found.findings) == ("lifesign", 5, 3, ())
    assert isinstance(refused, NotRead)
    assert "HTTP 401" in refused.message
