from typing import Any

import pytest
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.format_parser import Kind, NotReadable
from lifesign.prober.directories.mcp_registry import MAX_REMOTES, McpRegistry

EXAMPLE: dict[str, object] = {"servers": [], "metadata": {}}

REGISTRY = McpRegistry()


def server(name: str, *urls: Any) -> dict[str, Any]:
    return {"name": name, "remotes": [{"type": "sse", "url": url} for url in urls]}


def page_of(*servers: Any, **metadata: Any) -> dict[str, Any]:
    return {"servers": [{"server": one, "_meta": {}} for one in servers], "metadata": metadata}


def test_every_remote_is_listed_as_an_mcp_server() -> None:
    page = read(
        REGISTRY, page_of(server("one", "https://a.example/mcp", "https://a.example/sse"), server("two"))
    )
    assert listed(page) == [
        ("https://a.example/mcp", "one", Kind.MCP),
        ("https://a.example/sse", "one", Kind.MCP),
    ]
    assert (page.items, skipped(page)) == (2, [("two", "no_url")])


def test_url_template_is_listed_unchanged() -> None:
    # The collector of the entries reports it.
    page = read(REGISTRY, page_of(server("one", "https://{tenant}.example/mcp")))
    assert [url for url, _, _ in listed(page)] == ["https://{tenant}.example/mcp"]


@pytest.mark.parametrize("key", ["nextCursor", "next_cursor"])
def test_cursor_gives_the_next_page(key: str) -> None:
    assert read(REGISTRY, page_of(count=0, **{key: "a:1"})).next_page == {"cursor": "a:1", "limit": "100"}


@pytest.mark.parametrize("cursor", [None, ""])
def test_page_without_a_cursor_is_the_last(cursor: object) -> None:
    assert read(REGISTRY, page_of(nextCursor=cursor)).next_page is None


def test_count_of_a_page_is_not_taken_as_the_total() -> None:
    assert read(REGISTRY, page_of(server("one"), count=1)).total is None
    assert read(REGISTRY, page_of(server("one"), total=5)).total == 5


def test_deleted_server_is_reported() -> None:
    about = {"io.modelcontextprotocol.registry/official": {"status": "deleted"}}
    item = {"server": server("one", "https://a.example/mcp"), "_meta": about}
    page = read(REGISTRY, {"servers": [item], "metadata": {}})
    assert (listed(page), skipped(page)) == ([], [("one", "delisted")])


@pytest.mark.parametrize("remotes", [None, "x", {}, [1], [{}], [{"url": 5}], [{"url": ""}]])
def test_remotes_of_any_json_shape_raise_no_exception(remotes: object) -> None:
    page = read(REGISTRY, page_of({"name": "one", "remotes": remotes}, 7))
    assert skipped(page) == [("one", "no_url"), ("", "no_url")]


def test_the_remotes_of_one_server_are_bounded() -> None:
    urls = [f"https://a.example/{n}" for n in range(MAX_REMOTES + 1)]
    assert len(listed(read(REGISTRY, page_of(server("one", *urls))))) == MAX_REMOTES


def test_single_servers_are_read() -> None:
    seed = [{"name": "one", "version_detail": {}, "remotes": [{"url": "https://a.example/sse"}]}, 5]
    page = read(REGISTRY, seed)
    assert listed(page) == [("https://a.example/sse", "one", Kind.MCP)]
    assert skipped(page) == [("", "unreadable")]
    assert read(REGISTRY, {"servers": seed}).items == 2


@pytest.mark.parametrize(
    "value", [[], {}, [{"name": "x"}], {"servers": []}, {"servers": [{"name": "x"}]}, [1]]
)
def test_other_json_is_not_recognised(value: object) -> None:
    assert not REGISTRY.recognises(document(value))


@pytest.mark.parametrize("value", [{}, {"error": "x"}, {"servers": None}])
def test_document_without_servers_is_refused_for_a_named_format(value: object) -> None:
    with pytest.raises(NotReadable):
        REGISTRY.read(document(value))
