import asyncio
import gzip
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator

import aiohttp
import pytest
from aioresponses import aioresponses
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import hostile_server as hostile
from tests.support.agent_check import SHORT_SECONDS, card, check, document, names
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    Reply,
    answer,
    as_json,
    serving,
)
from tests.support.mocked_responses import MockedResponse
from tests.support.properties import examples

from lifesign.client import HealthCheck, fetch_health
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.health.document_reader import MAX_DOCUMENT_BYTES
from lifesign.domain.observation.decision import Action
from lifesign.domain.observation.results import ResultClass

# ── other responses ──


async def endless_stream(writer: asyncio.StreamWriter, _: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n")
    await writer.drain()
    await asyncio.Event().wait()


NOT_AN_AGENT = {
    "an empty body": answer(200, Content_Type="application/json"),
    "an HTML page": answer(200, b"<html>Hello</html>", Content_Type="text/html; charset=utf-8"),
    "text": answer(200, b"OK", Content_Type="text/plain"),
    "no content type": answer(200, json.dumps(document()).encode()),
    "JSON of another kind": as_json({"status": "UP"}),
    "a JSON list": as_json([]),
    "204": answer(204),
    "an unrequested event stream": endless_stream,
    "404": answer(404),
    "410": answer(410),
}


def packed(coding: str, body: bytes = b"{}") -> Reply:
    return answer(200, body, Content_Type="application/json", Content_Encoding=coding)


HTTP_ERROR = {
    "500": answer(500),
    "503": answer(503, b"{}", Content_Type="application/health+json"),
    "304 without a condition": answer(304),
    "300": answer(300),
    "a redirect to nowhere": answer(302),
    "a failed event stream": answer(500, b"data: x\n\n", Content_Type="text/event-stream"),
    "999": answer(999),
    "a garbage status line": hostile.raw(b"\x00\xff I AM NOT HTTP\r\n\r\n"),
    "an empty answer": hostile.raw(b""),
    "half a header": hostile.raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "a reset": hostile.reset,
    "a truncated body": answer(200, b"{", Content_Type="application/json", Content_Length="500"),
    "broken chunks": hostile.broken_chunks(),
    "a body that is not gzip": answer(200, b"{}", Content_Type="application/json", Content_Encoding="gzip"),
    "a body that is not x-gzip": packed("x-gzip"),
    "half an x-gzip body": packed("x-gzip", gzip.compress(b"{}" * 100)[:-9]),
    "two x-gzip bodies": packed("x-gzip", 2 * gzip.compress(b"{}")),
    "a body that is packed in an unknown way": packed("compress"),
    "a body that is packed twice": packed("gzip, gzip"),
    "a body whose packing is named twice": hostile.raw(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\n\r\n{}"
    ),
    "a body that is packed for another library": packed("br"),
    "two lengths": hostile.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
}
INVALID_DOCUMENT = {
    "not JSON": answer(200, b"{", Content_Type="application/json"),
    "not UTF-8": answer(200, b'{"a": "\xff\xfe"}', Content_Type="application/json"),
    "nested deeply": answer(200, b"[" * 100_000, Content_Type="application/health+json"),
}
TOO_LARGE = {
    "an endless body": hostile.endless_body,
    "endless headers": hostile.endless_headers,
    "an endless header line": hostile.endless_header_line,
    "a huge Content-Length": answer(200, b"{", Content_Type="application/json", Content_Length=str(10**15)),
    "a gzip bomb": hostile.bomb(64 * 1024 * 1024),
    "an x-gzip bomb": hostile.bomb(16 * 1024 * 1024, "x-gzip"),
    "too many packed bytes in x-gzip": packed("x-gzip", b" " * (2 * MAX_DOCUMENT_BYTES)),
    "one byte too much in x-gzip": packed("x-gzip", gzip.compress(b" " * (MAX_DOCUMENT_BYTES + 1))),
    "one byte too much": answer(200, b" " * (MAX_DOCUMENT_BYTES + 1), Content_Type="application/json"),
}
GATED = {str(status): answer(status) for status in (401, 402, 403, 407)}
FAILURES = {
    ResultClass.NOT_AN_AGENT: NOT_AN_AGENT,
    ResultClass.HTTP_ERROR: HTTP_ERROR,
    ResultClass.INVALID_DOCUMENT: INVALID_DOCUMENT,
    ResultClass.TOO_LARGE: TOO_LARGE,
    ResultClass.GATED: GATED,
    ResultClass.RATE_LIMITED: {"429": answer(429)},
}


@pytest.mark.parametrize(
    ("result", "reply"),
    [
        pytest.param(result, reply, id=f"{name} is {result}")
        for result, replies in FAILURES.items()
        for name, reply in replies.items()
    ],
)
async def test_each_failed_answer_has_a_class_and_a_reason(result: ResultClass, reply: Reply) -> None:
    checked = await check({CARD_PATH: reply, HEALTH_PATH: reply})
    assert checked.document_result is result
    assert checked.document_reason
    assert checked.document_reason.isascii()
    assert checked.document_reason.isprintable()
    assert checked.decision.status is HealthStatus.UNKNOWN
    assert checked.card is None
    assert checked.card_reason


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"SSH-2.0-x\r\n", "it does not begin with a status line"),
        (b"HTTP/1.1 200 OK\r\nFoo\r\n\r\n", "its header is malformed: Invalid header token"),
    ],
)
async def test_non_http_answer_is_described_without_library_terms(sent: bytes, message: str) -> None:
    checked = await check({CARD_PATH: hostile.raw(sent), HEALTH_PATH: hostile.raw(sent)})
    assert checked.card_reason == f"not an HTTP answer: {message}"


