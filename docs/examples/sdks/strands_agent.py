"""A Strands agent with a health document.

    pip install 'strands-agents[a2a]'
    uvicorn --app-dir docs/examples/sdks strands_agent:app

The model here answers without a network. Yours is `Agent(model=BedrockModel(...), ...)`.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from strands import Agent
from strands.models.model import Model
from strands.multiagent.a2a import A2AServer
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from lifesign import AgentHealthMiddleware


class EchoModel(Model):
    """Repeats the message."""

    def update_config(self, **model_config: Any) -> None:
        """Do nothing: this model has no settings."""

    def get_config(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    async def structured_output(self, *args: Any, **kwargs: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Raise TypeError: this example does not use it."""
        raise TypeError("this model gives text alone")
        yield {}

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        """Answer the last message."""
        text = messages[-1]["content"][0]["text"]
        if text == "fail":
            raise RuntimeError("the model gave no answer")
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": f"You asked: {text}"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


server = A2AServer(
    Agent(
        model=EchoModel(), name="Echo", description="Says what it was asked", tools=[], callback_handler=None
    ),
    http_url="http://127.0.0.1:8000/",
    enable_a2a_compliant_streaming=True,
)
app = AgentHealthMiddleware(
    server.to_starlette_app(),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
