import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import DataQueue, StreamReader
from tests.support import hostile_server as hostile
from tests.support.both_loops import on_both_loops
from tests.support.hostile_server import Reply, accepting, kept, raw, serving

from lifesign.http_client.failures import TooManyBytes
from lifesign.prober.network.connection import PARSED_BYTES, HttpConnection

ASKED = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"


@asynccontextmanager
async def connected(reply: Reply) -> AsyncIterator[HttpConnection]:
    loop = asyncio.get_running_loop()
    async with serving({"/": reply}, keeps_alive=True) as server:
        _, line = await loop.create_connection(lambda: HttpConnection(loop), "127.0.0.1", server.port)
        try:
            yield line
        finally:
            line.abort()


# ── assumptions about aiohttp ──


def test_aiohttps_protocol_works_without_its_session() -> None:
    asked = inspect.signature(ResponseHandler.set_response_params).parameters
    assert {"read_until_eof", "read_bufsize", "max_line_size", "max_field_size", "max_headers"} <= set(asked)
    # Compressed bodies are unpacked by default.
    assert asked["auto_decompress"].default is True
    assert asked["timer"].default is None
    assert ResponseHandler.feed_data is DataQueue.feed_data
    assert ResponseHandler.read is DataQueue.read


async def test_aiohttp_protocol_has_the_members_that_a_connection_uses() -> None:
    members = {name for base in ResponseHandler.__mro__ for name in getattr(base, "__slots__", ())}
    members |= set(vars(ResponseHandler(asyncio.get_running_loop())))
    assert {"transport", "_payload", "_reading_paused", "_loop"} <= members
    # docs/decisions/0015-http-client.md: another version has to be read first.
    assert metadata.version("aiohttp").startswith("3.14.")


@on_both_loops
async def test_aiohttp_protocol_returns_the_header_before_the_body_is_complete() -> None:
    async with connected(kept(b'{"a": 1}', X_A="b")) as line:
        reply = await line.ask(ASKED)
        assert (reply.status, reply.headers["x-a"]) == (200, "b")
        assert isinstance(reply.content, aiohttp.StreamReader)
        assert await reply.content.read() == b'{"a": 1}'
        assert not line.should_close


# ── one request after another ──


@on_both_loops
async def test_connection_serves_sequential_requests() -> None:
    async with connected(kept(b"{}")) as line:
        for turn in range(1, 4):
            reply = await line.ask(ASKED)
            assert await reply.content.read() == b"{}"
            assert line.asked == turn
            assert line.first_byte_at_s is not None
            assert line.first_byte_at_s >= line.sent_at_s


@on_both_loops
async def test_informational_responses_are_skipped() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    async with connected(raw(hints + b"HTTP/1.1 204 No Content\r\n\r\n")) as line:
        assert (await line.ask(ASKED)).status == 204


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_broken_connection_reports_that_it_cannot_be_retried(answer: bytes) -> None:
    async with connected(raw(answer)) as line:
        reply = await line.ask(ASKED)
        if reply.status == 200:
            assert await reply.content.read() == b"{}"
        assert line.should_close


@on_both_loops
@pytest.mark.parametrize("status", [103, 200])
async def test_answers_that_nobody_asked_for_are_not_kept(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    keep = HttpConnection.feed_data

    def count(line: HttpConnection, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        parsed.append(data[0].code)
        keep(line, data, size)

    monkeypatch.setattr(HttpConnection, "feed_data", count)
    empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    surplus = f"HTTP/1.1 {status} A\r\nX:\r\n\r\n".encode() if status < 200 else empty
    # The header, with the informational answers before it, has a limit of its own.
    before, after = (surplus * 1_000, b"") if status < 200 else (b"", surplus * 5_000)
    async with connected(raw(before + empty + after)) as line:
        assert (await line.ask(ASKED)).status == 200
        assert len(line._buffer) == 0
        assert line.should_close == bool(after)
        assert len(parsed) <= 1 + len(before + after[:PARSED_BYTES]) // len(surplus)


async def test_garbage_right_after_an_answer_is_an_error() -> None:
    async with connected(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}and more")) as line:
        with pytest.raises(HttpProcessingError):
            await line.ask(ASKED)


@on_both_loops
async def test_body_that_cannot_be_parsed_ends_at_once() -> None:
    async def reply(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: ")
        await is_read.wait()
        writer.write(b"a" * 65_536)
        await writer.drain()

    is_read = asyncio.Event()
    async with connected(reply) as line:
        reply_head = await line.ask(ASKED)
        is_read.set()
        async with asyncio.timeout(5):
            with pytest.raises(HttpProcessingError):
                await reply_head.content.read()


async def test_connection_with_an_unread_body_is_not_reused() -> None:
    async with connected(hostile.endless_body) as line:
        await line.ask(ASKED)
        assert line.should_close


async def test_request_on_a_closed_connection_raises_disconnected() -> None:
    async with connected(kept()) as line:
        line.abort()
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await line.ask(ASKED)


# ── bounds ──


@on_both_loops
async def test_expired_connection_times_out_in_each_phase() -> None:
    loop = asyncio.get_running_loop()
    async with connected(hostile.silence) as line:
        line.expire_at(loop.time() + 0.05)
        with pytest.raises(TimeoutError):
            await line.ask(ASKED)
        assert line.is_late
    async with connected(hostile.drip(asyncio.Event().wait)) as line:
        reply = await line.ask(ASKED)
        line.expire_at(loop.time() + 0.05)
        with pytest.raises(TimeoutError):
            await reply.content.read()
        assert line.is_late
        assert not line.is_connected()


@on_both_loops
async def test_cancelled_deadline_does_not_end_the_request() -> None:
    loop = asyncio.get_running_loop()
    async with connected(kept()) as line:
        line.expire_at(loop.time() + 0.02)
        line.expire_at(None)
        await asyncio.sleep(0.05)
        assert (await line.ask(ASKED)).status == 200
        assert not line.is_late


@on_both_loops
async def test_total_size_of_response_headers_is_bounded() -> None:
    async with connected(hostile.endless_hints) as line:
        with pytest.raises(TooManyBytes):
            await line.ask(ASKED)


@on_both_loops
@pytest.mark.parametrize("fields", [b"Link: " + b"x" * 32_000 + b"\r\n", b"Set-Cookie: a=b\r\n" * 990])
async def test_long_header_is_read(fields: bytes) -> None:
    async with connected(raw(b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 0\r\n\r\n")) as line:
        assert (await line.ask(ASKED)).status == 200


@on_both_loops
async def test_header_size_of_a_later_response_is_bounded() -> None:
    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        await (hostile.endless_hints if "second" in head else kept())(writer, head)

    async with connected(reply) as line:
        await (await line.ask(ASKED)).content.read()
        with pytest.raises(TooManyBytes):
            await line.ask(ASKED.replace(b"\r\n\r\n", b"\r\nX-Turn: second\r\n\r\n"))


@on_both_loops
async def test_unrequested_bytes_are_limited() -> None:
    async def chatter(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
            await writer.drain()

    loop = asyncio.get_running_loop()
    async with accepting(chatter) as port:
        _, line = await loop.create_connection(lambda: HttpConnection(loop), "127.0.0.1", port)
        await asyncio.sleep(0.1)
        assert len(line._tail) < 1_000_000
        with pytest.raises((HttpProcessingError, aiohttp.ClientError)):
            await line.ask(ASKED)
        line.abort()
