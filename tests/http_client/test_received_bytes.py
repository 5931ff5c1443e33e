"""Every received byte counts against a bound, whatever part of HTTP it belongs to, and whichever client asks.

The bound is measured from outside: what a raw socket could write before its connection was ended, and how
much memory Python took meanwhile.
"""

import asyncio
import contextlib
import gzip
import json
import os
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from tests.support.both_loops import on_both_loops
from tests.support.flooding_server import KERNEL_BYTES, FloodingServer, flooding
from tests.support.hostile_server import Reply, kept, raw, serving
from tests.support.safe_asking import asking
from tests.support.servers import PATIENCE_SECONDS
from yarl import URL

from lifesign.activity import opencode
from lifesign.activity.opencode import NotOpencode, OpencodeServer, OpencodeUnreachable
from lifesign.cli.doctor.http import fetch
from lifesign.client import RegistryClient, event_stream, fetch_health, registry_connection
from lifesign.client.registry_errors import RegistryError
from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.bounded_get import Ask, bounded_get
from lifesign.http_client.byte_counter import MAX_SPARE_BYTES
from lifesign.http_client.guarded_sessions import GuardedSessions
from lifesign.mcp.vetted_get import vetted_get
from lifesign.registry.events.safe_post import safe_post
from lifesign.registry.targets.check_opt_outs import served_proof

LOOPBACK = read_networks(["127.0.0.0/8"])
MAX_BODY_BYTES = 10_000
MAX_SENT_BYTES = MAX_SPARE_BYTES + KERNEL_BYTES
MAX_MEMORY_BYTES = 16 * 1024 * 1024
LARGEST_MESSAGE_BYTES = 64 * 1024
"""For event streams, instead of MAX_MESSAGE_BYTES: each line is slow while memory is traced."""
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY_DEFLATE_BLOCK = b"\x00\x00\x00\xff\xff"

