from typing import Any

import pytest
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.a2a_registry import A2aRegistryFormat
from lifesign.prober.directories.format_parser import Kind, NotReadable

EXAMPLE = {"agents": [{"wellKnownURI": "https://a.example/card.json"}], "total": 1}

REGISTRY = A2aRegistryFormat()
CARD_URL = "https://a.example/.well-known/agent-card.json"


def agents(number: int) -> list[dict[str, Any]]:
    return [{"name": f"Agent {n}", "wellKnownURI": f"https://a{n}.example/card.json"} for n in range(number)]


def page(number: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    return {"agents": agents(number), "limit": 100, "offset": offset} | more


def test_an_agent_is_listed_by_its_card() -> None:
    value = {"agents": [{"id": "1", "name": "One", "wellKnownURI": CARD_URL, "url": "https://a.example/a2a"}]}
    assert listed(read(REGISTRY, value)) == [(CARD_URL, "One", Kind.A2A_CARD)]


def test_agent_without_card_is_listed_by_url_and_reported_without_either() -> None:
    first = {"name": "One", "wellKnownUri": CARD_URL}
    others = [{"name": "Two", "url": "https://b.example/"}, {"id": "3"}, 4]
    found = read(REGISTRY, {"agents": [first, first, first, *others]})
    assert listed(found)[3:] == [("https://b.example/", "Two", Kind.A2A_ENDPOINT)]
    assert skipped(found) == [("3", "no_url"), ("", "unreadable")]


def test_the_seed_file_lists_cards() -> None:
    found = read(REGISTRY, {"wellKnownURIs": [CARD_URL, 7]})
    assert listed(found) == [(CARD_URL, None, Kind.A2A_CARD)]
    assert (found.items, skipped(found)) == (2, [("", "unreadable")])


def test_the_next_page_begins_after_the_last_agent() -> None:
    assert read(REGISTRY, page(100, total=219)).next_page == {"offset": "100", "limit": "100"}
    assert read(REGISTRY, page(100, 100, total=219)).next_page == {"offset": "200", "limit": "100"}


def test_the_last_page_is_the_one_that_reaches_the_total() -> None:
    assert read(REGISTRY, page(19, 200, total=219)).next_page is None


def test_empty_page_is_the_last_one() -> None:
    assert read(REGISTRY, page(0, 200, total=219)).next_page is None


def test_partial_page_without_a_total_is_the_last() -> None:
    assert read(REGISTRY, page(100)).next_page == {"offset": "100", "limit": "100"}
    assert read(REGISTRY, page(99)).next_page is None


def test_single_file_of_the_registry_has_one_page() -> None:
    found = read(REGISTRY, {"version": "1", "count": 2, "agents": agents(2)})
    assert (found.next_page, found.total, found.items) == (None, 2, 2)


@pytest.mark.parametrize("offset", [-1, "100", 10**400, True, None])
def test_invalid_offset_gives_no_page(offset: object) -> None:
    assert read(REGISTRY, page(100) | {"offset": offset}).next_page is None


@pytest.mark.parametrize(
    "value",
    [[], {}, {"agents": []}, {"agents": [{"agent_id": "a"}]}, {"agents": "all"}, {"agents": [CARD_URL]}],
)
def test_other_json_is_not_recognised(value: object) -> None:
    assert not REGISTRY.recognises(document(value))


@pytest.mark.parametrize("value", [[], {}, {"error": "too many requests"}, {"agents": None}])
def test_document_without_agents_is_refused_for_a_named_format(value: object) -> None:
    with pytest.raises(NotReadable):
        REGISTRY.read(document(value))


@pytest.mark.parametrize(("query", "offset"), [("", 100), ("?offset=300", 400), ("?offset=x", 100)])
def test_page_offset_is_read_from_the_url_if_absent_in_the_page(query: str, offset: int) -> None:
    made = document({"agents": agents(100), "total": 500}, url=f"https://registry.example/api/agents{query}")
    assert REGISTRY.read(made).next_page == {"offset": str(offset), "limit": "100"}
