import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from mcp.server.mcpserver import MCPServer
from tests.support.agent_check import PATIENT_SECONDS, SHORT_SECONDS
from tests.support.hostile_server import serving
from tests.support.mcp_answers import handshaking, methods, refused, rpc, stateless
from tests.support.mcp_stream_server import Answer, old, streaming
from tests.support.message_server import Agent, Got, Says, agent
from tests.support.uvicorn_thread import served
from yarl import URL

from lifesign.client.server_detection import MAX_ANSWER_BYTES, DetectedServer, detect_server
from lifesign.domain.mcp.conversation import CURRENT_VERSION, Generation
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.bounded_get import bounded_get
from lifesign.http_client.guarded_sessions import GuardedSessions

DISCOVER, INITIALIZE = "server/discover", "initialize"


async def ask(url: str, seconds: float = 60.0) -> DetectedServer:
    deadline_s = asyncio.get_running_loop().time() + seconds
    async with GuardedSessions(trusted=URL(url)) as sessions:
        return await detect_server(partial(bounded_get, sessions), URL(url), deadline_s)


async def detect(
    answers: Callable[[Got], Says], others: Callable[[Got], Says] = lambda _: Says(status=405)
) -> tuple[DetectedServer, Agent]:
    async with agent(answers, {}) as server:
        server.others = others
        return await ask(f"{server.url}/mcp"), server


async def test_stateless_server_is_detected_with_one_request() -> None:
    found, server = await detect(stateless)
    assert found.is_server
    assert (found.generation, found.version) == (Generation.STATELESS, CURRENT_VERSION)
    assert methods(server) == [DISCOVER]


async def test_server_of_a_later_version_is_asked_once_more_with_that_version() -> None:
    def answers(got: Got) -> Says:
        if got.headers["mcp-protocol-version"] == "2027-01-01":
            return stateless(got)
        return refused(got, -32022, 400, data={"supported": ["2027-01-01"]})

    found, server = await detect(answers)
    assert (found.is_server, found.version) == (True, "2027-01-01")
    assert methods(server) == [DISCOVER, DISCOVER]


@pytest.mark.parametrize("session", ["", "s-1", "a b"])
async def test_older_server_is_detected_by_a_handshake_whose_session_is_ended(session: str) -> None:
    found, server = await detect(lambda got: handshaking(got, session=session))
    assert found.is_server
    assert (found.generation, found.version, found.name) == (Generation.HANDSHAKE, "2025-06-18", "old")
    is_usable = session == "s-1"
    assert methods(server) == [DISCOVER, INITIALIZE] + ["DELETE"] * is_usable
    assert server.got[-1].headers.get("mcp-session-id") == ("s-1" if is_usable else None)


@pytest.mark.parametrize(
    ("status", "location", "is_followed"),
    [(307, "/mcp/", True), (308, "/mcp/", True), (302, "/mcp/", False), (307, "http://localhost:9/", False)],
)
async def test_redirect_that_keeps_method_and_origin_is_followed(
    status: int, location: str, *, is_followed: bool
) -> None:
    def answers(got: Got) -> Says:
        if got.path == "/mcp":
            return Says(status=status, headers=f"Location: {location}\r\n")
        return stateless(got)

    found, server = await detect(answers)
    assert found.is_server == is_followed
    assert [got.path for got in server.got].count("/mcp/") == is_followed


async def test_session_of_an_invalid_handshake_is_ended() -> None:
    def answers(got: Got) -> Says:
        says = handshaking(got, session="s-1")
        return Says(rpc(got, result={}).body, headers=says.headers) if says.headers else says

    found, server = await detect(answers)
    assert not found.is_server
    assert methods(server) == [DISCOVER, INITIALIZE, "DELETE"]


async def test_server_over_http_with_sse_is_detected_by_a_handshake_in_its_stream() -> None:
    async with streaming(old) as server:
        found = await ask(server.url)
        await asyncio.wait_for(server.has_ended.wait(), PATIENT_SECONDS)
    assert found.is_server
    assert (found.generation, found.version, found.name) == (Generation.EVENT_STREAM, "2024-11-05", "old")
    assert server.asked == ["/sse server/discover", "/sse initialize", "GET", "initialize"]


async def test_server_on_the_python_sdk_over_http_with_sse_is_detected() -> None:
    with served(lambda _: MCPServer("tools").sse_app()) as origin:
        found = await ask(f"{origin}/sse")
    assert (found.generation, found.name.split()[0]) == (Generation.EVENT_STREAM, "tools")
    assert found.version is not None


