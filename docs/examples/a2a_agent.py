"""An agent on the A2A SDK (1.x) with a health document.

    uvicorn --app-dir docs/examples a2a_agent:app

Two lines: `announce_health` adds the document's URL to the card, and the middleware serves the document.
"""

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette

from lifesign import AgentHealthMiddleware
from lifesign.domain.a2a.announcement import announce_health


class Echo(AgentExecutor):
    """Repeats the message. The middleware counts a task that raises an exception as an error."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on one message."""
        text = context.get_user_input()
        if context.message is None or not text:
            raise ValueError("there is nothing to answer")
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if text == "fail":
            await updater.failed()
            return
        await updater.add_artifact([new_text_part(f"You asked: {text}")])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing: a task ends before it can be cancelled."""


plain = AgentCard(
    name="Echo",
    description="Says what it was asked",
    version="1.0.0",
    supported_interfaces=[
        AgentInterface(url="http://127.0.0.1:8000/", protocol_binding="JSONRPC", protocol_version="1.0")
    ],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="echo", name="Echo", description="Says it again", tags=["example"])],
)
card = announce_health(plain)
handler = DefaultRequestHandler(Echo(), InMemoryTaskStore(), card)
app = AgentHealthMiddleware(
    Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
