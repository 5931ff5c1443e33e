from typing import Any

import pytest
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.api_catalog import ApiCatalog
from lifesign.prober.directories.format_parser import Kind, NotReadable

EXAMPLE: dict[str, object] = {"linkset": []}

CATALOG = ApiCatalog()
OWN = "https://directory.example/.well-known/api-catalog"


def linkset(*contexts: Any) -> dict[str, Any]:
    return {"linkset": list(contexts)}


def hrefs(*urls: str, **more: str) -> list[dict[str, str]]:
    return [{"href": url} | more for url in urls]


def test_items_are_listed_without_a_type() -> None:
    page = read(
        CATALOG, linkset({"anchor": OWN, "item": hrefs("https://a.example/api", "/local", title="One")})
    )
    assert listed(page) == [
        ("https://a.example/api", "One", Kind.UNKNOWN),
        ("/local", "One", Kind.UNKNOWN),
    ]


def test_item_that_links_to_a_card_is_an_agent() -> None:
    typed = {"href": "https://a.example/card", "type": "application/a2a-agent-card+json"}
    placed = {"href": "https://b.example/.well-known/agent-card.json"}
    page = read(CATALOG, linkset({"anchor": OWN, "item": [typed, placed]}))
    assert [kind for _, _, kind in listed(page)] == [Kind.A2A_CARD, Kind.A2A_CARD]


def test_an_api_that_is_described_is_listed_by_its_anchor() -> None:
    context = {"anchor": "https://a.example/api", "service-desc": hrefs("https://a.example/openapi.json")}
    assert listed(read(CATALOG, linkset(context))) == [("https://a.example/api", None, Kind.UNKNOWN)]


def test_api_with_a_health_document_as_status_is_an_agent() -> None:
    context = {
        "anchor": "https://a.example/a2a",
        "status": hrefs("https://a.example/.well-known/agent-health"),
    }
    assert listed(read(CATALOG, linkset(context))) == [("https://a.example/a2a", None, Kind.A2A_ENDPOINT)]


def test_api_with_a_linked_card_is_listed_only_by_its_card() -> None:
    api = "https://a.example/a2a"
    card = hrefs("https://a.example/card.json", type="application/a2a-agent-card+json")
    page = read(
        CATALOG,
        linkset(
            {"anchor": OWN, "item": hrefs(api)}, {"anchor": api, "service-desc": card, "status": hrefs("/up")}
        ),
    )
    assert listed(page) == [("https://a.example/card.json", None, Kind.A2A_CARD)]


def test_the_catalog_itself_is_no_api() -> None:
    for anchor in (OWN, "", "https://directory.example/list"):
        page = read(
            CATALOG, linkset({"anchor": anchor, "service-doc": hrefs("https://directory.example/docs")})
        )
        assert listed(page) == []


def test_catalogs_linked_by_an_api_catalog_are_read_too() -> None:
    item = {"href": "https://b.example/apis", "type": "application/linkset+json"}
    context = {
        "anchor": OWN,
        "api-catalog": hrefs("https://a.example/.well-known/api-catalog"),
        "item": [item],
    }
    page = read(CATALOG, linkset(context))
    assert page.nested == ("https://a.example/.well-known/api-catalog", "https://b.example/apis")
    assert listed(page) == []


@pytest.mark.parametrize("links", [None, "x", {}, [1], [{}], [{"href": 5}]])
def test_links_of_any_json_shape_raise_no_exception(links: object) -> None:
    context = {"anchor": ["x"], "item": links, "status": links, "agent-card": links, "api-catalog": links}
    page = read(CATALOG, linkset(context, 7))
    assert listed(page) == []
    assert set(skipped(page)) <= {("", "no_url")}


@pytest.mark.parametrize("value", [[], {}, {"linkset": {}}, {"links": []}])
def test_other_json_is_neither_recognised_nor_read(value: object) -> None:
    assert not CATALOG.recognises(document(value))
    with pytest.raises(NotReadable):
        CATALOG.read(document(value))