@pytest.mark.parametrize(
    ("expected", "result"),
    [
        (
            lambda message: {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32603}},
            "invalid_document",
        ),
        (lambda message: {"jsonrpc": "2.0", "id": message["id"], "result": {}}, "not_an_agent"),
        (lambda message: {"jsonrpc": "2.0", "id": str(message["id"]), "result": {}}, "timeout"),
        (lambda _: None, "timeout"),
    ],
)
async def test_stream_without_a_valid_handshake_is_that_of_no_server(expected: Answer, result: str) -> None:
    async with streaming(expected) as server:
        found = await ask(server.url, 60.0 if result != "timeout" else SHORT_SECONDS)
    assert (found.is_server, found.generation) == (False, None)
    assert found.answer.result == result
    assert found.answer.reason


@pytest.mark.parametrize(("status", "result"), [("401 No", "gated"), ("500 No", "http_error")])
async def test_stream_whose_endpoint_refuses_the_handshake_shows_the_refusal(
    status: str, result: str
) -> None:
    async with streaming(old) as server:
        server.status = status
        found = await ask(server.url)
    assert (found.is_server, found.answer.result) == (False, result)


async def test_endpoint_of_a_stream_on_another_origin_gets_no_request() -> None:
    async with streaming(old, "https://other.example/messages") as server:
        found = await ask(server.url)
    assert found.answer.result is ResultClass.INVALID_DOCUMENT
    assert server.asked[-1] == "GET"


@pytest.mark.parametrize(
    ("content_type", "status", "result"),
    [
        ("text/event-stream", 200, "not_an_agent"),
        ("text/event-stream", 503, "http_error"),
        ("text/html", 200, "http_error"),
    ],
)
async def test_get_that_opens_no_stream_of_mcp_shows_no_server(
    content_type: str, status: int, result: str
) -> None:
    stream = Says(status=status, content_type=content_type)
    found, server = await detect(lambda _: Says(status=405), lambda _: stream)
    assert (found.is_server, found.generation) == (False, None)
    assert found.answer.result == result
    assert methods(server) == [DISCOVER, INITIALIZE, "GET"]
    assert server.got[-1].headers["accept"] == "text/event-stream"


async def test_answer_in_an_event_stream_without_an_end_is_read_up_to_the_answer() -> None:
    async def endless(writer: asyncio.StreamWriter, _: str) -> None:
        message = b'{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"]}}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        writer.write(head + b": hello\n\ndata: " + message + b"\n\n")
        await writer.drain()
        await asyncio.Event().wait()

    async with serving({"/mcp": endless}) as server:
        found = await ask(f"{server.url}/mcp")
    assert found.generation is Generation.STATELESS


@pytest.mark.parametrize(
    ("challenge", "expected"),
    [
        ('Bearer resource_metadata="https://a.example/.well-known/oauth-protected-resource"', True),
        ("Bearer", False),
        ('Basic realm="a"', False),
    ],
)
async def test_refusal_that_names_oauth_metadata_is_that_of_a_server(
    challenge: str, *, expected: bool
) -> None:
    headers = f"WWW-Authenticate: {challenge}\r\n"
    found, server = await detect(lambda _: Says(status=401, headers=headers))
    assert (found.is_server, found.is_gated) == (expected, expected)
    assert found.answer.result is ResultClass.GATED
    assert methods(server) == [DISCOVER]


@pytest.mark.parametrize(
    ("answers", "requests", "result"),
    [
        (lambda _: Says(status=401), 1, "gated"),
        (lambda _: Says(status=429), 1, "rate_limited"),
        (lambda got: refused(got, -32020), 1, "invalid_document"),
        (lambda _: Says(b" " * (MAX_ANSWER_BYTES + 1)), 1, "too_large"),
        (lambda _: Says(b"<html>", content_type="text/html"), 2, "not_an_agent"),
        (lambda got: rpc(got, result={"nothing": 1}), 2, "not_an_agent"),
        (lambda _: Says(b"oops", status=500), 2, "http_error"),
        (lambda _: Says(status=404), 3, "not_an_agent"),
    ],
)
async def test_other_answers_are_those_of_no_server(
    answers: Callable[[Got], Says], requests: int, result: str
) -> None:
    found, server = await detect(answers)
    assert not found.is_server
    assert found.answer.result == result
    assert found.answer.reason
    assert len(server.got) == requests
