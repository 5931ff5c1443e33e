import asyncio
import json
import os
import socket
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aioresponses import aioresponses
from pydantic import BaseModel
from tests.support.certificates import Authority
from tests.support.hostile_server import (
    HostileServer,
    Reply,
    accepting,
    answer,
    as_json,
    bomb,
    broken_chunks,
    raw,
    redirect,
    serving,
    silence,
)
from tests.support.mocked_responses import MockedResponse
from tests.support.virtual_loop import with_sockets_in_virtual_time

from lifesign.client import RegistryClient, registry_connection
from lifesign.client.registry_connection import (
    MAX_BODY_BYTES,
    MAX_TRIES,
    PLAIN_HTTP_HINT,
    TLS_HINT,
    Question,
    RegistryConnection,
    path_of,
    query_of,
    read_answer,
)
from lifesign.client.registry_errors import (
    Conflict,
    InvalidAnswer,
    NotAuthorized,
    RateLimited,
    RegistryError,
    Unavailable,
    Unreachable,
)
from lifesign.errors import InvalidValue
from lifesign.loopback.socket_users import IS_SUPPORTED

URL = "https://registry.example"
KEY = "ahk_a-key-that-nobody-may-see"
THING = f"{URL}/api/v1/thing"
GET = Question(method="GET", path=path_of("thing"), may_repeat=True)
POST = Question(method="POST", path=path_of("thing"), body=b"{}")


class Thing(BaseModel):
    size: int


@pytest.fixture
def mocked() -> Iterator[aioresponses]:
    with aioresponses() as mock:
        yield mock


@pytest.fixture
def waits() -> list[float]:
    """Return the waiting times between tries, in seconds."""
    return []


