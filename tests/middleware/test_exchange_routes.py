from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from tests.support.scripted import final, http_scope, outcomes, play, start

from lifesign import AgentHealthMiddleware


async def no_such_task(request: Request) -> Response:
    return PlainTextResponse("no such task", status_code=404)


async def raise_404(request: Request) -> Response:
    raise StarletteHTTPException(404)


ROUTES: list[Any] = [Route("/tasks/{id}", no_such_task), Route("/jobs/{id}", raise_404)]


def fastapi_agent() -> FastAPI:
    agent = FastAPI()
    router = APIRouter()

    @agent.get("/tasks/{task_id}")
    async def find_task(task_id: str) -> None:
        raise HTTPException(404)

    @router.get("/jobs/{job_id}")
    def find_job(job_id: str) -> None:
        raise HTTPException(404)

    agent.include_router(router)
    return agent


async def surround(request: Request, call_next: Any) -> Any:
    return await call_next(request)


def mounted_in_fastapi(agent: Any) -> FastAPI:
    home = FastAPI()
    home.mount("/one", agent)
    return home


AGENTS: dict[str, Callable[[], Any]] = {
    "starlette": lambda: Starlette(routes=ROUTES),
    "fastapi": fastapi_agent,
    "within middleware": lambda: BaseHTTPMiddleware(Starlette(routes=ROUTES), surround),
    "with middleware": lambda: Starlette(routes=ROUTES, middleware=[Middleware(GZipMiddleware)]),
}
HOMES: dict[str, Callable[[Any], Any]] = {
    "mounted": lambda agent: Starlette(routes=[Mount("/one", agent)]),
    "mounted twice": lambda agent: Starlette(routes=[Mount("/one", Router([Mount("/", agent)]))]),
    "mounted in middleware": lambda agent: Starlette(routes=[Mount("/one", GZipMiddleware(agent))]),
    "mounted with middleware": lambda agent: Starlette(
        routes=[Mount("/one", agent, middleware=[Middleware(GZipMiddleware)])]
    ),
    "mounted in fastapi": mounted_in_fastapi,
    "by host": lambda agent: Starlette(routes=[Mount("/one", Router([Host("agent.test", agent)]))]),
}


async def outcome_at(app: Any, path: str, **scope: Any) -> str:
    return (await play(app, scope=http_scope(path, "GET", **scope))).outcome


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("path", ["/tasks/7", "/jobs/7"])
async def test_status_404_of_a_matched_route_is_a_caller_fault(agent: str, path: str) -> None:
    assert await outcome_at(AGENTS[agent](), path) == "caller_fault"


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("path", ["/", "/wp-login.php", "/tasks", "/tasks/7/x"])
async def test_status_404_without_a_matched_route_is_unmatched(agent: str, path: str) -> None:
    assert await outcome_at(AGENTS[agent](), path) == "no_operation"


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("agent", AGENTS)
async def test_status_404_of_a_matched_route_of_a_mounted_app_is_a_caller_fault(
    agent: str, home: str
) -> None:
    assert await outcome_at(HOMES[home](AGENTS[agent]()), "/one/tasks/7") == "caller_fault"


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("path", ["/one/wp-login.php", "/two", "/one"])
async def test_status_404_without_a_matched_route_of_a_mounted_app_is_unmatched(
    agent: str, home: str, path: str
) -> None:
    app = HOMES[home](AGENTS[agent]())
    played = await play(app, scope=http_scope(path, "GET"))
    if played.server.sent[0]["status"] == 307:
        return
    assert played.outcome == "no_operation"


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
@pytest.mark.parametrize(
    ("path", "outcome"), [("/one/tasks/7", "caller_fault"), ("/one/wp-login.php", "no_operation")]
)
async def test_a_mounted_agent_that_is_wrapped_itself_counts_the_same(
    agent: str, framework: str, path: str, outcome: str
) -> None:
    """Each agent of an origin has its own document: the mount does not show its routes."""
    inner = AgentHealthMiddleware(AGENTS[agent](), agent_id="inner")
    home: Any = Starlette() if framework == "starlette" else FastAPI()
    home.mount("/one", inner)
    played = await play(home, scope=http_scope(path, "GET"))
    assert outcomes(inner) == {outcome: 1}
    assert played.outcome == outcome


async def test_a_mounted_agent_that_adds_the_middleware_itself_counts_the_same() -> None:
    agent = Starlette(routes=ROUTES, middleware=[Middleware(AgentHealthMiddleware, agent_id="inner")])
    home = Starlette(routes=[Mount("/one", agent)])
    assert await outcome_at(home, "/one/wp-login.php") == "no_operation"
    assert await outcome_at(home, "/one/tasks/7") == "caller_fault"


async def test_missing_static_file_is_unmatched(tmp_path: Path) -> None:
    """Files have no routes; else any scanner of a mounted folder would decide an agent's status."""
    (tmp_path / "there.txt").write_text("here")
    for home in (Starlette(), FastAPI()):
        home.mount("/files", StaticFiles(directory=tmp_path))
        assert await outcome_at(home, "/files/there.txt") == "answered"
        assert await outcome_at(home, "/files/wp-login.php") == "no_operation"


@pytest.mark.parametrize("agent", AGENTS)
async def test_method_without_a_route_is_unmatched(agent: str) -> None:
    played = await play(AGENTS[agent](), scope=http_scope("/tasks/7", "DELETE"))
    assert played.server.sent[0]["status"] == 405
    assert played.outcome == "no_operation"


async def test_without_route_information_a_404_counts_as_unmatched() -> None:
    assert await outcome_at([start(404), final(b"no")], "/tasks/7") == "no_operation"
