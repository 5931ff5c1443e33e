import asyncio
import gzip
import os
import struct
import zlib
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck as Check
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import hostile_server as hostile
from tests.support.both_loops import on_both_loops
from tests.support.certificates import LONG_AGO, Authority
from tests.support.dns_server import Failure
from tests.support.hostile_server import Reply, accepting, answer, as_json, kept, raw, redirect, serving
from tests.support.open_files import no_more_than, open_files
from tests.support.properties import examples
from tests.support.safe_asking import HERE, LATE_ANSWER, MAX_BYTES, SHORT, asking

from lifesign.domain.observation.results import ResultClass


async def pause() -> None:
    await asyncio.sleep(0.02)


# ── answers ──

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HTTP_ERROR: dict[str, Reply] = {
    "a garbage status line": raw(b"\x00\xff I AM NOT HTTP\r\n\r\n"),
    "HTTP/0.9": raw(b"<html>I am from 1991</html>"),
    "HTTP/9.9": raw(b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "a status that is no number": raw(b"HTTP/1.1 OK 200\r\n\r\n"),
    "nothing": raw(b""),
    "half a status line": raw(b"HTTP/1.1 2"),
    "half a header": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "a header line that is none": raw(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n{}"),
    "a nul byte in a header": raw(b"HTTP/1.1 200 OK\r\nX-A: a\x00b\r\n\r\n{}"),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "a negative length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"),
    "a length that is no number": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2abc\r\n\r\n{}"),
    "a body that is too short": answer(200, b"{", Content_Length="500"),
    "broken chunks": hostile.broken_chunks(),
    "a chunk of negative size": raw(CHUNKED + b"-1\r\n{}\r\n0\r\n\r\n"),
    "a chunk that ends early": raw(CHUNKED + b"ff\r\n{}"),
    "a body that is not gzip": answer(200, b"{}" * 100, Content_Encoding="gzip"),
    "a body that is not brotli": answer(200, b"{}" * 100, Content_Encoding="br"),
    "a body that is not zstandard": answer(200, b"{}" * 100, Content_Encoding="zstd"),
    "a body that is packed twice": answer(
        200, gzip.compress(gzip.compress(b"{}")), Content_Encoding="gzip, gzip"
    ),
    "a bomb that is packed twice": hostile.bomb(
        10_000_000, "gzip, gzip", lambda body: gzip.compress(gzip.compress(body))
    ),
    "a body that is packed in an unknown way": answer(200, b"{}", Content_Encoding="compress"),
    "a reset after the request": hostile.reset,
    "500": answer(500),
    "999": answer(999),
    "304 without a condition": answer(304),
    "a redirect to nowhere": answer(302),
    "101 without a question": raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nxx"),
}  # fmt: skip
TOO_LARGE: dict[str, Reply] = {
    "an endless body": hostile.endless_body,
    "endless chunks": hostile.endless_chunks,
    "endless headers": hostile.endless_headers,
    "an endless header line": hostile.endless_header_line,
    "endless hints before the answer": hostile.endless_hints,
    "a huge length": answer(200, b"{", Content_Length=str(10**15)),
    "a gzip bomb": hostile.bomb(64 * 1024 * 1024),
    "a deflate bomb": hostile.bomb(10_000_000, "deflate", zlib.compress),
    "one byte too much": answer(200, b" " * (MAX_BYTES + 1)),
    "an x-gzip bomb": hostile.bomb(10_000_000, "x-gzip"),
    "one byte too much in gzip": answer(200, gzip.compress(b" " * (MAX_BYTES + 1)), Content_Encoding="gzip"),
}


@pytest.mark.parametrize("name", HTTP_ERROR)
@on_both_loops
async def test_non_answer_is_an_error(name: str) -> None:
    async with serving({"/": HTTP_ERROR[name]}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/")
    assert fetched.result is ResultClass.HTTP_ERROR, fetched
    assert fetched.reason
    assert fetched.body == b""
    assert server.connections == 1


@pytest.mark.parametrize("name", TOO_LARGE)
@on_both_loops
async def test_oversized_body_is_not_read_to_its_end(name: str) -> None:
    async with serving({"/": TOO_LARGE[name]}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/")
    assert fetched.result is ResultClass.TOO_LARGE, fetched
    assert fetched.body == b""


@on_both_loops
async def test_the_largest_body_is_read_also_when_its_header_comes_with_it() -> None:
    body = os.urandom(MAX_BYTES)
    packed = gzip.compress(body)
    codings = {f"/{coding}": answer(200, packed, Content_Encoding=coding) for coding in ("gzip", "x-gzip")}
    replies = {"/plain": kept(body), **codings}
    async with serving(replies) as server, asking() as asker:
        for path in replies:
            fetched = await asker.get(f"{server.url}{path}")
            assert fetched.result is ResultClass.OK, fetched.reason
            assert fetched.body == body


@on_both_loops
async def test_slow_target_ends_at_the_deadline() -> None:
    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def drip_before_tls(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The head of a TLS record that announces much.
        writer.write(b"\x16\x03\x03\x40\x00")
        while True:
            writer.write(b"a")
            await writer.drain()
            await pause()

    replies: dict[str, Reply] = {
        "/silent": hostile.silence,
        "/header": hostile.drip_header(pause),
        "/body": hostile.drip(pause),
    }
    async with (
        serving(replies) as server,
        accepting(never) as silent_port,
        accepting(drip_before_tls) as drip_port,
        asking({"silent.example": Failure.SILENCE}, timeouts=SHORT) as asker,
        asking({"here.example": HERE}, timeouts=LATE_ANSWER) as patient,
    ):
        urls = [
            *(f"{server.url}{path}" for path in replies),
            f"https://127.0.0.1:{silent_port}/",
            f"https://127.0.0.1:{drip_port}/",
        ]
        for fetched in await asyncio.gather(*(asker.get(url) for url in urls)):
            assert fetched.result is ResultClass.TIMEOUT, fetched
            assert "in time" in fetched.reason
        unknown, found = await asyncio.gather(
            asker.get("http://silent.example/"), patient.get(f"http://here.example:{server.port}/silent")
        )
        assert unknown.result is ResultClass.DNS_FAILURE
        assert found.result is ResultClass.TIMEOUT


@on_both_loops
async def test_cut_connection_is_classified_at_each_stage() -> None:
    async def at_once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def after_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.transport.abort()

    async def in_header(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-")
        await pause()
        writer.transport.abort()

    async def in_body(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await pause()
        writer.transport.abort()

    async with (
        serving({"/header": in_header, "/body": in_body}) as server,
        accepting(at_once) as port,
        accepting(after_hello) as tls_port,
        asking() as asker,
    ):
        expected = {
            f"http://127.0.0.1:{port}/": {ResultClass.HTTP_ERROR, ResultClass.REFUSED},
            f"https://127.0.0.1:{tls_port}/": {ResultClass.TLS_FAILURE},
            f"{server.url}/header": {ResultClass.HTTP_ERROR},
            f"{server.url}/body": {ResultClass.HTTP_ERROR},
        }
        for url, results in expected.items():
            fetched = await asker.get(url)
            assert fetched.result in results, fetched
            assert fetched.reason


@on_both_loops
async def test_server_that_sends_before_the_request_is_not_an_agent() -> None:
    async def chatter(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"220 smtp.example ESMTP\r\n" * 1000)
            await writer.drain()

    async with accepting(chatter) as port, asking() as asker:
        assert (await asker.get(f"http://127.0.0.1:{port}/")).result is ResultClass.HTTP_ERROR
        assert (await asker.get(f"https://127.0.0.1:{port}/")).result is ResultClass.TLS_FAILURE


@settings(
    max_examples=examples(40),
    suppress_health_check=[*settings().suppress_health_check, Check.function_scoped_fixture],
)
@given(data=st.binary(max_size=300), begin=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))
def test_no_hostile_answer_raises_an_exception(data: bytes, begin: bytes) -> None:
    async def fetch() -> None:
        async with serving({"/": raw(begin + data)}) as server, asking() as asker:
            assert isinstance((await asker.get(f"{server.url}/")).result, ResultClass)

    uvloop.run(fetch())


# ── TLS ──


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@on_both_loops
async def test_certificates_are_checked(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority.is_trusted(monkeypatch)
    (tmp_path / "other").mkdir()
    contexts = {
        "good": authority.serving("agent.example"),
        "expired": authority.serving(
            "agent.example", begins_at=LONG_AGO, ends_at=LONG_AGO.replace(year=2021)
        ),
        "future": authority.serving(
            "agent.example", begins_at=LONG_AGO.replace(year=2090), ends_at=LONG_AGO.replace(year=2091)
        ),
        "other name": authority.serving("other.example"),
        "address": authority.serving("127.0.0.1"),
        "untrusted": Authority(tmp_path / "other").serving("agent.example"),
    }
    for kind, context in contexts.items():
        async with serving({"/": as_json({})}, context) as server, asking({"agent.example": HERE}) as asker:
            fetched = await asker.get(f"https://agent.example:{server.port}/")
            if kind == "good":
                assert fetched.result is ResultClass.OK, fetched
                assert fetched.certificate_expires_at is not None
                continue
            assert fetched.result is ResultClass.TLS_FAILURE, (kind, fetched)
            assert server.heads == []
            if kind == "expired":
                assert fetched.certificate_expires_at == LONG_AGO.replace(year=2021)
                assert "expired at 2021-01-01" in fetched.reason
            else:
                assert fetched.certificate_expires_at is None


@on_both_loops
async def test_prober_follows_no_redirect_from_https_to_http(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.is_trusted(monkeypatch)
    async with serving({"/": as_json({})}) as plain:
        replies = {"/": redirect(f"http://agent.example:{plain.port}/")}
        async with (
            serving(replies, authority.serving("agent.example")) as server,
            asking({"agent.example": HERE}) as asker,
        ):
            fetched = await asker.get(f"https://agent.example:{server.port}/", may_leave_origin=True)
            assert fetched.result is ResultClass.REDIRECT_REFUSED
            assert "plain http" in fetched.reason
        assert plain.connections == 0


@on_both_loops
async def test_tls_records_that_are_garbage_are_a_failure() -> None:
    async def garble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\x16\x03\x03" + struct.pack("!H", 100) + os.urandom(100))
        await writer.drain()
        await reader.read(100)

    async with accepting(garble) as port, asking() as asker:
        fetched = await asker.get(f"https://127.0.0.1:{port}/")
    assert fetched.result is ResultClass.TLS_FAILURE, fetched


# ── open sockets ──


@on_both_loops
async def test_hundreds_of_hostile_answers_leave_no_socket_open() -> None:
    async def cut(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    replies = {f"/{number}": reply for number, reply in enumerate(HTTP_ERROR.values())}
    async with serving(replies) as server, accepting(cut) as port, asking() as asker:
        urls = [f"{server.url}{path}" for path in replies]
        urls += [f"https://127.0.0.1:{port}/", "http://127.0.0.1:1/", "http://unknown.example/"]
        await asyncio.gather(*(asker.get(url) for url in urls))
        before = open_files()
        for _ in range(200 // len(urls) + 1):
            await asyncio.gather(*(asker.get(url) for url in urls))
        await no_more_than(before)