@pytest.fixture
async def connection(waits: list[float]) -> AsyncIterator[RegistryConnection]:
    """A connection that waits for nothing, and whose chance is always the highest."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    connection = RegistryConnection(URL, key=KEY, sleep=sleep, chance=lambda: 1.0)
    yield connection
    await connection.close()


def reply(mocked: aioresponses, method: str, status: int, times: int = 1, **settings: Any) -> None:
    for _ in range(times):
        mocked.add(
            THING,
            method,
            status=status,
            content_type="application/json",
            response_class=MockedResponse,
            **settings,
        )


def request_count(mocked: aioresponses) -> int:
    return sum(map(len, mocked.requests.values()))


# ── retries ──


async def test_read_request_is_retried_until_answered(
    mocked: aioresponses, connection: RegistryConnection, waits: list[float]
) -> None:
    mocked.get(THING, exception=aiohttp.ServerDisconnectedError())
    reply(mocked, "GET", 503)
    reply(mocked, "GET", 200, payload={"size": 3, "new": "member"})
    assert await connection.ask_for(Thing, GET) == Thing(size=3)
    assert waits == [0.1, 0.2]


async def test_request_has_a_total_timeout(
    mocked: aioresponses, connection: RegistryConnection, waits: list[float]
) -> None:
    reply(mocked, "GET", 503, times=99)
    with pytest.raises(Unavailable):
        await connection.ask(GET)
    assert request_count(mocked) == MAX_TRIES == len(waits) + 1


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_respected_with_a_margin(
    mocked: aioresponses, connection: RegistryConnection, waits: list[float], status: int
) -> None:
    reply(mocked, "GET", status, headers={"Retry-After": "2"})
    reply(mocked, "GET", 200, payload={"size": 1})
    await connection.ask(GET)
    assert waits == [2.1]


async def test_retry_after_beyond_the_timeout_is_raised_to_the_caller(
    mocked: aioresponses, connection: RegistryConnection, waits: list[float]
) -> None:
    reply(mocked, "GET", 429, headers={"Retry-After": "3600"})
    with pytest.raises(RateLimited) as caught:
        await connection.ask(GET)
    assert caught.value.retry_after_s == 3600
    assert waits == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 422, 428, 500])
async def test_permanent_failure_is_not_retried(
    mocked: aioresponses, connection: RegistryConnection, status: int
) -> None:
    reply(mocked, "GET", status)
    with pytest.raises(RegistryError):
        await connection.ask(GET)
    assert request_count(mocked) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_creating_request_is_not_sent_twice(
    mocked: aioresponses, connection: RegistryConnection, status: int
) -> None:
    reply(mocked, "POST", status)
    with pytest.raises(RegistryError):
        await connection.ask(POST)
    assert request_count(mocked) == 1


async def test_lost_answer_is_ambiguous_and_creation_is_not_repeated(
    mocked: aioresponses, connection: RegistryConnection
) -> None:
    mocked.post(THING, exception=aiohttp.ServerDisconnectedError())
    with pytest.raises(Unreachable) as caught:
        await connection.ask(POST)
    assert caught.value.was_sent
    assert request_count(mocked) == 1


async def test_creation_is_retried_without_a_connection(
    mocked: aioresponses, connection: RegistryConnection
) -> None:
    refused = aiohttp.ClientConnectorError(Mock(), OSError(111, "Connection refused"))
    mocked.post(THING, exception=refused)
    reply(mocked, "POST", 201, payload={"size": 1})
    assert (await connection.ask(POST)).status == 201


async def test_refusal_after_a_retry_reports_a_possible_earlier_success(
    mocked: aioresponses, connection: RegistryConnection
) -> None:
    mocked.get(THING, exception=aiohttp.ServerDisconnectedError())
    reply(mocked, "GET", 409, payload={"error": {"code": "a_code"}})
    with pytest.raises(Conflict) as caught:
        await connection.ask(GET)
    assert caught.value.may_be_repeat


async def test_refusal_of_the_first_request_reports_no_effect(
    mocked: aioresponses, connection: RegistryConnection
) -> None:
    refused = aiohttp.ClientConnectorError(Mock(), OSError(111, "Connection refused"))
    mocked.get(THING, exception=refused)
    reply(mocked, "GET", 409, payload={"error": {"code": "a_code"}})
    with pytest.raises(Conflict) as caught:
        await connection.ask(GET)
    assert not caught.value.may_be_repeat


def test_waits_grow_to_a_limit_and_are_spread_by_chance() -> None:
    error = Unavailable("away")
    longest = RegistryConnection(URL, chance=lambda: 1.0)
    shortest = RegistryConnection(URL, chance=lambda: 0.0)
    assert [longest.wait_s(error, tries) for tries in (1, 2, 3, 9, 10, 9_999)] == [
        0.1,
        0.2,
        0.4,
        25.6,
        30,
        30,
    ]
    assert shortest.wait_s(error, 2) == pytest.approx(0.1)


@with_sockets_in_virtual_time
async def test_silent_server_times_out() -> None:
    loop = asyncio.get_running_loop()
    async with asking({"/api/v1/thing": silence}, timeout_seconds=10) as (connection, server):
        began_s = loop.time()
        with pytest.raises(Unreachable) as caught:
            await connection.ask(GET)
        assert loop.time() - began_s == pytest.approx(10, abs=1)
    assert caught.value.was_sent
    # One half of the time went to the first try, so that a connection that died has a successor.
    assert len(server.heads) >= 2


@with_sockets_in_virtual_time
async def test_registry_that_always_takes_most_of_the_timeout_is_read() -> None:
    takes_s, now_s = 7.0, asyncio.get_running_loop().time

    async def slow(writer: asyncio.StreamWriter, head: str) -> None:
        await asyncio.sleep(takes_s)
        await as_json({"size": 1})(writer, head)

    async with asking({"/api/v1/thing": slow}, timeout_seconds=10) as (connection, server):
        # The first try had half of the time.
        with pytest.raises(Unreachable):
            await connection.ask(GET)
        for _ in range(3):
            server.heads.clear()
            await connection.ask(GET)
            assert len(server.heads) == 1
        takes_s = 0.1
        await connection.ask(GET)
        takes_s, began_s = 99.0, now_s()
        server.heads.clear()
        with pytest.raises(Unreachable):
            await connection.ask(GET)
        assert len(server.heads) == 2
        assert now_s() - began_s == pytest.approx(10, abs=1)


# ── responses ──


@asynccontextmanager
async def asking(
    replies: dict[str, Reply], **settings: Any
) -> AsyncIterator[tuple[RegistryConnection, HostileServer]]:
    async with serving(replies) as server:
        connection = RegistryConnection(server.url, key=KEY, **settings)
        try:
            yield connection, server
        finally:
            await connection.close()


async def test_redirects_are_not_followed_with_a_key() -> None:
    async with serving({"/stolen": as_json({"size": 1})}) as other:
        replies = {"/api/v1/thing": redirect(f"{other.url}/stolen", 307)}
        async with asking(replies) as (connection, server):
            with pytest.raises(InvalidAnswer, match="redirected"):
                await connection.ask(GET)
    assert (len(server.heads), other.heads) == (1, [])
    assert server.asked("/api/v1/thing")["x-api-key"] == KEY


@pytest.mark.parametrize(
    "hostile",
    [bomb(MAX_BODY_BYTES + 1), answer(200, b"", Content_Length=str(MAX_BODY_BYTES + 1))],
    ids=["bomb", "declared"],
)
async def test_a_body_that_is_too_large_is_not_read(hostile: Reply) -> None:
    async with asking({"/api/v1/thing": hostile}) as (connection, _):
        with pytest.raises(InvalidAnswer, match="more than"):
            await connection.ask(GET)


async def test_non_http_data_is_no_answer() -> None:
    async with asking({"/api/v1/thing": raw(b"SSH-2.0-OpenSSH\r\n\r\n")}) as (connection, _):
        with pytest.raises(InvalidAnswer, match=r"^not an HTTP answer: .* status line$"):
            await connection.ask(GET)
    async with asking({"/api/v1/thing": broken_chunks()}, timeout_seconds=0.5) as (connection, _):
        with pytest.raises(RegistryError):
            await connection.ask(GET)


@pytest.mark.parametrize(
    "hostile",
    [
        answer(200, b"<html>", Content_Type="text/html"),
        answer(200, b"{", Content_Type="application/json"),
        answer(200, b'{"size": "large"}', Content_Type="application/json"),
        answer(200, b"[" * 100_000, Content_Type="application/json"),
        answer(204),
    ],
)
async def test_answer_of_another_content_type_is_invalid(hostile: Reply) -> None:
    async with asking({"/api/v1/thing": hostile}) as (connection, _):
        with pytest.raises(InvalidAnswer, match=r"^HTTP 20[04]: this is not a lifesign registry[:,] "):
            await connection.ask_for(Thing, GET)


async def test_key_as_a_member_of_an_invalid_answer_is_not_shown() -> None:
    class Sizes(BaseModel):
        sizes: dict[str, int]

    async with asking({"/api/v1/thing": as_json({"sizes": {KEY: "x"}})}) as (connection, _):
        with pytest.raises(InvalidAnswer) as caught:
            await connection.ask_for(Sizes, GET)
    assert KEY not in str(caught.value)


async def test_error_about_an_invalid_answer_does_not_quote_it() -> None:
    async with asking({"/api/v1/thing": as_json({"size": "ahk_secret"})}) as (connection, _):
        reply = await connection.ask(GET)
        assert "ahk_secret" not in repr(reply)
        with pytest.raises(InvalidAnswer) as caught:
            read_answer(Thing, reply)
    assert "ahk_secret" not in "".join(traceback.format_exception(caught.value))


async def test_https_to_a_server_without_tls_has_a_hint() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with accepting(refuse) as port:
        assert (await failure_of(f"https://127.0.0.1:{port}")).hint == PLAIN_HTTP_HINT


async def test_http_to_a_server_with_tls_has_a_hint(tmp_path: Path) -> None:
    async with serving({}, Authority(tmp_path).serving("127.0.0.1")) as server:
        assert (await failure_of(server.url.replace("https", "http", 1))).hint == TLS_HINT


async def failure_of(url: str) -> Unreachable:
    connection = RegistryConnection(url, key=KEY)
    with pytest.raises(Unreachable) as caught:
        await connection.ask(POST)
    await connection.close()
    return caught.value


# ── the key ──


@pytest.mark.parametrize(
    "error", [aiohttp.ServerDisconnectedError(), aiohttp.ClientPayloadError("cut"), aiohttp.InvalidURL("x")]
)
async def test_representations_and_errors_hide_the_key(
    mocked: aioresponses, connection: RegistryConnection, error: Exception
) -> None:
    mocked.post(THING, exception=error)
    with pytest.raises(RegistryError) as caught:
        await connection.ask(POST)
    seen: BaseException | None = caught.value
    while seen is not None:
        assert KEY not in repr(seen) + repr(vars(seen))
        seen = seen.__cause__ or seen.__context__
    client = RegistryClient(URL, key=KEY)
    assert KEY not in repr(connection) + str(connection) + repr(client) + repr(client.agents)


class RotatedKey:
    """A key that has been replaced, which is noticed after a refusal."""

    def __init__(self) -> None:
        self._key = KEY

    def current(self) -> str:
        return self._key

    def is_replaced(self, refused: str | None) -> bool:
        self._key = f"{KEY}-2"
        return refused != self._key


def unknown_key(quoted: str = "") -> dict[str, Any]:
    return {"error": {"code": "unknown_key", "message": f"a valid key is required {quoted}"}}


def sent_keys(mocked: aioresponses) -> list[str]:
    return [call.kwargs["headers"]["X-API-Key"] for calls in mocked.requests.values() for call in calls]


async def test_refused_request_is_repeated_once_with_a_replaced_key(mocked: aioresponses) -> None:
    connection = RegistryConnection(URL, key=RotatedKey())
    for _ in range(2):
        reply(mocked, "POST", 401, payload=unknown_key())
        reply(mocked, "POST", 200, payload={"size": 3})
    assert await connection.ask_for(Thing, POST) == Thing(size=3)
    assert sent_keys(mocked) == [KEY, f"{KEY}-2"]
    # The second key has no successor.
    with pytest.raises(NotAuthorized):
        await connection.ask(POST)
    await connection.close()


async def test_error_that_quotes_the_former_or_the_current_key_hides_both(mocked: aioresponses) -> None:
    connection = RegistryConnection(URL, key=RotatedKey())
    reply(mocked, "POST", 401, payload=unknown_key())
    reply(mocked, "POST", 401, payload=unknown_key(f"{KEY} {KEY}-2"))
    with pytest.raises(NotAuthorized) as caught:
        await connection.ask(POST)
    assert KEY not in str(caught.value)
    await connection.close()


async def test_401_without_a_code_is_not_repeated(mocked: aioresponses) -> None:
    # A proxy may answer so after the registry has executed the request.
    connection = RegistryConnection(URL, key=RotatedKey())
    reply(mocked, "POST", 401, payload={})
    with pytest.raises(RegistryError):
        await connection.ask(POST)
    assert sent_keys(mocked) == [KEY]
    await connection.close()


@pytest.mark.parametrize(
    "quoting",
    [
        answer(401, json.dumps({"error": {"code": "x", "message": KEY, "hint": KEY}}).encode()),
        answer(401, json.dumps({"error": {"code": "x", "message": f"{KEY[:4]}\u200e{KEY[4:]}"}}).encode()),
        raw(f"HTTP/1.1 403 {KEY}\r\nContent-Length: 0\r\n\r\n".encode()),
        raw(f"{KEY}\r\n\r\n".encode()),
    ],
)
async def test_error_that_quotes_the_key_hides_it(quoting: Reply) -> None:
    async with asking({"/api/v1/thing": quoting}) as (connection, _):
        with pytest.raises(RegistryError) as caught:
            await connection.ask(POST)
    assert KEY not in repr(caught.value) + repr(vars(caught.value)) + caught.value.hint


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "\u00e4", "x" * 5_000])
def test_invalid_key_is_neither_sent_nor_shown(key: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        RegistryClient(URL, key=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://registry.example", "http://10.0.0.5:8440", "http://localhost.example"]
)
def test_key_over_plain_http_is_refused_unless_allowed(url: str) -> None:
    with pytest.raises(InvalidValue, match="https"):
        RegistryClient(url, key=KEY)
    assert "http" in repr(RegistryClient(url, key=KEY, allow_plain_http=True))


@pytest.mark.parametrize(
    "url", ["http://localhost:8440", "http://127.0.0.1", "http://127.9.9.9", "http://[::1]:1/"]
)
def test_key_over_plain_http_to_loopback_is_allowed(url: str) -> None:
    RegistryClient(url, key=KEY)


@pytest.mark.parametrize(
    "url", ["registry.example", "ftp://x", "https://u:p@x", "https://x/?a=b", "https://u:p@x?a=b", "https://"]
)
def test_invalid_registry_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        RegistryClient(url, key=KEY)
    assert "registry" in refused.value.expected
    assert "a=b" not in str(refused.value)


@pytest.mark.parametrize("seconds", [0, -1, 301, float("nan"), float("inf")])
def test_missing_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidValue):
        RegistryClient(URL, timeout_seconds=seconds)


# ── registry URLs ──


async def test_registry_url_may_have_a_path(mocked: aioresponses) -> None:
    mocked.get(f"{URL}/behind/proxy/api/v1/thing", payload={"size": 1}, response_class=MockedResponse)
    connection = RegistryConnection(f"{URL}/behind/proxy/", key=KEY)
    assert (await connection.ask(GET)).status == 200
    await connection.close()


async def test_ids_are_encoded_in_paths() -> None:
    path = path_of("agents", "a/b?c#d e%\u00e9:~.")
    assert path == "/api/v1/agents/a%2Fb%3Fc%23d%20e%25%C3%A9:~."
    async with asking({f"{path}?q=%2B+%26": as_json({"size": 1})}) as (connection, server):
        await connection.ask(Question(method="GET", path=path, query={"q": "+ &"}))
    assert server.paths == [f"{path}?q=%2B+%26"]


@pytest.mark.parametrize("segment", ["", ".", ".."])
def test_id_with_a_dot_segment_is_refused(segment: str) -> None:
    with pytest.raises(InvalidValue):
        path_of("agents", segment)


def test_query_omits_absent_parameters() -> None:
    members = query_of(a=None, b=(), c="", d=[], e=("x", "y"), f=0, g="z")
    assert members == {"e": "x,y", "f": "0", "g": "z"}


async def test_callers_session_stays_open() -> None:
    async with serving({"/api/v1/thing": as_json({"size": 1})}) as server, aiohttp.ClientSession() as session:
        connection = RegistryConnection(server.url, session=session)
        await connection.ask(GET)
        await connection.close()
        assert not session.closed
    assert "x-api-key" not in server.asked("/api/v1/thing")


async def test_a_client_closes_what_it_opened() -> None:
    async with serving({}) as server:
        async with RegistryClient(server.url, key=KEY) as client:
            with pytest.raises(InvalidAnswer, match="no registry"):
                await client.agents.get("a")
            session = client._connection._own_session
            assert session is not None
        assert session.closed


@pytest.mark.skipif(
    os.geteuid() != 0 or not IS_SUPPORTED,
    reason="NOT RUN: only root on Linux can listen as another user",
)
async def test_key_is_not_sent_to_the_server_of_another_user_than_before(waits: list[float]) -> None:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with serving({"/api/v1/thing": as_json({"size": 1})}) as server:
        connection = RegistryConnection(server.url, key=KEY, sleep=sleep)
        assert (await connection.ask(POST)).status == 200
    os.seteuid(65_534)
    try:
        other = socket.create_server(("127.0.0.1", connection.url.port or 0))
    finally:
        os.seteuid(0)
    with other:
        other.settimeout(10)
        with pytest.raises(Unreachable, match="user 65534") as refused:
            await connection.ask(POST)
        assert not refused.value.was_sent
        for _ in range(MAX_TRIES):
            accepted, _ = other.accept()
            with accepted:
                assert await asyncio.to_thread(accepted.recv, 1) == b""
    await connection.close()


def test_stream_ends_after_three_missing_keep_alives() -> None:
    from lifesign.registry.events.stream_events import PING_SECONDS  # noqa: PLC0415

    assert registry_connection.IDLE_SECONDS >= 3 * PING_SECONDS


async def test_text_instead_of_a_list_is_refused() -> None:
    async with RegistryClient("http://127.0.0.1:1") as client:
        many: Any = "abc"
        for ask in (
            lambda: client.agents.register("a", capabilities=many),
            lambda: client.agents.list(capabilities=many),
            lambda: client.agents.list(status=many),
            lambda: client.agents.heartbeat("a", tasks_in_progress=many),
            lambda: client.tasks.claim(capabilities=many),
            lambda: client.tasks.list(status=many),
            lambda: client.targets.list(result=many),
            lambda: client.events.list(types=many),
        ):
            with pytest.raises(InvalidValue) as refused:
                await ask()
            assert refused.value.given == "abc"
