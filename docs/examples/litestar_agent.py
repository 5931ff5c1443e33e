"""A Litestar agent with a health document.

    uvicorn --app-dir docs/examples litestar_agent:app

The middleware wraps the application from outside. Litestar calls the classes in `middleware=[...]` only for
known routes, so it would answer the health path with 404.
"""

from litestar import Litestar, post
from litestar.params import JSONBody

from lifesign import AgentHealthMiddleware


@post("/ask", status_code=200)
async def ask(data: JSONBody[dict[str, str]]) -> dict[str, str]:
    return {"answer": f"You asked: {data['text']}"}


app = AgentHealthMiddleware(
    Litestar([ask]),
    agent_id="https://agent.example.com/.well-known/agent-card.json",
)
