"""Compression outside of the middleware hides nothing; inside of it, it does, and is reported.

Compressions change the messages that they are given in place: the headers, and the body too.
"""

import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.support.asgi_client import ask

from lifesign import AgentHealthMiddleware

FAULT = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"model down"}}'
OUTCOMES = "io.github.lifesign.outcomes"
INSPECTION = "io.github.lifesign.inspection"


async def whole(_: Request) -> Response:
    return Response(FAULT, media_type="application/json")


async def in_pieces(_: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield FAULT[:20]
        yield FAULT[20:]

    return StreamingResponse(pieces(), media_type="application/json")


@pytest.mark.parametrize("endpoint", [whole, in_pieces])
async def test_failure_is_found_if_outer_middleware_compresses_the_answer(endpoint: object) -> None:
    agent = Starlette(routes=[Route("/", endpoint, methods=["POST"])])  # type: ignore[arg-type]
    app = GZipMiddleware(AgentHealthMiddleware(agent, agent_id="https://agent.example/card"), minimum_size=1)
    answer = await ask(app, "/", method="POST", headers=[(b"accept-encoding", b"gzip")])
    assert answer.header("content-encoding") == "gzip"
    assert gzip.decompress(answer.body) == FAULT
    document = (await ask(app, "/.well-known/agent-health")).json()
    assert document["extensions"][OUTCOMES] == {"server_fault": 1}


def document_of(app: AgentHealthMiddleware) -> Any:
    return json.loads(app.health.document().to_json())


@pytest.mark.parametrize("endpoint", [whole, in_pieces])
async def test_answer_compressed_by_the_app_is_not_inspected(
    endpoint: object, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Starlette(routes=[Route("/", endpoint, methods=["POST"])])  # type: ignore[arg-type]
    app = AgentHealthMiddleware(GZipMiddleware(agent, minimum_size=1), agent_id="https://agent.example/card")
    with caplog.at_level(logging.INFO, logger="lifesign"):
        for _ in range(20):
            answer = await ask(app, "/", method="POST", headers=[(b"accept-encoding", b"gzip")])
            assert gzip.decompress(answer.body) == FAULT
    document = document_of(app)
    assert document["health"]["status"] == "unknown"
    assert document["calibration"]["sample_count"] == 0
    assert document["extensions"][OUTCOMES] == {"not_inspected": 20}
    assert document["extensions"][INSPECTION] == {
        "rule": "mostly_not_inspected",
        "inspected": 0,
        "not_inspected": {"compressed": 20},
    }
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert "gzip" in line.getMessage()


async def test_compressed_and_oversized_answers_are_counted_apart() -> None:
    long = json.dumps({"text": "x" * 2000}).encode()

    async def answer(request: Request) -> Response:
        return Response(long if request.url.path == "/long" else FAULT, media_type="application/json")

    agent = Starlette(routes=[Route("/{path}", answer)])
    app = AgentHealthMiddleware(
        GZipMiddleware(agent, minimum_size=1), agent_id="https://agent.example/card", max_inspected_bytes=1000
    )
    for path, encoding in (("/long", b""), ("/long", b""), ("/long", b"gzip"), ("/fault", b"")):
        await ask(app, path, headers=[(b"accept-encoding", encoding)])
    extensions = document_of(app)["extensions"]
    assert extensions[OUTCOMES] == {"not_inspected": 3, "server_fault": 1}
    assert extensions[INSPECTION] == {
        "rule": "mostly_not_inspected",
        "inspected": 1,
        "not_inspected": {"compressed": 1, "oversized": 2},
    }


@pytest.mark.parametrize("is_gzip_last", [True, False])
async def test_middleware_that_is_added_last_is_outermost(*, is_gzip_last: bool) -> None:
    """With `add_middleware`, a compression is added after ours."""
    agent = Starlette(routes=[Route("/", whole, methods=["POST"])])
    ours = (AgentHealthMiddleware, {"agent_id": "https://agent.example/card", "refresh_seconds": 1})
    compression = (GZipMiddleware, {"minimum_size": 1})
    for kind, settings in (ours, compression) if is_gzip_last else (compression, ours):
        agent.add_middleware(kind, **settings)
    answer = await ask(agent, "/", method="POST", headers=[(b"accept-encoding", b"gzip")])
    assert answer.header("content-encoding") == "gzip"
    document = (await ask(agent, "/.well-known/agent-health")).json()
    outcome = "server_fault" if is_gzip_last else "not_inspected"
    assert document["extensions"][OUTCOMES] == {outcome: 1}
