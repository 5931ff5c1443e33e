"""FastAPI agents with health documents: one alone, and several in one application.

    uvicorn --app-dir docs/examples fastapi_agent:app

A mounted agent has its own document below its own path: /travel/.well-known/agent-health.
"""

from fastapi import FastAPI
from pydantic import BaseModel

from lifesign import AgentHealthMiddleware


class Question(BaseModel):
    """Body of a request."""

    text: str


travel = FastAPI()


@travel.post("/ask")
async def ask_travel(question: Question) -> dict[str, str]:
    return {"answer": f"By train: {question.text}"}


app = FastAPI()
app.add_middleware(AgentHealthMiddleware, agent_id="https://agents.example.com/front", exclude=["/travel/*"])
app.mount("/travel", AgentHealthMiddleware(travel, agent_id="https://agents.example.com/travel"))


@app.post("/ask")
async def ask(question: Question) -> dict[str, str]:
    return {"answer": f"You asked: {question.text}"}
