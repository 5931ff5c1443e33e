from typing import Any

import pytest
from tests.support.cards import CARD_03, CARD_10
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.ai_catalog import AiCatalog
from lifesign.prober.directories.format_parser import MAX_NESTING_DEPTH, Kind, NotReadable

EXAMPLE = {"specVersion": "1.0", "entries": []}

CATALOG = AiCatalog()
A2A = "application/a2a-agent-card+json"
MCP = "application/mcp-server-card+json"
NESTED = "application/ai-catalog+json"


def entry(media_type: str, key: str = "type", **more: Any) -> dict[str, Any]:
    return {"identifier": "urn:air:a.example:one", "displayName": "One", key: media_type} | more


def catalog(*entries: Any, **more: Any) -> dict[str, Any]:
    return {"specVersion": "1.0", "entries": list(entries)} | more


@pytest.mark.parametrize("key", ["type", "mediaType", "media_type"])
@pytest.mark.parametrize("media_type", [A2A, f"{A2A}; charset=utf-8", A2A.upper()])
def test_card_is_listed_for_each_spelling_of_its_type(key: str, media_type: str) -> None:
    page = read(CATALOG, catalog(entry(media_type, key, url="https://a.example/card.json")))
    assert listed(page) == [("https://a.example/card.json", "One", Kind.A2A_CARD)]


@pytest.mark.parametrize("card", [CARD_03, CARD_10])
def test_agent_url_is_read_from_a_card_within_the_catalog(card: dict[str, Any]) -> None:
    page = read(CATALOG, catalog(entry(A2A, data=card)))
    assert listed(page) == [("https://sums.test/a2a", "One", Kind.A2A_ENDPOINT)]


def test_first_callable_url_of_several_is_listed() -> None:
    places = [
        {"url": url} for url in ("https://{tenant}.example/", "grpc://a.example/", "https://a.example/a2a")
    ]
    card = CARD_10 | {"supportedInterfaces": places}
    assert [url for url, _, _ in listed(read(CATALOG, catalog(entry(A2A, data=card))))] == [
        "https://a.example/a2a"
    ]
    without = CARD_10 | {"supportedInterfaces": places[:1]}
    page = read(CATALOG, catalog(entry(A2A, data=without)))
    assert [url for url, _, _ in listed(page)] == ["https://{tenant}.example/"]


@pytest.mark.parametrize("data", [{}, {"name": "x"}, None, "text", [1]])
def test_empty_card_is_reported(data: object) -> None:
    assert skipped(read(CATALOG, catalog(entry(A2A, data=data)))) == [("One", "no_url")]


def test_an_mcp_server_is_listed_by_its_card_or_endpoint() -> None:
    page = read(
        CATALOG,
        catalog(
            entry(MCP, url="https://a.example/mcp.json"),
            entry("application/mcp+json", url="https://a.example/mcp"),
        ),
    )
    assert listed(page) == [
        ("https://a.example/mcp.json", "One", Kind.MCP_CARD),
        ("https://a.example/mcp", "One", Kind.MCP),
    ]


def test_server_url_is_read_from_a_server_card_within_the_catalog() -> None:
    card = {
        "name": "a.example/one",
        "remotes": [
            {"type": "streamable-http", "url": "https://a.example/mcp"},
            {"type": "websocket", "url": "wss://a.example/ws"},
            {"type": "sse", "url": "https://a.example/sse"},
        ],
    }
    page = read(CATALOG, catalog(entry(MCP, data=card)))
    assert [url for url, _, _ in listed(page)] == ["https://a.example/mcp", "https://a.example/sse"]


@pytest.mark.parametrize(
    "data", [{}, {"remotes": {}}, {"remotes": [7, {"type": ["sse"]}]}, None, "text", [1]]
)
def test_server_card_without_an_endpoint_is_reported(data: object) -> None:
    assert skipped(read(CATALOG, catalog(entry(MCP, data=data)))) == [("One", "no_url")]


@pytest.mark.parametrize("media_type", ["application/parquet", "application/ai-skill+md", "text/html"])
def test_other_artifacts_are_reported(media_type: str) -> None:
    page = read(CATALOG, catalog(entry(media_type, url="https://a.example/x")))
    assert (listed(page), skipped(page)) == ([], [("https://a.example/x", "not_a2a")])


