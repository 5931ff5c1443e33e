"""Real A2A agents with health documents.

    python sample_agents.py well | half | crash

Serves one of three agents, built with the A2A SDK, on a free port of this machine. It prints its URL, and
runs until its standard input ends. "well" answers, the model of "half" fails every second time, and "crash"
raises an exception after it has begun to work.
"""

import argparse
import itertools
import os
import signal
import socket
import sys
import threading

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette

from lifesign import AgentHealthMiddleware
from lifesign.domain.a2a.announcement import announce_health


class SampleAgent(AgentExecutor):
    """Agent without a model; its kind decides whether it fails."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._calls = itertools.count()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on one message."""
        if context.message is None:
            raise ValueError("a request without a message")
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        if self._kind == "crash":
            raise RuntimeError("the model is gone")
        if self._kind == "half" and next(self._calls) % 2:
            await updater.failed(new_text_message("the model gave no answer"))
            return
        await updater.add_artifact([new_text_part("hello to you")], name="answer")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing: a task ends before it can be cancelled."""


def sample_card(kind: str, url: str) -> AgentCard:
    """Return the agent's card, which contains the URL of the health document."""
    card = AgentCard(
        name=kind,
        description="A sample agent",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url + "/", protocol_binding="JSONRPC", protocol_version="1.0"),
            AgentInterface(url=url + "/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="talk", name="Talk", description="Says hello", tags=["demo"])],
    )
    return ParseDict(announce_health(MessageToDict(card)), AgentCard())


def sample_app(kind: str, url: str) -> AgentHealthMiddleware:
    """Return the agent as an ASGI app with a health document."""
    card = sample_card(kind, url)
    handler = DefaultRequestHandler(SampleAgent(kind), InMemoryTaskStore(), card)
    agent = Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/"),
            *create_rest_routes(handler, path_prefix="/rest"),
        ]
    )
    return AgentHealthMiddleware(agent, agent_id=url + "/.well-known/agent-card.json", refresh_seconds=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a sample agent until standard input ends.")
    parser.add_argument("kind", choices=["well", "half", "crash"])
    kind = parser.parse_args().kind
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(sample_app(kind, url), log_level="critical"))
    # Standard input is a pipe from the program that started this agent: the agent ends with it.
    threading.Thread(target=_end_with_input, daemon=True).start()
    print(url, flush=True)
    server.run(sockets=[listening])


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