FLOODS: dict[str, tuple[bytes, bytes]] = {
    "a status line": (b"HTTP/1.1 200 ", b"a" * 65_536),
    "a header line": (JSON_HEAD + b"X-Long: ", b"a" * 65_536),
    "header fields": (JSON_HEAD, b"X-More: of the same\r\n" * 3_000),
    "1xx answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_500),
    "a chunk extension": (JSON_HEAD + CHUNKED + b"5;a=", b"a" * 65_536),
    "zeros before a chunk size": (JSON_HEAD + CHUNKED, b"0" * 65_536),
    "extensions of small chunks": (JSON_HEAD + CHUNKED, (b"1;" + b"a" * 500 + b"\r\n \r\n") * 100),
    "trailers": (JSON_HEAD + CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-More: of the same\r\n" * 3_000),
    "a trailer": (JSON_HEAD + CHUNKED + b"2\r\n{}\r\n0\r\nX-Long: ", b"a" * 65_536),
    "what unpacks to nothing": (
        JSON_HEAD + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(b"")[:2],
        EMPTY_DEFLATE_BLOCK * 13_000,
    ),
    "what unpacks to nothing, in gzip": (
        JSON_HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"")[:10],
        EMPTY_DEFLATE_BLOCK * 13_000,
    ),
    "a body": (JSON_HEAD + b"\r\n", b" " * 65_536),
    "the body of an error": (b"HTTP/1.1 500 No\r\n\r\n", b" " * 65_536),
    "the body of a redirect": (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n", b" " * 65_536),
    "a chunk extension of a redirect": (
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n" + CHUNKED + b"5;a=",
        b"a" * 65_536,
    ),
    "1xx answers after the answer": (
        JSON_HEAD + b"Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2_500,
    ),
    "answers after the answer": (
        JSON_HEAD + b"Content-Length: 2\r\n\r\n{}",
        (JSON_HEAD + b"Content-Length: 2\r\n\r\n{}") * 800,
    ),
}  # fmt: skip


async def by_the_prober(server: FloodingServer) -> None:
    async with asking() as asker:
        fetched = await asker.get(f"{server.url}/", max_bytes=MAX_BODY_BYTES)
        assert fetched.result is not ResultClass.TIMEOUT
        # The connection may be kept for the next request.
        await ended(server)


async def by_the_prober_for_a_part(server: FloodingServer) -> None:
    async with asking() as asker:
        fetched = await asker.get(f"{server.url}/robots.txt", max_bytes=MAX_BODY_BYTES, is_part_enough=True)
        assert fetched.result is not ResultClass.TIMEOUT
        await ended(server)


async def by_check(server: FloodingServer) -> None:
    checked = await fetch_health(server.url, timeout_seconds=2 * PATIENCE_SECONDS)
    assert ResultClass.TIMEOUT not in {checked.card_result, checked.document_result}


async def by_a_session_of_ones_own(server: FloodingServer) -> None:
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    url = URL(server.url)
    async with (
        aiohttp.ClientSession() as session,
        GuardedSessions(trusted=url, session=session) as sessions,
    ):
        answer = await bounded_get(sessions, url, Ask(max_bytes=MAX_BODY_BYTES, deadline_s=deadline_s))
    assert answer.result is not ResultClass.TIMEOUT


async def by_a_model(server: FloodingServer) -> None:
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    async with vetted_get(LOOPBACK) as get:
        answer = await get(URL(server.url), Ask(max_bytes=MAX_BODY_BYTES, deadline_s=deadline_s))
        assert answer.result is not ResultClass.TIMEOUT
        await ended(server)


async def by_a_webhook(server: FloodingServer) -> None:
    sent = await safe_post(f"{server.url}/hook", b"{}", {}, LOOPBACK)
    assert "no answer within" not in str(sent.error)


async def by_an_opt_out_check(server: FloodingServer) -> None:
    await served_proof(server.url, LOOPBACK)


async def by_a_registry_client(server: FloodingServer) -> None:
    async with RegistryClient(server.url, timeout_seconds=PATIENCE_SECONDS) as client:
        with contextlib.suppress(RegistryError):
            await client.agents.get("a")
        await ended(server)


async def by_doctor(server: FloodingServer) -> None:
    await asyncio.to_thread(fetch, f"{server.url}/healthz")


async def by_watch_activity(server: FloodingServer) -> None:
    async with OpencodeServer(server.url) as asked:
        with contextlib.suppress(OpencodeUnreachable, NotOpencode):
            await asked.session_statuses(["ses_1"])
        await ended(server)


# The prober and a model's check are tested on both event loops instead.
CLIENTS: dict[str, Callable[[FloodingServer], Awaitable[None]]] = {
    "the prober, for a part": by_the_prober_for_a_part,
    "check": by_check,
    "a webhook": by_a_webhook,
    "an opt-out check": by_an_opt_out_check,
    "a registry client": by_a_registry_client,
    "doctor": by_doctor,
    "watch-activity": by_watch_activity,
}
LARGEST_BODIES = {
    "a registry client": registry_connection.MAX_BODY_BYTES,
    "watch-activity": opencode.MAX_BODY_BYTES,
}
"""Clients that read more than MAX_BODY_BYTES."""
PLAIN_BODIES = ("a body", "the body of an error", "the body of a redirect")
# The header is read by a connector that is not ours.
BODY_FLOODS = [name for name, (beginning, _) in FLOODS.items() if b"\r\n\r\n" in beginning]


async def ended(server: FloodingServer) -> None:
    await asyncio.wait_for(server.has_ended.wait(), PATIENCE_SECONDS)


async def measure(
    client: Callable[[FloodingServer], Awaitable[None]],
    beginning: bytes,
    piece: bytes,
    *,
    largest_body: int = MAX_BODY_BYTES,
) -> None:
    """Let a client request a flooding server; check the memory and the bytes."""
    async with flooding(beginning, piece) as server:
        tracemalloc.start()
        try:
            await asyncio.wait_for(client(server), 4 * PATIENCE_SECONDS)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await ended(server)
        # Redirects and further paths are connections of their own.
        assert server.sent_bytes <= server.connections * (largest_body + MAX_SENT_BYTES)
        assert peak_bytes <= 2 * largest_body + MAX_MEMORY_BYTES


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_flooding_response_is_cut_off(client: str, flood: str) -> None:
    largest_body = LARGEST_BODIES.get(client, MAX_BODY_BYTES) if flood in PLAIN_BODIES else MAX_BODY_BYTES
    await measure(CLIENTS[client], *FLOODS[flood], largest_body=largest_body)


@pytest.mark.parametrize("flood", BODY_FLOODS)
async def test_flooding_response_is_cut_off_in_a_callers_own_session(flood: str) -> None:
    await measure(by_a_session_of_ones_own, *FLOODS[flood])


@pytest.mark.parametrize("flood", FLOODS)
@on_both_loops
async def test_flooding_response_is_cut_off_on_both_event_loops(flood: str) -> None:
    await measure(by_the_prober, *FLOODS[flood])
    await measure(by_a_model, *FLOODS[flood])


STREAM_FLOODS = {
    "a chunk extension": (STREAM_HEAD + CHUNKED + b"5;a=", b"a" * 65_536),
    "zeros before a chunk size": (STREAM_HEAD + CHUNKED + b"2\r\n:\n\r\n", b"0" * 65_536),
    "a line": (STREAM_HEAD + b"\r\ndata: ", b"a" * 65_536),
    "empty lines of data": (STREAM_HEAD + b"\r\n", b"data:\n" * 10_000),
    "comments without an empty line": (STREAM_HEAD + b"\r\n", b":\n" * 30_000),
    "the body of an error": (b"HTTP/1.1 500 No\r\n\r\n", b" " * 65_536),
}


async def by_a_follower_of_events(server: FloodingServer) -> None:
    async with RegistryClient(server.url, timeout_seconds=PATIENCE_SECONDS) as client:
        events = client.events.stream(patience_seconds=0)
        with contextlib.suppress(RegistryError):
            await anext(events)


async def by_a_follower_of_sessions(server: FloodingServer) -> None:
    async with OpencodeServer(server.url) as asked:
        with contextlib.suppress(OpencodeUnreachable, NotOpencode):
            async with asked.events() as events:
                async for _ in events:
                    pass


@pytest.mark.parametrize("flood", STREAM_FLOODS)
@pytest.mark.parametrize("client", [by_a_follower_of_events, by_a_follower_of_sessions])
async def test_event_stream_of_only_comments_is_cut_off(
    client: Callable[[FloodingServer], Awaitable[None]], flood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_MESSAGE_BYTES", LARGEST_MESSAGE_BYTES)
    is_body = flood == "the body of an error"
    largest = registry_connection.MAX_BODY_BYTES if is_body else LARGEST_MESSAGE_BYTES
    await measure(client, *STREAM_FLOODS[flood], largest_body=largest)


# ── responses within the limits ──


def in_chunks(body: bytes, size: int) -> Reply:
    pieces = (body[begin : begin + size] for begin in range(0, len(body), size))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return raw(JSON_HEAD + CHUNKED + chunks + b"0\r\n\r\n")


@on_both_loops
async def test_a_body_in_chunks_of_one_byte_is_read() -> None:
    body = json.dumps({"a": "b" * 100_000}).encode()
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    async with serving({"/": in_chunks(body, 1)}) as server, asking() as asker, vetted_get(LOOPBACK) as get:
        fetched = await asker.get(server.url, max_bytes=len(body))
        answer = await get(URL(server.url), Ask(max_bytes=len(body), deadline_s=deadline_s))
    assert (fetched.result, fetched.body) == (ResultClass.OK, body)
    assert (answer.result, answer.body) == (ResultClass.OK, body)


@on_both_loops
async def test_largest_body_is_read_for_each_transfer_encoding() -> None:
    body = os.urandom(8 * 1024 * 1024)
    replies = {
        "/plain": kept(body),
        "/packed": kept(gzip.compress(body, 1), Content_Encoding="gzip"),
        "/chunked": in_chunks(body, 65_536),
    }
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    async with (
        serving(replies, keeps_alive=True) as server,
        asking() as asker,
        vetted_get(LOOPBACK) as get,
        aiohttp.ClientSession() as session,
        GuardedSessions(trusted=URL(server.url), session=session) as given,
    ):
        for path in replies:
            ask = Ask(max_bytes=len(body), deadline_s=deadline_s)
            url = URL(server.url + path)
            fetched = await asker.get(url, max_bytes=len(body), seconds=PATIENCE_SECONDS)
            for answer in (fetched, await get(url, ask), await bounded_get(given, url, ask)):
                assert (answer.result, answer.reason) == (ResultClass.OK, "")
                assert answer.body == body


async def test_connection_serves_sequential_requests() -> None:
    body = b"{}"
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    ask = Ask(max_bytes=100, deadline_s=deadline_s)
    async with (
        serving({"/": kept(body), "/none": kept(b"", 404)}, keeps_alive=True) as server,
        aiohttp.ClientSession() as session,
        GuardedSessions(trusted=URL(server.url), session=session) as given,
        GuardedSessions(LOOPBACK) as own,
    ):
        for sessions in (given, own):
            for path in ("/", "/none", "/"):
                await bounded_get(sessions, URL(server.url + path), ask)
        # A caller's session stays usable.
        async with session.get(server.url) as response:
            assert await response.read() == body
    assert server.connections == 2
