"""A python-a2a agent with a health document.

    pip install python-a2a a2wsgi
    uvicorn --app-dir docs/examples/sdks python_a2a_agent:app

A python-a2a agent is a Flask app. a2wsgi adapts it to an ASGI server, which replaces `run_server`.
"""

from a2wsgi import WSGIMiddleware
from python_a2a import A2AServer, Message, MessageRole, TextContent
from python_a2a.server.http import create_flask_app

from lifesign import AgentHealthMiddleware


class Echo(A2AServer):
    """Repeats the message."""

    def handle_message(self, message: Message) -> Message:
        """Answer one message."""
        text = message.content.text
        if text == "fail":
            raise RuntimeError("the model gave no answer")
        return Message(content=TextContent(text=f"You asked: {text}"), role=MessageRole.AGENT)


agent = create_flask_app(Echo(name="Echo", description="Says it again", url="http://127.0.0.1:8000"))
app = AgentHealthMiddleware(
    WSGIMiddleware(agent),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
