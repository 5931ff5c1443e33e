from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from tests.support.asgi_client import Answer, App, ask
from tests.support.scripted import outcomes

from lifesign import AgentHealthMiddleware

HEALTH = "/.well-known/agent-health"
CARD = "/.well-known/agent-card.json"


async def everything(request: Request) -> Response:
    return PlainTextResponse("the app's own")


def agent(name: str = "agent", **settings: Any) -> AgentHealthMiddleware:
    methods = ["GET", "POST"]
    app = Starlette(routes=[Route("/{rest:path}", everything, methods=methods)])
    return AgentHealthMiddleware(app, agent_id=name, **settings)


async def agent_at(app: App, path: str, **scope: Any) -> str | None:
    """Return the agent whose document is served there; None for the app's own answer."""
    answer: Answer = await ask(app, path, **scope)
    assert answer.status == 200
    return None if answer.body == b"the app's own" else answer.json()["agent_id"]


@pytest.mark.parametrize("root", ["", "/api", "/api/v2", "/api/"])
@pytest.mark.parametrize("server", ["uvicorn", "granian", "hypercorn"])
@pytest.mark.parametrize("path", [HEALTH, "/health"])
async def test_the_document_is_found_below_every_root_path_on_every_server(
    root: str, server: str, path: str
) -> None:
    # uvicorn puts the root path in front of `path`, granian and hypercorn do not.
    spelled = root.rstrip("/") + path if server == "uvicorn" else path
    app = agent(path=path)
    assert await agent_at(app, spelled, root_path=root) == "agent"
    assert await agent_at(app, spelled, root_path=root, query_string=b"x=1&y=%2F") == "agent"
    assert await agent_at(app, spelled + "/", root_path=root) is None
    assert outcomes(app) == {"answered": 1}


@pytest.mark.parametrize(
    "path",
    [
        HEALTH + "/",
        HEALTH + "/x",
        HEALTH + "x",
        "/x" + HEALTH,
        "/x/y" + HEALTH,
        "/api" + HEALTH,
        "/apix" + HEALTH,
        "/.well-known/Agent-Health",
        "/.well-known/agent-healt",
        "/.well-known",
        "//.well-known/agent-health",
        "/",
    ],
)
@pytest.mark.parametrize("root", ["", "/root"])
async def test_app_answers_all_other_paths(path: str, root: str) -> None:
    app = agent()
    assert await agent_at(app, path, root_path=root) is None
    # It may be the document of a mounted agent.
    assert outcomes(app) == {"excluded" if path.endswith(HEALTH) else "answered": 1}


async def test_configured_path_leaves_the_well_known_path_to_the_app() -> None:
    app = agent(path="/health")
    assert await agent_at(app, HEALTH) is None
    assert await agent_at(app, "/health") == "agent"


async def test_health_path_with_non_ascii_characters_is_served() -> None:
    assert await agent_at(agent(path="/gesundheit/ärztin"), "/gesundheit/ärztin") == "agent"


async def test_scope_without_root_path_equals_an_empty_root_path() -> None:
    """ASGI: optional, and empty if it is absent."""
    app = agent()

    async def without(scope: Any, receive: Any, send: Any) -> None:
        del scope["root_path"]
        await app(scope, receive, send)

    assert await agent_at(without, HEALTH) == "agent"
    link = (await ask(without, CARD)).header("link")
    assert link == f'<{HEALTH}>; rel="status"'


def origin(home: Any, *, added: bool) -> Any:
    """Two agents on one origin, wrapped from outside or by their own list of middleware."""
    for name in ("adder", "planner"):
        route = Route("/{rest:path}", everything, methods=["GET", "POST"])
        if added:
            wrapped: Any = Starlette(
                routes=[route], middleware=[Middleware(AgentHealthMiddleware, agent_id=name)]
            )
        else:
            wrapped = agent(name)
        home.mount(f"/agents/{name}", wrapped)
    return home


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@pytest.mark.parametrize("root", ["", "/proxy"])
async def test_two_agents_of_one_origin_have_their_own_documents_and_cards(
    *, added: bool, framework: Any, root: str
) -> None:
    """With paths in uvicorn's form; on other servers Starlette's own mounts do not work below a root path."""
    home = origin(framework(), added=added)
    for _ in range(3):
        await ask(home, f"{root}/agents/adder/ask", method="POST", root_path=root)
    for name, counted in (("adder", 3), ("planner", 0)):
        path = f"/agents/{name}{HEALTH}"
        answer = await ask(home, root + path, root_path=root)
        assert answer.json()["agent_id"] == name
        assert answer.json()["calibration"]["sample_count"] == counted
        card = await ask(home, f"{root}/agents/{name}{CARD}", root_path=root)
        assert card.header("link") == f'<{root}{path}>; rel="status"'


async def test_origin_and_its_mounted_agents_have_separate_documents() -> None:
    front = AgentHealthMiddleware(origin(Starlette(), added=False), agent_id="front", exclude=["/agents/*"])
    assert await agent_at(front, HEALTH) == "front"
    assert await agent_at(front, "/agents/adder" + HEALTH) == "adder"
    assert await agent_at(front, "/agents/planner" + HEALTH) == "planner"
    await ask(front, "/agents/adder/ask")
    assert outcomes(front) == {"excluded": 3}


@pytest.mark.parametrize("root", ["", "/v1"])
@pytest.mark.parametrize("path", [HEALTH, "/health"])
async def test_probes_of_a_mounted_agent_are_no_interactions_of_the_origin(root: str, path: str) -> None:
    front = AgentHealthMiddleware(origin(Starlette(), added=False), agent_id="front", path=path)
    await agent_at(front, f"{root}/agents/adder{HEALTH}", root_path=root)
    await ask(front, f"{root}/agents/adder{CARD}", root_path=root)
    assert outcomes(front) == {"excluded": 2}
    await ask(front, f"{root}/agents/adder{CARD}", method="POST", root_path=root)
    await ask(front, f"{root}/agents/adder/ask", method="POST", root_path=root)
    assert outcomes(front) == {"answered": 2, "excluded": 2}


async def test_an_agent_mounted_within_a_mounted_app_is_found() -> None:
    home = Starlette(routes=[Mount("/a", routes=[Mount("/b", agent("deep"))])])
    assert await agent_at(home, "/a/b" + HEALTH) == "deep"
    assert await agent_at(home, "/root/a/b" + HEALTH, root_path="/root") == "deep"
