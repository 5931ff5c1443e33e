"""An agent on the A2A SDK 0.3 with a health document.

    pip install 'a2a-sdk[http-server]<0.4'
    uvicorn --app-dir docs/examples/sdks a2a03_agent:app

If an agent raises an exception, its stream breaks off. The middleware counts that as an error.
"""

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_task

from lifesign import AgentHealthMiddleware
from lifesign.domain.a2a.announcement import announce_health


class Echo(AgentExecutor):
    """Repeats the message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on one message."""
        text = context.get_user_input()
        task = new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if text == "fail":
            await updater.failed()
            return
        await updater.add_artifact([Part(root=TextPart(text=f"You asked: {text}"))])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing: a task ends before it can be cancelled."""


plain = AgentCard(
    name="Echo",
    description="Says what it was asked",
    version="1.0.0",
    url="http://127.0.0.1:8000/",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="echo", name="Echo", description="Says it again", tags=["example"])],
)
card = announce_health(plain)
handler = DefaultRequestHandler(Echo(), InMemoryTaskStore())
app = AgentHealthMiddleware(
    A2AStarletteApplication(card, handler).build(),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