async def test_endless_chunk_extension_is_cut_off() -> None:
    checked = await check({HEALTH_PATH: hostile.endless_chunk_extension}, timeout_seconds=SHORT_SECONDS)
    assert checked.document_result in {ResultClass.TIMEOUT, ResultClass.HTTP_ERROR, ResultClass.TOO_LARGE}


async def test_slow_dripping_answer_ends_at_the_deadline() -> None:
    drip = hostile.drip(lambda: asyncio.sleep(0.01))
    checked = await check({HEALTH_PATH: drip}, timeout_seconds=SHORT_SECONDS)
    assert checked.document_result is ResultClass.TIMEOUT


async def test_a_silent_peer_ends_at_the_deadline() -> None:
    replies: dict[str, Reply] = {CARD_PATH: hostile.silence, HEALTH_PATH: hostile.silence}
    checked = await check(replies, timeout_seconds=SHORT_SECONDS)
    assert (checked.card_result, checked.document_result) == (ResultClass.TIMEOUT, ResultClass.TIMEOUT)


async def test_slow_card_does_not_prevent_the_health_document() -> None:
    replies: dict[str, Reply] = {CARD_PATH: hostile.silence, HEALTH_PATH: as_json(document())}
    checked = await check(replies, timeout_seconds=3)
    assert (checked.card_result, checked.document_result) == (ResultClass.TIMEOUT, ResultClass.OK)


async def test_closed_port_is_requested_only_once() -> None:
    async with serving({}) as server:
        pass
    checked = await fetch_health(server.url)
    assert (checked.card_result, checked.document_result) == (ResultClass.REFUSED, ResultClass.REFUSED)
    assert (checked.health_url, checked.latency_ms) == (None, None)


async def test_a_name_without_an_address_is_a_dns_failure() -> None:
    checked = await fetch_health("http://agent.invalid/")
    assert checked.document_result is ResultClass.DNS_FAILURE


async def test_health_document_behind_a_login_is_reported_as_a_violation() -> None:
    assert "health_is_gated" in names(await check({HEALTH_PATH: answer(401)}))


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        ("120", 120),
        ("999999999999", 86_400),
        ("soon", 300),
        ("-5", 300),
        ("Wed, 01 Jan 2020 00:00:00 GMT", 0),
    ],
)
async def test_rate_limited_answer_has_its_retry_after(retry_after: str, expected: int) -> None:
    checked = await check({HEALTH_PATH: answer(429, Retry_After=retry_after)})
    assert checked.document_result is ResultClass.RATE_LIMITED
    assert checked.decision.retry_after_seconds == expected


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "X-GZip"])
async def test_a_compressed_document_is_read(coding: str) -> None:
    reply = packed(coding, gzip.compress(json.dumps(document()).encode()))
    assert (await check({HEALTH_PATH: reply})).document_result is ResultClass.OK


async def test_a_card_of_another_content_type_is_read() -> None:
    reply = answer(200, json.dumps(card()).encode(), Content_Type="text/plain")
    assert (await check({CARD_PATH: reply})).card_result is ResultClass.OK


