"""An agent on a2a-sdk 0.3.26 that acts on the first word of a message.

Runs in .venv-a2a03; in the other environment the same imports lead to SDK 1.3.
"""
# mypy: ignore-errors

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TaskState, TextPart
from a2a.utils import get_message_text, new_agent_text_message, new_task
from fastapi import FastAPI
from tests.support.a2a_serving import CARD_URL, serve

STATES = {
    "ok": TaskState.completed,
    "fail": TaskState.failed,
    "reject": TaskState.rejected,
    "auth": TaskState.auth_required,
    "input": TaskState.input_required,
}


class TestAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        behaviour = get_message_text(context.message).split()[0]
        if behaviour == "raise-first":
            raise RuntimeError("boom before anything")
        if behaviour == "message":
            await event_queue.enqueue_event(new_agent_text_message("hello"))
            return
        task = new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        if behaviour == "raise":
            raise RuntimeError("boom after working")
        if behaviour == "ok":
            text = TextPart(text='{"error": {"code": -32603}}')
            await updater.add_artifact([Part(root=text)], name="answer")
        await updater.update_status(STATES[behaviour], new_agent_text_message(behaviour), final=True)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing runs long enough to be canceled."""


def test_agent() -> FastAPI:
    card = AgentCard(
        name="test",
        description="Test agent",
        version="1.0.0",
        url=CARD_URL,
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="obey", name="Obey", description="Obeys", tags=["test"])],
    )
    handler = DefaultRequestHandler(TestAgent(), InMemoryTaskStore())
    app = A2ARESTFastAPIApplication(card, handler).build(agent_card_url="/rest/card", rpc_url="/rest")
    A2AStarletteApplication(card, handler).add_routes_to_app(app)
    return app


if __name__ == "__main__":
    serve(test_agent())
