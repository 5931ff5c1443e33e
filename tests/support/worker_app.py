"""The agent that the worker processes of the journeys serve.

It returns which process answered (at /pid uncounted), answers with any status, and streams for a minute.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from lifesign import AgentHealthMiddleware

AGENT_ID = "https://agent.test/.well-known/agent-card.json"


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"pid": os.getpid()}, status_code=int(request.query_params.get("status", "200")))


async def stream(request: Request) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        for number in range(1200):
            yield f"data: {number}\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(events(), media_type="text/event-stream")


async def crash(_request: Request) -> JSONResponse:
    os.kill(os.getpid(), signal.SIGKILL)
    return JSONResponse({})


ROUTES = [
    Route("/answer", answer),
    Route("/pid", answer),
    Route("/stream", stream),
    Route("/crash", crash, methods=["POST"]),
]

app = AgentHealthMiddleware(
    Starlette(routes=ROUTES),
    agent_id=AGENT_ID,
    refresh_seconds=1,
    exclude=["/pid"],
    state_dir=os.environ.get("AGENT_STATE_DIR"),
)
