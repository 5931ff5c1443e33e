"""An agent on a2a-sdk 1.3 that acts on the first word of a message."""

from a2a.helpers import get_message_text, new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from starlette.applications import Starlette
from tests.support.a2a_serving import CARD_URL, serve

STATES = {
    "ok": TaskState.TASK_STATE_COMPLETED,
    "fail": TaskState.TASK_STATE_FAILED,
    "reject": TaskState.TASK_STATE_REJECTED,
    "auth": TaskState.TASK_STATE_AUTH_REQUIRED,
    "input": TaskState.TASK_STATE_INPUT_REQUIRED,
}


class TestAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        behaviour = get_message_text(context.message).split()[0]
        if behaviour == "raise-first":
            raise RuntimeError("boom before anything")
        if behaviour == "message":
            await event_queue.enqueue_event(new_text_message("hello"))
            return
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        if behaviour == "raise":
            raise RuntimeError("boom after working")
        if behaviour == "ok":
            # A text search in the body would take this for a failure.
            await updater.add_artifact([new_text_part('{"error": {"code": -32603}}')], name="answer")
        await updater.update_status(STATES[behaviour], new_text_message(behaviour))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing runs long enough to be canceled."""


def make_agent(url: str = CARD_URL) -> Starlette:
    card = AgentCard(
        name="test",
        description="Test agent",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0"),
            AgentInterface(url=url + "rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="obey", name="Obey", description="Obeys", tags=["test"])],
    )
    handler = DefaultRequestHandler(TestAgent(), InMemoryTaskStore(), card)
    return Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
            *create_rest_routes(handler, path_prefix="/rest", enable_v0_3_compat=True),
        ]
    )


if __name__ == "__main__":
    serve(make_agent())
