"""An agent of Google's ADK with a health document.

    pip install 'google-adk[a2a]'
    uvicorn --app-dir docs/examples/sdks adk_agent:app

`to_a2a` adds its routes when the app starts, which does not affect the middleware around it.
"""

from collections.abc import AsyncGenerator

from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.genai import types

from lifesign import AgentHealthMiddleware


class Echo(BaseAgent):
    """Repeats the message. An `LlmAgent` is wrapped in the same way."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        text = ctx.user_content.parts[0].text
        if text == "fail":
            raise RuntimeError("the model gave no answer")
        content = types.Content(role="model", parts=[types.Part(text=f"You asked: {text}")])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)


app = AgentHealthMiddleware(
    to_a2a(Echo(name="echo", description="Says what it was asked"), port=8000),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
