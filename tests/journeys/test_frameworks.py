"""The examples of the documentation in every framework."""

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from tests.support.asgi_client import App, ask

from lifesign import AgentHealthMiddleware
from lifesign.domain.health.document import HealthDocument

HEALTH = "/.well-known/agent-health"
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
OUTCOMES = "io.github.lifesign.outcomes"


@pytest.fixture(scope="module", autouse=True)
def _examples_importable() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[App]:
    """The app of an example, a new one for each test."""
    name: str = request.param
    if name == "django_agent" and name in sys.modules:
        # Django's settings can be made once in a process; the counts restart with a new wrapper.
        app: Any = sys.modules[name].app
        yield AgentHealthMiddleware(app.app, agent_id=app.health.settings.agent_id)
        return
    yield importlib.import_module(name).app
    if name != "django_agent":
        del sys.modules[name]


APPS = ["starlette_agent", "fastapi_agent", "litestar_agent", "django_agent", "wsgi_agent"]


async def document(app: App, path: str = HEALTH, **scope: Any) -> HealthDocument:
    answer = await ask(app, path, **scope)
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    return HealthDocument.model_validate_json(answer.body)


def outcomes(found: HealthDocument) -> Any:
    assert found.extensions is not None
    return found.extensions[OUTCOMES]


@pytest.mark.parametrize("example", APPS, indirect=True)
async def test_example_app_answers_and_counts_each_request(example: App) -> None:
    for number in range(12):
        answer = await ask(example, "/ask", method="POST", body={"text": str(number)})
        assert answer.status == 200
        assert answer.json() == {"answer": f"You asked: {number}"}
    found = await document(example)
    assert found.health.status == "healthy"
    assert found.calibration is not None
    assert found.calibration.sample_count == 12
    assert found.calibration.response_ratio == 1.0
    assert outcomes(found) == {"answered": 12}


@pytest.mark.parametrize("example", APPS, indirect=True)
async def test_unknown_path_is_not_counted_as_an_interaction(example: App) -> None:
    assert (await ask(example, "/nowhere")).status == 404
    found = await document(example)
    assert found.calibration is not None
    assert found.calibration.sample_count == 0
    assert outcomes(found) == {"no_operation": 1}


@pytest.mark.parametrize("example", APPS, indirect=True)
async def test_health_request_to_an_example_is_not_counted_as_an_interaction(example: App) -> None:
    for _ in range(20):
        await document(example)
    assert outcomes(await document(example)) == {}


@pytest.mark.parametrize("example", ["fastapi_agent"], indirect=True)
async def test_a_mounted_agent_has_its_own_document_and_its_own_counts(example: App) -> None:
    for _ in range(3):
        answer = await ask(example, "/travel/ask", method="POST", body={"text": "x"})
        assert answer.json() == {"answer": "By train: x"}
    await ask(example, "/ask", method="POST", body={"text": "x"})
    front = await document(example)
    travel = await document(example, "/travel" + HEALTH)
    assert front.agent_id == "https://agents.example.com/front"
    # The front counts the look at the other's document as what it excludes, like all of /travel.
    assert outcomes(front) == {"answered": 1, "excluded": 3}
    assert travel.agent_id == "https://agents.example.com/travel"
    assert outcomes(travel) == {"answered": 3}


@pytest.mark.parametrize("root_path", ["", "/api/v2"])
@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
async def test_a_mounted_agent_is_found_below_a_proxys_path(framework: str, root_path: str) -> None:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse({})

    inner = AgentHealthMiddleware(Starlette(routes=[Route("/ask", endpoint)]), agent_id="inner")
    agent: Starlette = Starlette() if framework == "starlette" else FastAPI()
    agent.router.routes.append(Mount("/agents/one", inner))
    outer = AgentHealthMiddleware(agent, agent_id="outer")
    # As in uvicorn: the root path is a prefix of the path.
    assert (await ask(outer, root_path + "/agents/one/ask", root_path=root_path)).status == 200
    found = await document(outer, f"{root_path}/agents/one{HEALTH}", root_path=root_path)
    assert found.agent_id == "inner"
    assert outcomes(found) == {"answered": 1}
    assert (await document(outer, root_path + HEALTH, root_path=root_path)).agent_id == "outer"
    if root_path:
        # As granian and hypercorn have it: the path comes without it.
        assert (await document(outer, HEALTH, root_path=root_path)).agent_id == "outer"


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
async def test_status_404_of_an_endpoint_is_a_caller_fault(framework: str) -> None:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse({"error": "no such task"}, status_code=404)

    agent: Starlette = Starlette() if framework == "starlette" else FastAPI()
    agent.add_route("/tasks/{id}", endpoint)
    app = AgentHealthMiddleware(agent, agent_id="agent")
    assert (await ask(app, "/tasks/7")).status == 404
    assert (await ask(app, "/elsewhere")).status == 404
    assert outcomes(await document(app)) == {"caller_fault": 1, "no_operation": 1}


async def test_litestar_calls_middleware_only_for_known_routes() -> None:
    """The reason why litestar_agent.py wraps from outside. If this fails, its docstring can be simplified."""
    wrap: Any = AgentHealthMiddleware
    app: Any = Litestar([], middleware=[DefineMiddleware(wrap, agent_id="agent")])
    assert (await ask(app, HEALTH)).status == 404


def test_the_queue_worker_reports_its_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "queue_worker.py"), run_name="__main__")
    found = HealthDocument.model_validate_json(capsys.readouterr().out)
    assert found.health.status == "healthy"
    assert outcomes(found) == {"answered": 20, "task_failed": 1}
