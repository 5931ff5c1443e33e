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
    election = link._workers._election
    return JSONResponse({"pid": os.getpid(), "beats": election is not None and election._lead_fd is not None})


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
