import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from tests.support.hostile_server import serving
from tests.support.mcp_answers import handshaking, methods, refused, rpc, stateless
from tests.support.message_server import Agent, Got, Says, agent
from yarl import URL

from lifesign.client.server_detection import MAX_ANSWER_BYTES, DetectedServer, detect_server
from lifesign.domain.mcp.conversation import CURRENT_VERSION, Generation
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.bounded_get import bounded_get
from lifesign.http_client.guarded_sessions import GuardedSessions

DISCOVER, INITIALIZE = "server/discover", "initialize"


async def ask(url: str) -> DetectedServer:
    deadline_s = asyncio.get_running_loop().time() + 60
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
    ("content_type", "status", "expected"),
    [("text/event-stream", 200, True), ("text/html", 200, False), ("text/event-stream", 503, False)],
)
async def test_server_over_http_with_sse_is_detected_by_the_head_of_its_stream(
    content_type: str, status: int, *, expected: bool
) -> None:
    stream = Says(status=status, content_type=content_type)
    found, server = await detect(lambda _: Says(status=405), lambda _: stream)
    assert found.is_server is expected
    assert found.generation is (Generation.EVENT_STREAM if expected else None)
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
