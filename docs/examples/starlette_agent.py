"""A Starlette agent with a health document.

uvicorn --app-dir docs/examples starlette_agent:app
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lifesign import AgentHealthMiddleware


async def ask(request: Request) -> JSONResponse:
    question = await request.json()
    return JSONResponse({"answer": f"You asked: {question['text']}"})


app = AgentHealthMiddleware(
    Starlette(routes=[Route("/ask", ask, methods=["POST"])]),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
