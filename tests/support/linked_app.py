"""The app of a linked agent's worker processes.

It returns which process answers and whether that one sends the heartbeats, and delays callers on request.
"""

import asyncio
import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.support.linked_environment import AGENT_ID

from lifesign import AgentHealthMiddleware
from lifesign.agent import AgentLink
from lifesign.domain.models.agents import HeartbeatConfig


async def who(_request: Request) -> JSONResponse:
    crew = link._crew
    return JSONResponse({"pid": os.getpid(), "beats": crew is not None and crew._lead_fd is not None})


async def wait(_request: Request) -> JSONResponse:
    await asyncio.sleep(60)
    return JSONResponse({})


link = AgentLink(
    Starlette(routes=[Route("/who", who), Route("/wait", wait)]),
    agent_id=AGENT_ID,
    heartbeat=HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=4, dead_after_seconds=20),
    drain_timeout_seconds=1,
    key_file=os.environ["LINKED_KEY_FILE"],
    lock_dir=os.environ["LINKED_LOCK_DIR"],
)
app = AgentHealthMiddleware(link, agent_id=AGENT_ID)
