"""A FastA2A agent (also one of Pydantic AI) with a health document.

    pip install fasta2a
    uvicorn --app-dir docs/examples/sdks fasta2a_agent:app

FastA2A answers every message with `submitted`. Therefore the agent counts the work, not the request.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

from lifesign import AgentHealthMiddleware


class Echo(Worker[list[Message]]):
    """Repeats the message."""

    async def run_task(self, params: TaskSendParams) -> None:
        """Work on one message."""
        with app.health.interaction():
            text = params["message"]["parts"][0]["text"]
            if text == "fail":
                raise RuntimeError("the model gave no answer")
            artifacts = self.build_artifacts(f"You asked: {text}")
            await self.storage.update_task(params["id"], state="completed", new_artifacts=artifacts)

    async def cancel_task(self, params: TaskIdParams) -> None:
        """Do nothing: a task ends before it can be cancelled."""

    def build_message_history(self, history: list[Message]) -> list[Any]:
        """Return no history: this agent does not use it."""
        return []

    def build_artifacts(self, result: Any) -> list[Artifact]:
        """Return the result of a task as the caller gets it."""
        return [Artifact(artifact_id=str(uuid.uuid4()), parts=[Part(text=result)])]


storage: InMemoryStorage[list[Message]] = InMemoryStorage()
broker = InMemoryBroker()
worker = Echo(storage=storage, broker=broker)


@asynccontextmanager
async def lifespan(agent: FastA2A) -> AsyncIterator[None]:
    """Run the worker as long as the app is served."""
    async with agent.task_manager, worker.run():
        yield


app = AgentHealthMiddleware(
    FastA2A(storage=storage, broker=broker, lifespan=lifespan, name="Echo", url="http://127.0.0.1:8000"),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
    exclude=["/"],
)