def test_invalid_entry_is_reported() -> None:
    page = read(CATALOG, catalog(7, {"displayName": "Two"}))
    assert skipped(page) == [("", "unreadable"), ("Two", "not_a2a")]


def test_nested_registry_is_reported_and_not_followed() -> None:
    registry = entry("application/ai-registry+json", url="https://registry.example/api/")
    page = read(CATALOG, catalog(registry))
    assert (page.nested, skipped(page)) == ((), [("https://registry.example/api/", "a_registry")])


# ── catalogs within catalogs ──


def nested_in(levels: int) -> dict[str, Any]:
    value = catalog(entry(A2A, url="https://deep.example/card.json"))
    for _ in range(levels):
        value = catalog(entry(NESTED, data=value))
    return value


def test_embedded_catalogs_are_read_and_linked_ones_are_listed() -> None:
    inner = catalog(
        entry(A2A, url="https://b.example/card.json"), entry(NESTED, url="https://c.example/catalog.json")
    )
    outer = catalog(
        entry(NESTED, data=inner),
        entry(NESTED, url="/more.json"),
        entry(NESTED, url="/more.json"),
        entry(NESTED),
    )
    page = read(CATALOG, outer)
    assert listed(page) == [("https://b.example/card.json", "One", Kind.A2A_CARD)]
    assert page.nested == ("https://c.example/catalog.json", "/more.json")
    assert skipped(page) == [("One", "no_url")]


def test_embedded_catalog_beyond_the_depth_limit_is_skipped() -> None:
    assert len(listed(read(CATALOG, nested_in(MAX_NESTING_DEPTH)))) == 1
    too_deep = read(CATALOG, nested_in(MAX_NESTING_DEPTH + 1))
    assert (listed(too_deep), skipped(too_deep)) == ([], [("", "too_deep")])


def test_deeply_nested_catalogs_are_not_read() -> None:
    for levels, named in ((MAX_NESTING_DEPTH, 1), (MAX_NESTING_DEPTH + 1, 0)):
        value = catalog(entry(NESTED, url="https://deep.example/catalog.json"))
        for _ in range(levels):
            value = catalog(entry(NESTED, data=value))
        assert len(read(CATALOG, value).nested) == named


def test_very_deep_catalog_is_skipped_without_recursion() -> None:
    assert skipped(read(CATALOG, nested_in(200))) == [("", "too_deep")]


# ── ARD's list ──


def test_ard_page_continues_with_its_token() -> None:
    items = [entry(A2A, url="https://a.example/card.json")]
    page = read(CATALOG, {"items": items, "total": 219, "pageToken": "eyJwIjoyfQ=="})
    assert (page.items, page.total) == (1, 219)
    assert page.next_page == {"pageToken": "eyJwIjoyfQ==", "pageSize": "100"}


@pytest.mark.parametrize("token", [None, ""])
def test_page_without_a_token_is_the_last(token: object) -> None:
    assert read(CATALOG, {"items": [], "total": 0, "pageToken": token}).next_page is None


def test_search_returns_pages() -> None:
    results = [entry(A2A, url="https://a.example/card.json", score=95)]
    assert len(listed(read(CATALOG, {"results": results, "referrals": []}))) == 1


@pytest.mark.parametrize("token", [5, ["x"], {"a": 1}, "x" * 5_000])
def test_invalid_page_token_is_refused(token: object) -> None:
    with pytest.raises(NotReadable, match="token"):
        CATALOG.read(document({"items": [entry(A2A)], "pageToken": token}))


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"entries": []},
        {"entries": [1]},
        {"items": [{"name": "x"}]},
        {"entries": {}, "specVersion": "1.0"},
    ],
)
def test_other_json_is_not_recognised(value: object) -> None:
    assert not CATALOG.recognises(document(value))


def test_a_catalog_without_entries_is_recognised() -> None:
    assert read(CATALOG, catalog()).items == 0


@pytest.mark.parametrize("value", [[], {}, {"errorCode": "INTERNAL_ERROR", "message": "x"}])
def test_document_without_entries_is_refused_for_a_named_format(value: object) -> None:
    with pytest.raises(NotReadable):
        CATALOG.read(document(value))
