"""Is an answer looked into whose compression lies outside, as it should? (README; protocol.md section 2)

Compressions change the messages that they are given in place: the headers, and the body too.
"""

import gzip
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.support.asgi_client import ask

from agent_health import AgentHealthMiddleware

FAULT = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"model down"}}'
OUTCOMES = "io.github.agent-health.outcomes"


async def whole(_: Request) -> Response:
    return Response(FAULT, media_type="application/json")


async def in_pieces(_: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield FAULT[:20]
        yield FAULT[20:]

    return StreamingResponse(pieces(), media_type="application/json")


@pytest.mark.parametrize("endpoint", [whole, in_pieces])
async def test_a_failure_is_found_though_its_answer_is_compressed_outside(endpoint: object) -> None:
    agent = Starlette(routes=[Route("/", endpoint, methods=["POST"])])  # type: ignore[arg-type]
    app = GZipMiddleware(AgentHealthMiddleware(agent, agent_id="https://agent.example/card"), minimum_size=1)
    answer = await ask(app, "/", method="POST", headers=[(b"accept-encoding", b"gzip")])
    assert answer.header("content-encoding") == "gzip"
    assert gzip.decompress(answer.body) == FAULT
    document = (await ask(app, "/.well-known/agent-health")).json()
    assert document["extensions"][OUTCOMES] == {"server_fault": 1}
