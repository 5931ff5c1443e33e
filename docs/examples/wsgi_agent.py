"""A WSGI agent (Flask, python-a2a) with a health document.

    uvicorn --app-dir docs/examples wsgi_agent:app

a2wsgi adapts the agent to an ASGI server. Here `agent` is a bare WSGI callable, yours is `Flask(__name__)`.
"""

import json
from collections.abc import Iterable

from a2wsgi import WSGIMiddleware
from a2wsgi.wsgi_typing import Environ, StartResponse

from lifesign import AgentHealthMiddleware


def agent(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    if environ["PATH_INFO"] != "/ask":
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"there is only /ask"]
    question = json.load(environ["wsgi.input"])
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"answer": f"You asked: {question['text']}"}).encode()]


app = AgentHealthMiddleware(
    WSGIMiddleware(agent),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