# ── TLS ──


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("NOT RUN: openssl is absent (apt-get install openssl)")
    place = tmp_path_factory.mktemp("tls")
    key, certificate = place / "key.pem", place / "certificate.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def test_untrusted_certificate_is_a_tls_failure(self_signed: ssl.SSLContext) -> None:
    async with serving({HEALTH_PATH: as_json(document())}, self_signed) as server:
        checked = await fetch_health(server.url)
    assert checked.document_result is ResultClass.TLS_FAILURE
    assert "certificate" in checked.document_reason
    assert server.heads == []


async def test_a_peer_that_does_not_speak_tls_is_a_tls_failure() -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        checked = await fetch_health(f"https://127.0.0.1:{port}")
    assert checked.document_result is ResultClass.TLS_FAILURE


# ── arbitrary responses ──


async def _fetch_raw(data: bytes) -> HealthCheck:
    return await check({HEALTH_PATH: hostile.raw(data), CARD_PATH: hostile.raw(data)}, timeout_seconds=5)


@settings(max_examples=examples(60))
@given(st.binary(max_size=400))
def test_any_answer_is_read_without_an_exception(data: bytes) -> None:
    checked = asyncio.run(_fetch_raw(data))
    assert checked.decision.status is HealthStatus.UNKNOWN


@settings(max_examples=examples(60))
@given(
    st.dictionaries(
        st.sampled_from(
            ["Date", "Age", "Cache-Control", "Link", "Location", "Retry-After", "Content-Encoding"]
        ),
        st.text(st.characters(codec="latin-1", exclude_characters="\r\n\x00"), max_size=60),
    ),
    st.sampled_from([200, 203, 206, 301, 302, 429, 503]),
    st.binary(max_size=60),
)
def test_any_header_and_body_are_read_without_an_exception(
    headers: dict[str, str], status: int, body: bytes
) -> None:
    fields = {"Content-Type": "application/json"} | headers
    reply = answer(status, body, **fields)
    checked = asyncio.run(check({HEALTH_PATH: reply, CARD_PATH: reply}, timeout_seconds=5))
    assert checked.decision.status is HealthStatus.UNKNOWN


# ── errors of the HTTP library that no peer on loopback can provoke ──


@pytest.fixture
def mocked() -> Iterator[aioresponses]:
    with aioresponses() as mock:
        yield mock


HEALTH_URL = "https://agent.example" + HEALTH_PATH


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (aiohttp.ServerTimeoutError("slow"), ResultClass.TIMEOUT),
        (aiohttp.ServerFingerprintMismatch(b"a", b"b", "agent.example", 443), ResultClass.TLS_FAILURE),
        (aiohttp.ServerDisconnectedError(), ResultClass.HTTP_ERROR),
        (aiohttp.ClientPayloadError("cut"), ResultClass.HTTP_ERROR),
        (aiohttp.InvalidURL("x"), ResultClass.HTTP_ERROR),
        (ssl.SSLError("broken"), ResultClass.TLS_FAILURE),
        (OSError(113, "No route to host"), ResultClass.HTTP_ERROR),
    ],
)
async def test_errors_of_the_library_become_classes(
    mocked: aioresponses, error: Exception, result: ResultClass
) -> None:
    mocked.get("https://agent.example" + CARD_PATH, status=500, response_class=MockedResponse)
    mocked.get(HEALTH_URL, exception=error)
    checked = await fetch_health("https://agent.example")
    assert checked.document_result is result
    assert checked.document_reason


async def test_document_over_https_has_no_findings(mocked: aioresponses) -> None:
    mocked.get(
        "https://agent.example" + CARD_PATH, payload=card(), content_type="application/json",
        response_class=MockedResponse,
    )  # fmt: skip
    mocked.get(HEALTH_URL, payload=document(), content_type="application/json", response_class=MockedResponse)
    checked = await fetch_health("https://agent.example")
    assert checked.decision.action is Action.PROCEED
    assert checked.findings == ()


@pytest.mark.parametrize("coding", ["gzip, gzip", "identity, gzip", "x-gzip, x-gzip", "br"])
async def test_unrequested_content_coding_is_reported(coding: str) -> None:
    reply = packed(coding, gzip.compress(gzip.compress(json.dumps(document()).encode())))
    checked = await check({HEALTH_PATH: reply})
    assert f"'{coding}'" in checked.document_reason
    assert {"Content-Encoding", "gzip", "deflate"} <= set(checked.document_reason.split())


async def test_identity_content_encoding_is_read() -> None:
    checked = await check({HEALTH_PATH: packed("Identity", json.dumps(document()).encode())})
    assert checked.document_result is ResultClass.OK
