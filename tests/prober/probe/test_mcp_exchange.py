import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.prober.probe.test_mcp_server import probed
from tests.support.hostile_server import serving
from tests.support.mcp_answers import handshaking, rpc, stateless
from tests.support.message_server import Got, Says
from tests.support.probing import SHORT_SECONDS, layer, see

from lifesign.domain.mcp.conversation import MAX_EVENTS
from lifesign.prober.probe.mcp_exchange import MAX_ANSWER_BYTES

ASK: dict[str, Any] = {"health": False, "tools": True}


async def test_each_request_has_an_identifier_of_its_own() -> None:
    def answers(got: Got) -> Says:
        return stateless(got) if got.json["method"] == "server/discover" else rpc(got, result={"tools": []})

    observation, serving = await probed(answers, ask=ASK)
    assert [got.json["id"] for got in serving.posted] == [1, 2]
    assert layer(observation.tools).result == "ok"


async def test_answer_to_an_earlier_request_is_ignored() -> None:
    def answers(got: Got) -> Says:
        if got.json["method"] == "server/discover":
            return stateless(got)
        return Says({"jsonrpc": "2.0", "id": 1, "result": {"tools": []}})

    observation, _ = await probed(answers, ask=ASK)
    assert layer(observation.tools).result == "invalid_document"
    assert observation.result == "ok"


async def test_answer_above_the_limit_is_not_read() -> None:
    observation, _ = await probed(lambda _: Says(b" " * (MAX_ANSWER_BYTES + 1)), ask=ASK)
    assert layer(observation.discovery).result == "too_large"


def in_stream(*messages: Any, end: bytes = b"") -> bytes:
    return b"".join(b"data: " + json.dumps(message).encode() + b"\n\n" for message in messages) + end


def streamed(body: bytes, headers: str = "") -> Says:
    return Says(body, content_type="text/event-stream", headers=headers)


NOTIFICATION: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}


def other_answers(number: int) -> list[dict[str, Any]]:
    return [{"jsonrpc": "2.0", "id": 1_000 + each, "result": {}} for each in range(number)]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([NOTIFICATION] * 9_999, "ok"),
        ([NOTIFICATION] * MAX_EVENTS, "not_an_agent"),
        ([other_answers(10_000)], "ok"),
        ([[NOTIFICATION] * 10_000], "ok"),
        ([{"jsonrpc": "2.0", "id": "1", "result": {}}, {"jsonrpc": "2.0", "id": 1.0, "result": {}}], "ok"),
    ],
)
async def test_answer_after_other_messages_is_read(before: list[Any], expected: str) -> None:
    def answers(got: Got) -> Says:
        return streamed(in_stream(*before, stateless(got).body))

    observation, serving = await probed(answers, ask={"health": False})
    assert layer(observation.discovery).result == expected
    assert len(serving.got) <= 2


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (b"data: %s\n\n", "ok"),
        (b": note\nevent: message\nid: 1\nretry: 5\ndata: %s\n\n", "ok"),
        (b"event: error\ndata: down\n\nevent: message\ndata: %s\n\n", "ok"),
        (b"event: result\ndata: %s\n\n", "not_an_agent"),
        (b"event: endpoint\ndata: %s\n\n", "not_an_agent"),
        (b": data: %s\n\n", "not_an_agent"),
    ],
)
async def test_only_an_event_of_the_default_name_is_an_answer(form: bytes, expected: str) -> None:
    observation, _ = await probed(
        lambda got: streamed(form % json.dumps(stateless(got).body).encode()), ask={"health": False}
    )
    assert layer(observation.discovery).result == expected


async def test_large_batch_without_the_answer_is_no_answer() -> None:
    observation, _ = await probed(lambda _: Says(other_answers(10_000)), ask={"health": False})
    assert layer(observation.discovery).result == "not_an_agent"


