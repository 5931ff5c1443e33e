"""Server cards that a catalog names, over real sockets, with the prober's own fetcher."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile_server import Reply, answer, as_json, endless_body, reset, serving

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.prober.directories import (
    ListSource,
    Snapshot,
    read_directory,
    server_cards,
    target_collection,
)
from lifesign.prober.directories.fetching import fetching_with
from lifesign.prober.directories.format_parser import NESTED_SHARE, Kind
from lifesign.prober.directories.server_cards import MAX_CARD_BYTES
from lifesign.prober.directories.target_collection import MCP_KINDS, PROBED_KINDS
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver

CARD_TYPE = "application/mcp-server-card+json"


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    async with (
        Resolver() as resolver,
        Fetcher(
            timeouts=Timeouts(first_byte_seconds=5, total_seconds=5),
            networks=read_networks(["127.0.0.0/8"]),
            user_agent="lifesign-prober/test",
            resolver=resolver,
        ) as fetcher,
    ):
        yield fetcher


def catalog(*urls: str) -> dict[str, Any]:
    entries = [{"identifier": "urn:x", "type": CARD_TYPE, "url": url} for url in urls]
    return {"specVersion": "1.0", "entries": entries}


def card(*urls: str) -> dict[str, Any]:
    return {
        "name": "a.example/one",
        "version": "1",
        "remotes": [{"type": "streamable-http", "url": url} for url in urls],
    }


async def found_at(
    url: str, fetcher: Fetcher, kinds: frozenset[Kind] = MCP_KINDS, key: str | None = None
) -> Snapshot:
    found = await read_directory(ListSource(url=url, kinds=kinds, key=key), fetching_with(fetcher))
    assert isinstance(found, Snapshot), found
    return found


async def test_key_of_the_directory_is_not_sent_to_a_server_card(fetcher: Fetcher) -> None:
    replies = {
        "/list.json": as_json(catalog("/card.json")),
        "/card.json": as_json(card("https://b.example/mcp")),
    }
    async with serving(replies) as server:
        found = await found_at(f"{server.url}/list.json", fetcher, key="key-of-the-directory")
        assert "authorization" in server.asked("/list.json")
        assert "authorization" not in server.asked("/card.json")
    assert [entry.url for entry in found.entries] == ["https://b.example/mcp"]


async def test_server_card_is_replaced_by_its_endpoints(fetcher: Fetcher) -> None:
    replies = {
        "/.well-known/ard.json": as_json(catalog("/card.json", "/card.json", "https://{x}.example/")),
        "/card.json": as_json(card("/mcp", "https://b.example/mcp", "https://{tenant}.example/mcp")),
    }
    async with serving(replies) as server:
        found = await found_at(server.url, fetcher)
        assert server.paths.count("/card.json") == 1
    assert [(entry.url, entry.kind) for entry in found.entries] == [
        (f"{server.url}/mcp", Kind.MCP),
        ("https://b.example/mcp", Kind.MCP),
    ]
    assert found.left_out["template_url"].count == 2


@pytest.mark.parametrize(
    "reply",
    [
        answer(405),
        answer(200, b"<html></html>", Content_Type="text/html"),
        answer(200, b"data: {}\n\n", Content_Type="text/event-stream"),
        as_json({"jsonrpc": "2.0", "error": {"code": -32000}, "id": None}),
        as_json([card("https://b.example/mcp")]),
        as_json({"remotes": "https://b.example/mcp"}),
        as_json(card("https://b.example/mcp") | {"padding": "x" * MAX_CARD_BYTES}),
        endless_body,
    ],
)
async def test_url_without_a_card_is_the_endpoint(reply: Reply, fetcher: Fetcher) -> None:
    async with serving({"/list": as_json(catalog("/mcp")), "/mcp": reply}) as server:
        found = await found_at(f"{server.url}/list", fetcher)
        assert server.paths == ["/list", "/mcp"]
    assert [(entry.url, entry.kind) for entry in found.entries] == [(f"{server.url}/mcp", Kind.MCP)]


@pytest.mark.parametrize("failure", [answer(503), reset])
async def test_card_that_fails_is_requested_once_more(failure: Reply, fetcher: Fetcher) -> None:
    failures = 1

    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        nonlocal failures
        failures -= 1
        await (failure if failures >= 0 else as_json(card("https://a.example/mcp")))(writer, head)

    replies = {"/list": as_json(catalog("/card.json")), "/card.json": reply}
    async with serving(replies) as server:
        read = await found_at(f"{server.url}/list", fetcher)
        assert [entry.url for entry in read.entries] == ["https://a.example/mcp"]
        failures = 2
        read = await found_at(f"{server.url}/list", fetcher)
        assert [entry.url for entry in read.entries] == [f"{server.url}/card.json"]
        assert read.unread == 0
        assert server.paths.count("/card.json") == 4


async def test_host_that_does_not_answer_is_left_alone_and_its_servers_are_unknown(fetcher: Fetcher) -> None:
    good = {f"/{number}.json": as_json(card(f"https://a.example/{number}")) for number in range(3)}
    async with serving(good | {"/bad": answer(404)}) as server:
        # The listener of another address, which is closed by now.
        async with serving({}) as closed:
            pass
        bad = [f"{closed.url}/{number}.json" for number in range(3)]
        server.replies["/list"] = as_json(catalog(*bad, *good))
        read = await found_at(f"{server.url}/list", fetcher)
    found = {entry.url for entry in read.entries}
    assert {f"https://a.example/{number}" for number in range(3)} | set(bad) == found
    assert read.unread == 2


async def test_nested_catalog_has_a_share_of_the_cards(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_cards, "MAX_CARDS", 2 * NESTED_SHARE)
    many = [f"/many-{number}" for number in range(5)]
    nested = {"specVersion": "1.0", "entries": [
        {"identifier": "urn:x", "type": "application/ai-catalog+json", "url": url} for url in ("/a", "/b")
    ]}  # fmt: skip
    replies = {
        "/list": as_json(nested),
        "/a": as_json(catalog(*many)),
        "/b": as_json(catalog("/card.json")),
        "/card.json": as_json(card("https://a.example/mcp")),
    }
    async with serving(replies) as server:
        read = await found_at(f"{server.url}/list", fetcher)
        assert "/card.json" in server.paths
    assert "https://a.example/mcp" in {entry.url for entry in read.entries}
    assert read.unread == len(many) - 2


async def test_large_card_does_not_hide_the_servers_of_others(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_cards, "MAX_CARDS", 4)
    monkeypatch.setattr(target_collection, "MAX_TARGETS_BYTES", NESTED_SHARE * 4 * 100)
    large = [f"/large-{number}" for number in range(3)]
    too_long = f"https://c.example/{'c' * 90}"
    replies = {
        "/list": as_json(catalog(*large, "/card.json")),
        "/card.json": as_json(card("https://a.example/mcp")),
        **{path: as_json(card(f"https://b.example{path}", too_long)) for path in large},
    }
    async with serving(replies) as server:
        read = await found_at(f"{server.url}/list", fetcher)
    expected = {"https://a.example/mcp", *(f"https://b.example{path}" for path in large)}
    assert {entry.url for entry in read.entries} == expected
    assert read.unread == len(large)
    assert [one.name for one in read.findings] == ["nested_not_read"] * len(large)


async def test_cards_are_requested_only_if_mcp_servers_are_wanted(fetcher: Fetcher) -> None:
    async with serving({"/list": as_json(catalog("/card.json"))}) as server:
        found = await found_at(f"{server.url}/list", fetcher, PROBED_KINDS)
        assert server.paths == ["/list"]
    assert found.left_out["not_a2a"].count == 1


@pytest.mark.parametrize(("limit", "value", "unread"), [("MAX_CARDS", 1, 1), ("MAX_READING_S", 0, 2)])
async def test_server_cards_above_the_limits_are_not_read(
    limit: str, value: int, unread: int, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_cards, limit, value)
    replies = {"/list": as_json(catalog("/a", "/b", "/a")), "/a": as_json(card("https://a.example/mcp"))}
    async with serving(replies) as server:
        found = await found_at(f"{server.url}/list", fetcher)
        assert len(server.paths) == 3 - unread
    assert len(found.entries) == 2
    (message,) = (one.message for one in found.findings if one.name == "server_cards_not_read")
    assert message.startswith(f"{unread} URL")
    assert found.unread == unread


async def test_one_card_at_a_time_is_kept(fetcher: Fetcher) -> None:
    """In CPython, each of these addresses takes four bytes for each of its characters."""
    count, address = 20, "https://a.example/" + "a" * (MAX_CARD_BYTES - 2_000) + "\N{GRINNING FACE}"
    urls = [f"/card-{number}.json" for number in range(count)]
    cards = {url: as_json(card(address)) for url in urls}
    async with serving({"/list.json": as_json(catalog(*urls))} | cards) as server:
        tracemalloc.start()
        try:
            await found_at(f"{server.url}/list.json", fetcher)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert server.paths == ["/list.json", *urls]
    assert peak_bytes < count * MAX_CARD_BYTES


async def test_unchanged_catalog_does_not_hide_a_changed_card(fetcher: Fetcher) -> None:
    replies = {
        "/list": as_json(catalog("/card.json"), ETag='"1"'),
        "/card.json": as_json(card("https://a.example/mcp")),
    }
    async with serving(replies) as server:
        source = ListSource(url=f"{server.url}/list", kinds=MCP_KINDS)
        first = await found_at(f"{server.url}/list", fetcher)
        server.replies["/card.json"] = as_json(card("https://b.example/mcp"))
        second = await read_directory(source, fetching_with(fetcher), known=first.version)
        assert "if-none-match" not in server.asked("/list")
    assert isinstance(second, Snapshot)
    assert [entry.url for entry in second.entries] == ["https://b.example/mcp"]


async def test_file_is_read_without_requests_for_cards(tmp_path: Path) -> None:
    file = tmp_path / "ard.json"
    file.write_text(
        '{"specVersion": "1.0", "entries": [{"identifier": "urn:x", "type": "' + CARD_TYPE + '", '
        '"url": "https://a.example/card.json"}]}'
    )
    found = await read_directory(ListSource(file=file, kinds=MCP_KINDS))
    assert isinstance(found, Snapshot)
    assert [entry.url for entry in found.entries] == ["https://a.example/card.json"]
