"""Whole directories over real sockets, with the prober's own fetcher."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile_server import HostileServer, Reply, answer, as_json, raw, redirect, serving
from yarl import URL

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.observation.results import ResultClass
from lifesign.errors import InvalidValue
from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.prober.directories import (
    ListSource,
    NotRead,
    Snapshot,
    Unchanged,
    format_choice,
    read_directory,
    target_collection,
)
from lifesign.prober.directories import reader as module
from lifesign.prober.directories.fetching import fetching_with
from lifesign.prober.directories.format_parser import (
    NESTED_SHARE,
    DirectoryPage,
    Document,
    Kind,
    Listed,
)
from lifesign.prober.directories.reader import (
    FIRST_WAIT_S,
    MAX_CATALOG_S,
    MAX_NESTED_S,
    MAX_READING_S,
    MAX_SILENT_TRIES,
    MAX_TRIES,
    MAX_WAIT_S,
)
from lifesign.prober.directories.source import Get, Got, WantedDocument
from lifesign.prober.network.exclusion_list import read_opt_outs
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.resolver import Resolver

A2A = "application/a2a-agent-card+json"
CATALOG_TYPE = "application/ai-catalog+json"
ARD = "/.well-known/ard.json"
CATALOG = "/.well-known/ai-catalog.json"
API_CATALOG = "/.well-known/api-catalog"
LIST = "a.example\nb.example\n"


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


async def test_number_of_entries_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRESS_EVERY", 2)
    file = tmp_path / "list.txt"
    file.write_text("".join(f"a{number}.example\n" for number in range(5)))
    heard: list[int] = []
    assert isinstance(await read_directory(ListSource(file=file), report=heard.append), Snapshot)
    assert heard == [2, 4]


class Reader:
    """Reads directories of one server with clocks that only move while it waits."""

    def __init__(self, fetcher: Fetcher, server: HostileServer) -> None:
        self.get: Get = fetching_with(fetcher)
        self.server = server
        self.waits: list[float] = []

    async def read(
        self, path: str = "/list", *, known: str | None = None, **settings: Any
    ) -> Snapshot | Unchanged | NotRead:
        return await read_directory(
            ListSource(url=f"{self.server.url}{path}", **settings),
            self.get,
            known=known,
            sleep=self.wait,
            now_s=lambda: sum(self.waits),
        )

    async def wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def snapshot(self, path: str = "/list", **settings: Any) -> Snapshot:
        found = await self.read(path, **settings)
        assert isinstance(found, Snapshot), found
        return found

    async def refusal(self, path: str = "/list", **settings: Any) -> NotRead:
        found = await self.read(path, **settings)
        assert isinstance(found, NotRead), found
        return found


def text(content: str, **headers: str) -> Reply:
    return answer(200, content.encode(), **({"Content_Type": "text/plain"} | headers))


def urls(found: Snapshot) -> list[str]:
    return [entry.url for entry in found.entries]


def catalog(*entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"specVersion": "1.0", "entries": [{"identifier": "urn:x", **entry} for entry in entries]}


def card(url: str) -> dict[str, Any]:
    return {"type": A2A, "url": url}


def nested(url: str) -> dict[str, Any]:
    return {"type": CATALOG_TYPE, "url": url}


def agents(first: int, number: int) -> list[dict[str, str]]:
    return [{"wellKnownURI": f"https://a{n}.example/card.json"} for n in range(first, first + number)]


# ── one document ──


async def test_a_list_is_read_whole(fetcher: Fetcher) -> None:
    async with serving({"/list": text(f"{LIST}a.example\nftp://x.example/\n")}) as server:
        found = await Reader(fetcher, server).snapshot()
        assert server.asked("/list")["user-agent"] == "lifesign-prober/test"
    assert (found.format, found.url) == ("plain_list", f"{server.url}/list")
    assert urls(found) == ["https://a.example/", "https://b.example/"]
    assert (found.duplicates, found.documents, found.findings) == (1, 1, ())
    assert found.left_out["foreign_scheme"].examples == ("ftp://x.example/",)


async def test_reading_has_a_one_line_summary(fetcher: Fetcher) -> None:
    content = "".join(f"a{number}.example\n" for number in range(1_000))
    async with serving({"/list": text(content)}) as server:
        # asyncio.run formats the returned value, whose repr must therefore be short.
        assert len(repr(await Reader(fetcher, server).snapshot())) < 1_000


async def test_unrecognized_content_is_reported(fetcher: Fetcher) -> None:
    async with serving({"/list": text("<html>Hello</html>", Content_Type="text/html")}) as server:
        refused = await Reader(fetcher, server).refusal()
    assert (refused.fault, refused.url) == ("not_a_directory", f"{server.url}/list")
    assert refused.message.endswith("/list: this is a page (HTML or XML)")


@pytest.mark.parametrize("settings", [{}, {"format": "mcp_registry"}])
async def test_redirected_list_is_reported_with_both_urls(settings: dict[str, Any], fetcher: Fetcher) -> None:
    places = {"/list": redirect("/new"), "/new": as_json({"error": "x"})}
    async with serving(places) as server:
        refused = await Reader(fetcher, server).refusal(**settings)
        assert re.search(rf"{server.url}/list\b.* {server.url}/new: ", refused.message)
        server.replies["/new"] = answer(404)
        refused = await Reader(fetcher, server).refusal(**settings)
        assert re.match(rf"{server.url}/list\b.* {server.url}/new: HTTP 404: ", refused.message)


async def test_content_of_another_format_than_declared_is_reported(fetcher: Fetcher) -> None:
    async with serving({"/list": as_json({"error": "x"})}) as server:
        refused = await Reader(fetcher, server).refusal(format="mcp_registry")
    assert refused.fault == "not_a_directory"
    assert "`servers`" in refused.message
    assert "the members error" in refused.message


async def test_relative_urls_are_resolved_against_the_final_url(fetcher: Fetcher) -> None:
    replies = {
        "/list": redirect("/moved/catalog.json"),
        "/moved/catalog.json": as_json(catalog(card("./a.json"))),
    }
    async with serving(replies) as server:
        assert urls(await Reader(fetcher, server).snapshot()) == [f"{server.url}/moved/a.json"]


async def test_directory_above_the_entry_limit_is_refused_as_a_whole(fetcher: Fetcher) -> None:
    async with serving({"/list": text(LIST)}) as server:
        refused = await Reader(fetcher, server).refusal(max_entries=1)
    assert (refused.fault, refused.message) == ("too_large", "more than 1 target")


async def test_mcp_servers_are_read_on_request(fetcher: Fetcher) -> None:
    server_list = {"servers": [{"server": {"remotes": [{"url": "https://m.example/mcp"}]}}], "metadata": {}}
    async with serving({"/list": as_json(server_list)}) as server:
        reader = Reader(fetcher, server)
        without = await reader.snapshot()
        assert (without.entries, without.left_out["not_a2a"].count) == ((), 1)
        assert urls(await reader.snapshot(kinds=frozenset({Kind.MCP}))) == ["https://m.example/mcp"]


async def test_large_list_is_parsed_outside_the_event_loop(fetcher: Fetcher) -> None:
    content = "".join(f"a{number}.example\n" for number in range(20_000))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with serving({"/list": text(content)}) as server:
        ticking = asyncio.create_task(tick())
        found = await Reader(fetcher, server).snapshot()
        ticking.cancel()
    assert len(found.entries) == 20_000
    assert ticks > 1


# ── pages ──


def a2a_pages(total: int, served: int, size: int = 100) -> dict[str, Reply]:
    return {
        f"/api/agents?limit=100&offset={offset}": as_json({
            "agents": agents(offset, max(0, min(size, served - offset))),
            "total": total,
            "limit": 100,
            "offset": offset,
        })
        for offset in range(0, served + size, size)
    }  # fmt: skip


async def test_all_pages_are_read_sequentially(fetcher: Fetcher) -> None:
    async with serving(a2a_pages(219, 219)) as server:
        found = await Reader(fetcher, server).snapshot("", format="a2a_registry")
        assert len(server.paths) == 3
    assert (len(found.entries), found.items, found.documents, found.findings) == (219, 219, 3, ())


async def test_announced_total_above_the_served_entries_is_reported(fetcher: Fetcher) -> None:
    async with serving(a2a_pages(219, 200)) as server:
        found = await Reader(fetcher, server).snapshot("", format="a2a_registry")
    assert len(found.entries) == 200
    (finding,) = found.findings
    assert (finding.name, re.findall(r"\d+", finding.message)) == ("total_differs", ["219", "200"])


@pytest.mark.parametrize(
    "reply",
    [answer(404), answer(400), as_json({"error": 1}), text("<html>"), answer(200, b"{", Content_Type="x/y")],
)
async def test_failed_page_fails_the_whole_directory(reply: Reply, fetcher: Fetcher) -> None:
    replies = a2a_pages(219, 219) | {"/api/agents?limit=100&offset=100": reply}
    async with serving(replies) as server:
        refused = await Reader(fetcher, server).refusal("", format="a2a_registry")
    assert refused.url.endswith("offset=100")
    assert refused.fault in {"not_fetched", "not_a_directory"}


async def test_repeated_cursor_of_a_server_ends_the_reading(fetcher: Fetcher) -> None:
    page = {"servers": [], "metadata": {"nextCursor": "again"}}
    replies = {
        "/v0.1/servers?limit=100": as_json(page),
        "/v0.1/servers?limit=100&cursor=again": as_json(page),
    }
    async with serving(replies) as server:
        refused = await Reader(fetcher, server).refusal("", format="mcp_registry")
        assert len(server.paths) == 2
    assert refused.fault == "endless"


async def test_total_size_of_all_documents_is_limited(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    async with serving(a2a_pages(219, 219)) as server:
        refused = await Reader(fetcher, server).refusal("", format="a2a_registry")
    assert (refused.fault, refused.message) == ("too_large", "more than 10000 bytes in all")


# ── catalogs ──


async def test_catalogs_linked_by_a_catalog_are_read_too(fetcher: Fetcher) -> None:
    replies = {
        "/list": as_json(catalog(card("https://a.example/"), nested("/one.json"), nested("/two.json"))),
        "/one.json": as_json(catalog(card("https://b.example/"), nested("/list"))),
        "/two.json": as_json(catalog(card("https://a.example/"), nested("/one.json"))),
    }
    async with serving(replies) as server:
        found = await Reader(fetcher, server).snapshot()
    assert urls(found) == ["https://a.example/", "https://b.example/"]
    assert (found.documents, found.duplicates, found.findings) == (3, 1, ())


@pytest.mark.parametrize(
    "reply", [answer(404), answer(403), redirect("ftp://x/"), text("<html>"), as_json({})]
)
async def test_definitely_missing_catalog_is_reported(reply: Reply, fetcher: Fetcher) -> None:
    outer = catalog(card("https://a.example/"), nested("/gone.json"))
    async with serving({"/list": as_json(outer), "/gone.json": reply}) as server:
        reader = Reader(fetcher, server)
        found = await reader.snapshot()
    assert urls(found) == ["https://a.example/"]
    assert [finding.name for finding in found.findings] == ["nested_not_read"]
    assert "/gone.json" in found.findings[0].message
    assert reader.waits == []


EMPTY_PAGE = as_json({"items": [], "pageToken": "more"})
"""A page of a catalog that refers to the next one without end."""


def nesting(reply: Reply) -> dict[str, Reply]:
    """Return a directory with a nested catalog that gives this reply, beside one that can be read."""
    outer = catalog(card("https://a.example/"), nested("/bad.json"), nested("/good.json"))
    good = as_json(catalog(card("https://b.example/")))
    return {"/list": as_json(outer), "/bad.json": reply, "/good.json": good}


@pytest.mark.parametrize(
    "reply",
    [answer(503), answer(429), raw(b"nonsense\r\n\r\n"), answer(503, Retry_After="600"), EMPTY_PAGE],
)
async def test_unreadable_nested_catalog_concerns_only_its_own_entries(
    reply: Reply, fetcher: Fetcher
) -> None:
    more = {"/bad.json?pageToken=more&pageSize=100": as_json({"items": [], "total": 0, "pageToken": "more"})}
    async with serving(nesting(reply) | more) as server:
        found = await Reader(fetcher, server).snapshot()
    assert (urls(found), found.unread) == (["https://a.example/", "https://b.example/"], 1)
    assert [finding.name for finding in found.findings] == ["nested_not_read"]
    assert "/bad.json" in found.findings[0].message


async def test_nested_catalog_with_too_many_entries_concerns_only_itself(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_collection, "MAX_ENTRIES", NESTED_SHARE)
    many = as_json(catalog(card("https://c.example/"), card("https://d.example/")))
    async with serving(nesting(many)) as server:
        found = await Reader(fetcher, server).snapshot()
    assert urls(found) == ["https://a.example/", "https://c.example/", "https://b.example/"]
    assert found.unread == 1


async def test_large_nested_catalog_concerns_only_itself(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 500 * NESTED_SHARE)
    async with serving(nesting(as_json(catalog(card(f"https://c.example/{'x' * 600}"))))) as server:
        found = await Reader(fetcher, server).snapshot()
    assert (urls(found), found.unread) == (["https://a.example/", "https://b.example/"], 1)
    assert "more than 500 bytes" in found.findings[0].message


async def test_slow_nested_catalog_concerns_only_itself(fetcher: Fetcher) -> None:
    pages = {
        f"/bad.json?pageToken={number}&pageSize=100": as_json(
            catalog(card(f"https://c.example/{number}")) | {"pageToken": str(number + 1)}
        )
        for number in range(1, 9)
    }
    first = as_json(catalog(card("https://c.example/")) | {"pageToken": "1"})
    async with serving(nesting(first) | pages) as server:
        reader = Reader(fetcher, server)
        fetch = reader.get

        async def get(wanted: WantedDocument) -> Got:
            if "bad.json" in wanted.url:
                reader.waits.append(MAX_CATALOG_S / 4)
            return await fetch(wanted)

        reader.get = get
        found = await reader.snapshot()
    assert len(urls(found)) == 2 + 4
    assert urls(found)[-1] == "https://b.example/"
    assert (found.unread, sum(reader.waits)) == (1, MAX_CATALOG_S)


async def test_time_of_all_nested_catalogs_is_bounded(fetcher: Fetcher) -> None:
    outer = catalog(card("https://a.example/"), *(nested(f"/{number}.json") for number in range(100)))
    async with serving({"/list": as_json(outer)}) as server:
        reader = Reader(fetcher, server)
        fetch = reader.get

        async def get(wanted: WantedDocument) -> Got:
            if wanted.url.endswith(".json"):
                reader.waits.append(MAX_CATALOG_S)
            return await fetch(wanted)

        reader.get = get
        found = await reader.snapshot()
    assert (urls(found), sum(reader.waits)) == (["https://a.example/"], MAX_NESTED_S)
    assert found.unread == 100 - MAX_NESTED_S / MAX_CATALOG_S


async def test_complete_reading_with_the_targets_of_an_incomplete_one_is_a_change(fetcher: Fetcher) -> None:
    async with serving(nesting(answer(503))) as server:
        reader = Reader(fetcher, server)
        known = (await reader.snapshot()).version
        assert isinstance(await reader.read(known=known), Unchanged)
        server.replies["/bad.json"] = answer(404)
        assert (await reader.snapshot(known=known)).unread == 0


async def test_catalog_on_a_blocked_network_is_not_requested(fetcher: Fetcher) -> None:
    outer = catalog(card("https://a.example/"), nested("http://169.254.169.254/latest/meta-data/"))
    async with serving({"/list": as_json(outer)}) as server:
        found = await Reader(fetcher, server).snapshot()
    assert "metadata address" in found.findings[0].message


# ── directories given as a domain ──


async def test_domain_is_read_through_its_well_known_catalogs(fetcher: Fetcher) -> None:
    linkset = {"linkset": [{"anchor": "/", "item": [{"href": "https://a.example/api"}]}]}
    async with serving({API_CATALOG: as_json(linkset)}) as server:
        found = await Reader(fetcher, server).snapshot("")
        assert server.paths == [ARD, CATALOG, API_CATALOG]
    assert (found.format, found.url) == ("api_catalog", f"{server.url}{API_CATALOG}")


async def test_a_domain_may_serve_a_list_itself(fetcher: Fetcher) -> None:
    async with serving({CATALOG: text("<html>", Content_Type="text/html"), "/": text(LIST)}) as server:
        assert (await Reader(fetcher, server).snapshot("")).format == "plain_list"
        assert server.paths == [ARD, CATALOG, API_CATALOG, "/"]


@pytest.mark.parametrize("has_page", [True, False])
async def test_domain_may_point_to_a_catalog_on_another_origin(fetcher: Fetcher, *, has_page: bool) -> None:
    async with serving({"/ours.json": as_json(catalog(card("https://a.example/")))}) as other:
        pointer = f"{other.url}/ours.json"
        page = text(f'<html><link rel="ard" href="{pointer}">', Content_Type="text/html")
        replies = {"/": page} if has_page else {"/robots.txt": text(f"Agentmap: {pointer}\n")}
        async with serving(replies) as server:
            found = await Reader(fetcher, server).snapshot("", key="secret-key-secret-key")
            assert server.paths == [ARD, CATALOG, API_CATALOG, "/", "/robots.txt"]
        assert "authorization" not in other.asked("/ours.json")
    assert urls(found) == ["https://a.example/"]
    assert found.url == pointer


@pytest.mark.parametrize("pointer", ["http://169.254.169.254/x", "/robots.txt", "/gone"])
async def test_pointer_that_leads_to_no_catalog_is_reported(pointer: str, fetcher: Fetcher) -> None:
    async with serving({"/robots.txt": text(f"Agentmap: {pointer}\n")}) as server:
        refused = await Reader(fetcher, server).refusal("")
    assert refused.fault == "not_fetched"
    assert pointer in refused.message


async def test_domain_without_directory_is_reported_with_all_requested_urls(fetcher: Fetcher) -> None:
    async with serving({CATALOG: as_json({"status": "UP"})}) as server:
        refused = await Reader(fetcher, server).refusal("")
    assert (refused.fault, refused.result) == ("not_fetched", ResultClass.NOT_AN_AGENT)
    for what in (f"{CATALOG}: this is a JSON object", f"{API_CATALOG}: HTTP 404", "/: HTTP 404"):
        assert what in refused.message


async def test_unreachable_catalog_differs_from_a_missing_one(fetcher: Fetcher) -> None:
    async with serving({CATALOG: answer(503), API_CATALOG: as_json({"linkset": []})}) as server:
        refused = await Reader(fetcher, server).refusal("")
        assert set(server.paths) == {ARD, CATALOG}
    assert refused.result is ResultClass.HTTP_ERROR


# ── politeness ──


def in_turn(*replies: Reply) -> Reply:
    """Each request gets the next reply."""
    waiting = list(replies)

    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        await waiting.pop(0)(writer, head)

    return reply


async def test_retry_after_is_respected(fetcher: Fetcher) -> None:
    away = [answer(429, Retry_After="7"), answer(503, Retry_After="1"), answer(500)]
    async with serving({"/list": in_turn(*away, text(LIST))}) as server:
        reader = Reader(fetcher, server)
        assert len((await reader.snapshot()).entries) == 2
    assert reader.waits == [7, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]


async def test_directory_without_an_answer_is_requested_once_more(fetcher: Fetcher) -> None:
    async with serving({}) as server:
        reader, asked = Reader(fetcher, server), []

        async def get(wanted: WantedDocument) -> Fetched:
            asked.append(wanted.url)
            return Fetched(url=URL(wanted.url), result=ResultClass.TIMEOUT, reason="no answer")

        reader.get = get
        assert (await reader.refusal()).result is ResultClass.TIMEOUT
        assert len(asked) == MAX_SILENT_TRIES


async def test_retries_are_bounded(fetcher: Fetcher) -> None:
    async with serving({"/list": answer(503)}) as server:
        refused = await Reader(fetcher, server).refusal()
        assert len(server.paths) == MAX_TRIES
    assert (refused.fault, refused.result) == ("not_fetched", ResultClass.HTTP_ERROR)


async def test_long_retry_after_postpones_reading(fetcher: Fetcher) -> None:
    async with serving({"/list": answer(429, Retry_After=str(int(MAX_WAIT_S) + 1))}) as server:
        reader = Reader(fetcher, server)
        refused = await reader.refusal()
    assert (reader.waits, refused.retry_after_s) == ([], MAX_WAIT_S + 1)
    assert refused.result is ResultClass.RATE_LIMITED


@pytest.mark.parametrize("status", [400, 401, 402, 404, 410, 451])
async def test_permanent_refusal_is_not_retried(status: int, fetcher: Fetcher) -> None:
    async with serving({"/list": answer(status)}) as server:
        await Reader(fetcher, server).refusal()
        assert len(server.paths) == 1


async def test_total_waiting_time_of_a_reading_is_bounded(fetcher: Fetcher) -> None:
    slow = {
        path: in_turn(answer(503, Retry_After="120"), reply)
        for path, reply in a2a_pages(10_000, 10_000).items()
    }
    async with serving(slow) as server:
        reader = Reader(fetcher, server)
        assert (await reader.refusal("", format="a2a_registry")).fault == "not_fetched"
    assert MAX_READING_S - MAX_WAIT_S <= sum(reader.waits) < MAX_READING_S


async def test_slow_directory_times_out(fetcher: Fetcher) -> None:
    async with serving(a2a_pages(1_000, 1_000)) as server:
        reader = Reader(fetcher, server)
        fetch = reader.get

        async def get(wanted: WantedDocument) -> Got:
            reader.waits.append(MAX_READING_S / 4)
            return await fetch(wanted)

        reader.get = get
        refused = await reader.refusal("", format="a2a_registry")
        assert len(server.paths) == 4
    assert (refused.fault, refused.message) == ("too_slow", "not read within 3600 s")


# ── unchanged documents ──


async def test_unchanged_values_are_not_sent_again(fetcher: Fetcher) -> None:
    etag = '"v1"'
    async with serving({"/list": in_turn(text(LIST, ETag=etag), answer(304, ETag=etag))}) as server:
        reader = Reader(fetcher, server)
        known = (await reader.snapshot()).version
        assert await reader.read(known=known) == Unchanged(version=known)
        assert server.asked("/list")["if-none-match"] == etag


async def test_last_modified_is_used_without_an_entity_tag(fetcher: Fetcher) -> None:
    time = "Wed, 21 Oct 2026 07:28:00 GMT"
    async with serving({"/list": in_turn(text(LIST, Last_Modified=time), answer(304))}) as server:
        reader = Reader(fetcher, server)
        known = (await reader.snapshot()).version
        assert await reader.read(known=known) == Unchanged(version=known)
        assert server.asked("/list")["if-modified-since"] == time


async def test_reordered_list_is_unchanged(fetcher: Fetcher) -> None:
    again = text("b.example\na.example\na.example\n", ETag='"v2"')
    async with serving({"/list": in_turn(text(LIST, ETag='"v1"'), again)}) as server:
        reader = Reader(fetcher, server)
        known = (await reader.snapshot()).version
        found = await reader.read(known=known)
    assert isinstance(found, Unchanged)
    assert found.version == known.replace("v1", "v2")


async def test_changed_directory_gives_a_snapshot(fetcher: Fetcher) -> None:
    async with serving({"/list": in_turn(text(LIST, ETag='"v1"'), text("c.example", ETag='"v2"'))}) as server:
        reader = Reader(fetcher, server)
        known = (await reader.snapshot()).version
        assert urls(await reader.snapshot(known=known)) == ["https://c.example/"]


@pytest.mark.parametrize("settings", [{"format": "plain_list"}, {"kinds": frozenset(Kind)}])
async def test_changed_format_reads_the_list_again(settings: dict[str, Any], fetcher: Fetcher) -> None:
    async with serving({"/list": text(LIST, ETag='"v1"')}) as server:
        reader = Reader(fetcher, server)
        known = (await reader.snapshot()).version
        await reader.snapshot(known=known, **settings)
        assert "if-none-match" not in server.asked("/list")


async def test_version_of_several_documents_covers_all_of_them(fetcher: Fetcher) -> None:
    replies = {
        "/list": as_json(catalog(card("https://a.example/"), nested("/one.json")), ETag='"v1"'),
        "/one.json": answer(404),
    }
    async with serving(replies) as server:
        reader = Reader(fetcher, server)
        known = (await reader.snapshot()).version
        assert "v1" not in known
        server.replies["/one.json"] = as_json(catalog(card("https://b.example/")))
        assert len((await reader.snapshot(known=known)).entries) == 2
        assert isinstance(await reader.read(known=(await reader.snapshot()).version), Unchanged)


async def test_not_modified_without_a_stored_list_is_refused(fetcher: Fetcher) -> None:
    async with serving({"/list": answer(304)}) as server:
        assert (await Reader(fetcher, server).refusal()).fault == "not_fetched"

    async def get(wanted: WantedDocument) -> Got:
        return Fetched(url=URL(wanted.url), result=ResultClass.OK, is_unchanged=True)

    found = await read_directory(ListSource(url="https://a.example/list"), get)
    assert isinstance(found, NotRead)
    assert found.message.endswith("this is empty: it lists no agent, which may be a broken export")


@pytest.mark.parametrize("known", ["", "nonsense", "1 x y"])
async def test_invalid_memory_is_dropped(known: str, fetcher: Fetcher) -> None:
    async with serving({"/list": text(LIST)}) as server:
        assert len((await Reader(fetcher, server).snapshot(known=known)).entries) == 2


# ── the key ──

KEY = "key-of-the-directory"


async def test_key_is_sent_to_the_directory_only(fetcher: Fetcher) -> None:
    async with serving({"/other.json": as_json(catalog(card("https://b.example/")))}) as other:
        outer = catalog(nested("/own.json"), nested(f"{other.url}/other.json"))
        replies = {"/list": as_json(outer), "/own.json": as_json(catalog(card("https://a.example/")))}
        async with serving(replies) as server:
            found = await Reader(fetcher, server).snapshot(key="secret")
            assert server.asked("/list")["authorization"] == "Bearer secret"
            assert "authorization" not in server.asked("/own.json")
        assert "authorization" not in other.asked("/other.json")
    assert len(found.entries) == 2


async def test_key_is_not_sent_to_the_target_of_a_redirect(fetcher: Fetcher) -> None:
    async with (
        serving({"/list": text(LIST)}) as other,
        serving({"/list": redirect(f"{other.url}/list")}) as server,
    ):
        reader = Reader(fetcher, server)
        assert (await reader.refusal(key="secret")).result is ResultClass.REDIRECT_REFUSED
        assert other.heads == []
        assert len((await reader.snapshot()).entries) == 2


async def test_key_is_not_sent_to_another_folder(fetcher: Fetcher) -> None:
    replies = {
        "/a/list": redirect("/a/new.json"),
        "/a/new.json": as_json(catalog(card("https://b.example/"))),
        "/a/away.json": redirect("/b/new.json"),
    }
    async with serving(replies) as server:
        reader = Reader(fetcher, server)
        assert len((await reader.snapshot("/a/list", key="secret")).entries) == 1
        assert server.asked("/a/new.json")["authorization"] == "Bearer secret"
        assert (await reader.refusal("/a/away.json", key="secret")).result is ResultClass.REDIRECT_REFUSED
        assert len(server.heads) == 3


@pytest.mark.parametrize(
    "reply",
    [
        text(f"https://a.example/?token={KEY}\n"),
        answer(302, Location=f"https://login.example/?token={KEY}"),
        answer(302, Location=f"/other?token={KEY}"),
        raw(f"{KEY}\r\n\r\n".encode()),
    ],
)
async def test_key_that_a_directory_sends_back_is_removed(reply: Reply, fetcher: Fetcher) -> None:
    async with serving({"/list": reply}) as server:
        found = await Reader(fetcher, server).read(key=KEY)
    assert isinstance(found, NotRead | Snapshot)
    shown = found.message if isinstance(found, NotRead) else str(urls(found))
    assert KEY not in shown


@pytest.mark.parametrize("guess", [KEY, KEY.upper(), KEY.encode().hex(), "%6Bey-of-the-directory"])
async def test_document_that_contains_the_key_is_not_read(guess: str, fetcher: Fetcher) -> None:
    """Entries come from many: none of them may learn the key, or be requested at a URL without it."""
    listed = text(f"{LIST}https://a.example/{guess}\n")
    async with serving({"/list": listed}) as server:
        refused = await Reader(fetcher, server).refusal(key=KEY)
        assert refused.fault == "key_in_document"
        assert guess not in str(refused)
        assert len((await Reader(fetcher, server).snapshot()).entries) == 3


async def test_key_with_invisible_characters_is_removed_too(fetcher: Fetcher) -> None:
    """They are removed from what is shown of entries that are left out."""
    sent = f"{KEY[:4]}\u200e{KEY[4:]}"
    listed = text(f"{LIST}mailto:{sent}\n")
    async with serving({"/list": listed}) as server:
        found = await Reader(fetcher, server).read(key=KEY)
    assert KEY not in str(found)


# ── files ──


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("agents.txt", "a.example\n"),
        ("agents.csv", "https://a.example/,One\n"),
        ("agents.tsv", "https://a.example/\tOne\n"),
        ("agents.jsonl", '{"url": "a.example"}\n'),
        ("agents.ndjson", '"a.example"\n'),
        ("agents.json", '["a.example"]'),
        ("agents", "a.example"),
    ],
)
async def test_file_format_follows_its_suffix(name: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content)
    found = await read_directory(ListSource(file=file))
    assert isinstance(found, Snapshot)
    assert (urls(found), found.url) == (["https://a.example/"], str(file))


async def test_unmodified_file_is_reported_as_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "agents.txt"
    file.write_text(LIST)
    found = await read_directory(ListSource(file=file))
    assert isinstance(found, Snapshot)
    assert await read_directory(ListSource(file=file), known=found.version) == Unchanged(
        version=found.version
    )

    file.write_text("c.example")
    assert isinstance(await read_directory(ListSource(file=file), known=found.version), Snapshot)


async def test_documents_named_by_a_file_are_read_if_possible(fetcher: Fetcher, tmp_path: Path) -> None:
    async with serving({"/one.json": as_json(catalog(card("https://a.example/")))}) as server:
        file = tmp_path / "catalog.json"
        file.write_text(json.dumps(catalog(nested(f"{server.url}/one.json"))))
        found = await read_directory(ListSource(file=file), fetching_with(fetcher))
    assert isinstance(found, Snapshot)
    assert urls(found) == ["https://a.example/"]


async def test_file_with_one_page_of_a_registry_has_findings(tmp_path: Path) -> None:
    file = tmp_path / "page.json"
    file.write_text(json.dumps({"agents": agents(0, 100), "total": 219, "limit": 100, "offset": 0}))
    found = await read_directory(ListSource(file=file))
    assert isinstance(found, Snapshot)
    assert [finding.name for finding in found.findings] == ["first_page_only", "total_differs"]


async def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    expected = {"absent": "No such file", "": "regular file", "pipe": "regular file"}
    for name, words in expected.items():
        refused = await read_directory(ListSource(file=tmp_path / name))
        assert isinstance(refused, NotRead)
        assert (refused.fault, words in refused.message) == ("file_unreadable", True)


async def test_oversized_file_is_refused_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 10)
    file = tmp_path / "agents.txt"
    file.write_text(LIST)
    refused = await read_directory(ListSource(file=file))
    assert isinstance(refused, NotRead)
    assert refused.fault == "too_large"


async def test_reading_a_url_without_a_fetcher_is_refused() -> None:
    with pytest.raises(InvalidValue, match="fetch"):
        await read_directory(ListSource(url="https://a.example/list"))


async def test_unknown_format_is_reported_before_any_request() -> None:
    with pytest.raises(InvalidValue, match="yellow_pages"):
        await read_directory(ListSource(url="https://a.example/list", format="yellow_pages"))


# ── faults of the directory and of the prober ──


@pytest.mark.parametrize(("is_ours", "tries"), [(True, MAX_TRIES), (False, 1)])
async def test_dns_failure_is_retried_only_if_the_own_resolver_failed(*, is_ours: bool, tries: int) -> None:
    asked: list[WantedDocument] = []

    async def get(wanted: WantedDocument) -> Got:
        asked.append(wanted)

        return Fetched(url=URL(wanted.url), result=ResultClass.DNS_FAILURE, is_resolver_fault=is_ours)

    async def no_wait(_seconds: float) -> None:
        pass

    refused = await read_directory(ListSource(url="https://a.example/list"), get, sleep=no_wait)
    assert isinstance(refused, NotRead)
    assert (refused.result, len(asked)) == (ResultClass.DNS_FAILURE, tries)


async def test_opted_out_origin_gets_no_request_for_a_directory() -> None:
    entries = [
        {"identifier": "urn:one", "type": A2A, "url": "https://one.example/card.json"},
        {"identifier": "urn:closed", "type": CATALOG_TYPE, "url": ""},
    ]
    async with serving({"/list": answer(200, LIST.encode())}, host="127.0.0.2") as closed:
        entries[1]["url"] = f"{closed.url}/list"
        replies = {
            "/catalog": as_json({"specVersion": "1.0", "entries": entries}),
            "/moved": redirect(f"{closed.url}/list"),
        }
        async with (
            serving(replies) as server,
            Resolver() as resolver,
            Fetcher(
                timeouts=Timeouts(first_byte_seconds=5, total_seconds=5),
                networks=read_networks(["127.0.0.0/8"]),
                user_agent="lifesign-prober/test",
                resolver=resolver,
                opt_outs=read_opt_outs(["127.0.0.2"], "opt_out.hosts"),
            ) as fetcher,
        ):
            reader = Reader(fetcher, server)
            found = await reader.snapshot("/catalog")
            assert [entry.url for entry in found.entries] == ["https://one.example/card.json"]
            (finding,) = found.findings
            assert finding.name == "nested_not_read"
            assert finding.message.endswith("/list: opted out: 127.0.0.2")
            moved = await reader.refusal("/moved")
            assert "opted out: 127.0.0.2" in moved.message
            named = await Reader(fetcher, closed).refusal("/list")
            assert "opted out: 127.0.0.2" in named.message
        # No request was sent, and none is retried.
        assert (closed.heads, reader.waits) == ([], [])


# ── a reader that fails ──


class Failing:
    """A format with a defect, at one of its stages."""

    name = "failing"
    place = ""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def recognises(self, _document: Document) -> bool:
        self.fail_at("recognises")
        return True

    def read(self, _document: Document) -> DirectoryPage:
        self.fail_at("read")
        return DirectoryPage(entries=self.entries(), items=1)

    def entries(self) -> Iterator[Listed]:
        yield Listed("https://a.example/")
        self.fail_at("entries")

    def fail_at(self, stage: str) -> None:
        if self.stage == stage:
            raise TypeError("\u0416" + "x" * 10_000)


@pytest.mark.parametrize("stage", ["read", "entries"])
async def test_a_built_in_format_that_fails_is_an_error_of_its_directory(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(format_choice.BUILT_IN, "failing", Failing(stage))
    file = tmp_path / "list.txt"
    file.write_text(LIST)
    found = await read_directory(ListSource(file=file, format="failing"))
    assert isinstance(found, NotRead)
    assert (found.fault, found.url) == ("reader_failed", str(file))
    assert found.message.isascii()
    assert len(found.message) < 1_000
    assert "Traceback" in caplog.text


async def test_failing_format_leaves_a_document_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        format_choice, "DETECTED_BY_CONTENT", (Failing("recognises"), *format_choice.DETECTED_BY_CONTENT)
    )
    file = tmp_path / "list.txt"
    file.write_text(LIST)
    found = await read_directory(ListSource(file=file))
    assert isinstance(found, Snapshot)
    assert (found.format, len(found.entries)) == ("plain_list", 2)
    assert [finding.name for finding in found.findings] == ["reader_failed"]
    assert "Traceback" in caplog.text


async def test_agntcy_module_without_a_name_is_skipped_with_a_count(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text('[{"name":"x","schema_version":"1.0.0","modules":[{"name":{},"data":{}}]}]')
    found = await read_directory(ListSource(file=file))
    assert isinstance(found, Snapshot)
    assert (found.format, found.entries, found.left_out["no_url"].count) == ("agntcy", (), 1)


async def test_a_page_token_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text('{"servers": [{"server": {"name": "a"}}], "metadata": {"nextCursor": "\\ud800"}}')
    found = await read_directory(ListSource(file=file))
    assert isinstance(found, NotRead)
    assert found.fault == "not_a_directory"
