"""A Flask agent with a health document.

    pip install flask a2wsgi
    uvicorn --app-dir docs/examples/sdks flask_agent:app

Flask apps are WSGI apps. a2wsgi adapts them to an ASGI server.
"""

from a2wsgi import WSGIMiddleware
from flask import Flask, request

from lifesign import AgentHealthMiddleware

agent = Flask(__name__)


@agent.post("/ask")
def ask() -> dict[str, str]:
    return {"answer": f"You asked: {request.json['text']}"}


app = AgentHealthMiddleware(
    WSGIMiddleware(agent),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
