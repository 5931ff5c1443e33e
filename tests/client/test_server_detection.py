import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from tests.support.mcp_answers import handshaking, methods, refused, rpc, stateless
from tests.support.message_server import Agent, Got, Says, agent
from yarl import URL

from lifesign.client.server_detection import MAX_ANSWER_BYTES, is_mcp_server
from lifesign.http_client.bounded_get import bounded_get
from lifesign.http_client.guarded_sessions import GuardedSessions

DISCOVER, INITIALIZE = "server/discover", "initialize"


async def detect(
    answers: Callable[[Got], Says], others: Callable[[Got], Says] = lambda _: Says(status=405)
) -> tuple[bool, Agent]:
    async with agent(answers, {}) as serving:
        serving.others = others
        url = URL(f"{serving.url}/mcp")
        deadline_s = asyncio.get_running_loop().time() + 60
        async with GuardedSessions(trusted=url) as sessions:
            return await is_mcp_server(partial(bounded_get, sessions), url, deadline_s), serving


async def test_stateless_server_is_detected_with_one_request() -> None:
    found, serving = await detect(stateless)
    assert found
    assert methods(serving) == [DISCOVER]


@pytest.mark.parametrize("session", ["", "s-1", "a b"])
async def test_older_server_is_detected_by_a_handshake_whose_session_is_ended(session: str) -> None:
    found, serving = await detect(lambda got: handshaking(got, session=session))
    assert found
    is_usable = session == "s-1"
    assert methods(serving) == [DISCOVER, INITIALIZE] + ["DELETE"] * is_usable
    assert serving.got[-1].headers.get("mcp-session-id") == ("s-1" if is_usable else None)


@pytest.mark.parametrize(
    ("content_type", "status", "expected"),
    [("text/event-stream", 200, True), ("text/html", 200, False), ("text/event-stream", 503, False)],
)
async def test_server_over_http_with_sse_is_detected_by_the_head_of_its_stream(
    content_type: str, status: int, *, expected: bool
) -> None:
    stream = Says(status=status, content_type=content_type)
    found, serving = await detect(lambda _: Says(status=405), lambda _: stream)
    assert found is expected
    assert methods(serving) == [DISCOVER, INITIALIZE, "GET"]
    assert serving.got[-1].headers["accept"] == "text/event-stream"


@pytest.mark.parametrize(
    ("answers", "requests"),
    [
        (lambda _: Says(status=401), 1),
        (lambda _: Says(status=429), 1),
        (lambda got: refused(got, -32020), 1),
        (lambda _: Says(b" " * (MAX_ANSWER_BYTES + 1)), 1),
        (lambda _: Says(b"<html>", content_type="text/html"), 2),
        (lambda got: rpc(got, result={"nothing": 1}), 2),
        (lambda _: Says(b"oops", status=500), 2),
        (lambda _: Says(status=404), 3),
    ],
)
async def test_other_answers_are_those_of_no_server(answers: Callable[[Got], Says], requests: int) -> None:
    found, serving = await detect(answers)
    assert not found
    assert len(serving.got) == requests
