"""Serves the test agents, bare or wrapped, so that each request's outcome can be read.

Runs in the environments of both lines of the A2A SDK.
"""

import argparse
import json
import logging
import os
from typing import Any

import uvicorn

from lifesign import AgentHealthMiddleware

CARD_URL = os.environ.get("AGENT_URL", "https://agent.test/")
"""URL of the agent in its card."""
COUNTS_PATH = "/counts-of-the-test"
OUTCOMES = "io.github.lifesign.outcomes"


def serve(agent: Any) -> None:
    """Serve the agent of the command line on loopback, until a signal ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["bare", "wrapped"])
    parser.add_argument("port", type=int)
    arguments = parser.parse_args()
    logging.disable()
    app = agent
    if arguments.kind == "wrapped":
        app = _with_counts(AgentHealthMiddleware(agent, agent_id=CARD_URL, refresh_seconds=3600))
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_config=None)


def _with_counts(wrapped: AgentHealthMiddleware) -> Any:
    """Serve the present counts at a separate path; the well-known path may be an hour old."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != COUNTS_PATH:
            await wrapped(scope, receive, send)
            return
        document = json.loads(wrapped.health.document().to_json())
        body = json.dumps(document["extensions"][OUTCOMES]).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app
