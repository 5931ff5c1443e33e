from typing import Any

import pytest
from tests.support.cards import CARD_10
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.agntcy_directory import AgntcyDirectory
from lifesign.prober.directories.format_parser import Kind, NotReadable

EXAMPLE = {"results": [], "total_count": 0}

DIRECTORY = AgntcyDirectory()


def record(*modules: Any, **more: Any) -> dict[str, Any]:
    return {"name": "one", "schema_version": "1.0.0", "modules": list(modules), "locators": []} | more


def module(name: str, **data: Any) -> dict[str, Any]:
    return {"name": name, "data": data}


def catalog_entry(**more: Any) -> dict[str, Any]:
    return {
        "identifier": "urn:a:1",
        "display_name": "One",
        "media_type": "application/a2a-agent-card+json",
    } | more


def test_single_record_is_a_directory_with_one_agent() -> None:
    page = read(DIRECTORY, record(module("integration/a2a", card_data=CARD_10)))
    assert listed(page) == [("https://sums.test/a2a", "one", Kind.A2A_ENDPOINT)]
    assert page.items == 1


def test_a_record_may_say_where_the_card_is() -> None:
    page = read(
        DIRECTORY, record(module("runtime/a2a", card_url="https://a.example/card.json", transports=["http"]))
    )
    assert listed(page) == [("https://a.example/card.json", "one", Kind.UNKNOWN)]


def test_connections_to_an_mcp_server_are_listed_as_such() -> None:
    connections = [{"type": "stdio", "command": "docker"}, {"type": "sse", "url": "https://a.example/sse"}]
    page = read(DIRECTORY, record(module("integration/mcp", connections=connections)))
    assert listed(page) == [("https://a.example/sse", "one", Kind.MCP)]


@pytest.mark.parametrize(
    "modules",
    [[], [5], [{"name": "integration/a2a"}], [module("integration/mcp", connections=[{}])], [module("x")]],
)
def test_record_without_url_is_reported(modules: list[Any]) -> None:
    assert skipped(read(DIRECTORY, record(*modules))) == [("one", "no_url")]


def test_a_list_of_records_is_a_directory() -> None:
    records = [record(module("integration/a2a", card_data=CARD_10)), record()]
    for value in (records, {"records": records}, {"results": records}):
        page = read(DIRECTORY, value)
        assert (page.items, len(listed(page)), skipped(page)) == (2, 1, [("one", "no_url")])


@pytest.mark.parametrize(
    ("token", "total"), [("next_page_token", "total_count"), ("nextPageToken", "totalCount")]
)
def test_page_lists_catalog_entries_and_the_next_page(token: str, total: str) -> None:
    inline = catalog_entry(media_type="application/oasf-agent-record+json", data=record())
    results = [catalog_entry(url="https://a.example/card.json"), inline]
    page = read(DIRECTORY, {"results": results, token: "abc", total: 219})
    assert listed(page) == [("https://a.example/card.json", "One", Kind.A2A_CARD)]
    assert skipped(page) == [("one", "no_url")]
    assert (page.total, page.next_page) == (219, {"page_token": "abc", "page_size": "100"})


@pytest.mark.parametrize("token", ["", None])
def test_page_without_a_token_is_the_last(token: object) -> None:
    assert read(DIRECTORY, {"results": [], "next_page_token": token}).next_page is None


def test_invalid_page_token_is_refused() -> None:
    with pytest.raises(NotReadable, match="token"):
        DIRECTORY.read(document({"results": [], "nextPageToken": 7}))


@pytest.mark.parametrize(
    "value", [[], {}, {"results": []}, [{"name": "x"}], {"schema_version": "1"}, {"results": 1}]
)
def test_other_json_is_not_recognised(value: object) -> None:
    assert not DIRECTORY.recognises(document(value))


@pytest.mark.parametrize("value", [{}, {"code": 13, "message": "x"}])
def test_document_without_records_is_refused_for_a_named_format(value: object) -> None:
    with pytest.raises(NotReadable):
        DIRECTORY.read(document(value))