async def test_server_that_never_answers_a_handshake_times_out() -> None:
    def answers(got: Got) -> Says:
        return Says(status=404) if got.json["method"] == "server/discover" else Says(after_s=60)

    observation, serving = await probed(
        answers,
        ask={"health": False},
        timeouts={"first_byte_seconds": SHORT_SECONDS, "total_seconds": 2 * SHORT_SECONDS},
    )
    assert layer(observation.discovery).result == "timeout"
    assert [got.json["method"] for got in serving.got] == ["server/discover", "initialize"]


async def test_list_of_fifty_megabytes_is_not_read_to_its_end() -> None:
    """A tool of 1 MB, fifty times; the size of the list is not announced."""
    sent = 0

    async def huge(writer: asyncio.StreamWriter, _: str) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        writer.write(b'{"jsonrpc":"2.0","id":2,"result":{"tools":[')
        while sent < 50:
            writer.write(b'{"name":"a","description":"%s"},' % (b"x" * 1_000_000))
            await writer.drain()
            sent += 1

    async def answers(writer: asyncio.StreamWriter, head: str) -> None:
        if "tools/list" in head:
            await huge(writer, head)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            body = json.dumps(DISCOVERED).encode()
            writer.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)

    async with serving({"/mcp": answers}) as server:
        url = f"{server.url}/mcp"
        observation = await see(url, targets=[{"url": url, "kind": "mcp"}], ask=ASK)
    assert layer(observation.tools).result == "too_large"
    assert observation.result == "ok"
    assert sent < 50


@pytest.mark.parametrize(
    "version", ["", "2025-06-18\r\nx: y", "9" * 400, 20250618, ["2025-06-18"], {"a": 1}, None]
)
async def test_server_with_an_unusable_version_fails(version: object) -> None:
    def answers(got: Got) -> Says:
        if got.json["method"] != "initialize":
            return Says(status=404)
        return rpc(got, result={"protocolVersion": version, "capabilities": {}})

    observation, serving = await probed(answers, ask={"health": False})
    assert layer(observation.discovery).has_failed
    assert len(serving.got) <= 3


async def test_session_id_that_changes_is_not_followed() -> None:
    changes = iter(range(100))

    def answers(got: Got) -> Says:
        if got.method != "POST" or got.json["method"] == "server/discover":
            return Says(status=404)
        says = handshaking(got)
        return Says(says.body, status=says.status, headers=f"Mcp-Session-Id: s-{next(changes)}\r\n")

    observation, serving = await probed(answers, ask={"health": False})
    assert observation.result == "ok"
    assert {got.headers["mcp-session-id"] for got in serving.got[2:]} == {"s-0"}


@asynccontextmanager
async def endless(first: bytes, then: bytes = b"") -> AsyncIterator[str]:
    """Answer each POST with an event stream that never ends; `then` is repeated."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            writer.write(head + first)
            while then:
                writer.write(then)
                await writer.drain()
            await writer.drain()
            await asyncio.Event().wait()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


DISCOVERED = {"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": ["2026-07-28"], "capabilities": {}}}


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (in_stream(NOTIFICATION, DISCOVERED), b"", "ok"),
        (in_stream(DISCOVERED), in_stream(NOTIFICATION) * 1_000, "ok"),
        (in_stream(NOTIFICATION), b"", "timeout"),
        (b"", in_stream(NOTIFICATION) * 1_000, "too_large"),
        (b"", b"data: " + b"x" * 100_000, "too_large"),
    ],
)
async def test_stream_without_an_end_is_read_up_to_the_answer(
    first: bytes, then: bytes, expected: str
) -> None:
    async with endless(first, then) as url:
        observation = await see(
            url,
            targets=[{"url": url, "kind": "mcp"}],
            ask={"health": False},
            timeouts={"first_byte_seconds": SHORT_SECONDS, "total_seconds": 2 * SHORT_SECONDS},
        )
    assert layer(observation.discovery).result == expected
