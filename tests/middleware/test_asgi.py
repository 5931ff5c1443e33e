import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.support.asgi_client import ask
from tests.support.hand_clock import HandClock
from tests.support.scripted import (
    EVENTS,
    JSON,
    RECEIVE,
    Server,
    app_of,
    chunk,
    final,
    http_scope,
    outcomes,
    play,
    start,
)

from lifesign import AgentHealthMiddleware
from lifesign.errors import InvalidValue
from lifesign.middleware.asgi import App
from lifesign.middleware.exchange import Receive, Scope, Send

HEALTH = "/.well-known/agent-health"
CARDS = ["/.well-known/agent-card.json", "/.well-known/agent.json"]


def agent(app: App | None = None, **settings: Any) -> AgentHealthMiddleware:
    clock = HandClock()
    answering = app_of([RECEIVE, start(headers=JSON), final(b"{}")], clock)
    return AgentHealthMiddleware(app or answering, agent_id="agent", clock=clock.clock, **settings)


def spy(seen: list[Any]) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen[:] = [scope, receive, send]

    return app


@pytest.mark.parametrize("kind", ["lifespan", "websocket", "mcp", "http.unheard.of"])
@pytest.mark.parametrize("path", ["/ask", HEALTH, CARDS[0]])
async def test_other_scopes_than_http_pass_unchanged(kind: str, path: str) -> None:
    seen: list[Any] = []
    middleware = agent(spy(seen))
    scope = {"type": kind} if kind == "lifespan" else {"type": kind, "path": path}
    server = Server()
    receive, send = server.receive, server.send
    await middleware(scope, receive, send)
    assert all(got is given for got, given in zip(seen, (scope, receive, send), strict=True))
    assert outcomes(middleware) == {}


async def test_exception_from_a_non_http_scope_is_reraised_unchanged() -> None:
    error = KeyError()
    server = Server()
    with pytest.raises(KeyError) as caught:
        await agent(app_of([error], HandClock()))({"type": "lifespan"}, server.receive, server.send)
    assert caught.value is error


async def test_middleware_starts_no_thread_and_no_task() -> None:
    during: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        during.append((threading.enumerate(), asyncio.all_tasks()))
        await send(start(headers=EVENTS))
        await send(chunk())
        await send(final())

    before = (threading.enumerate(), asyncio.all_tasks())
    middleware = agent(app)
    server = Server()
    await middleware({"type": "lifespan"}, server.receive, server.send)
    await ask(middleware, "/ask")
    await ask(middleware, HEALTH)
    assert (threading.enumerate(), asyncio.all_tasks()) == before
    assert all(seen == before for seen in during)


@pytest.mark.parametrize("path", ["/ask", "/metrics", CARDS[0]])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
async def test_app_gets_the_original_scope(path: str, method: str) -> None:
    seen: list[Any] = []
    scope = http_scope(path, method, extensions={"x": {}})
    await play(spy(seen), scope=scope, exclude=["/metrics"])
    assert seen[0] is scope
    assert scope == http_scope(path, method, extensions={"x": {}})


async def test_lifespan_opens_the_windows() -> None:
    middleware = agent()
    assert middleware.health._windows is None
    server = Server()
    await middleware({"type": "lifespan"}, server.receive, server.send)
    assert middleware.health._windows is not None


async def test_failure_to_open_the_windows_does_not_fail_the_startup(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lifesign.middleware.recorder.open_windows", fail)
    seen: list[Any] = []
    server = Server()
    await agent(spy(seen))({"type": "lifespan"}, server.receive, server.send)
    assert seen
    assert len(caplog.records) == 1


def fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("the recorder is broken")


# A recorder that fails fails no request (B16).


@pytest.mark.parametrize("name", ["count", "count_quick_answer"])
@pytest.mark.parametrize("headers", [JSON, EVENTS, {}])
@pytest.mark.parametrize("path", ["/ask", "/excluded", CARDS[0]])
async def test_a_failing_recorder_fails_no_request(
    name: str, path: str, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    middleware = agent(app_of([start(headers=headers), final(b"{}")], HandClock()), exclude=["/excluded"])
    setattr(middleware, name, fail)
    for _ in range(3):
        assert (await ask(middleware, path)).body == b"{}"
    assert len(caplog.records) <= 1
    assert all(record.levelno == logging.ERROR for record in caplog.records)


async def test_failing_recorder_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    middleware = AgentHealthMiddleware(
        app_of([start(500), final()], clock), agent_id="agent", clock=clock.clock
    )
    middleware.count = fail
    for _ in range(5):
        await ask(middleware, "/ask")
    assert len(caplog.records) == 1
    clock.advance(60)
    await ask(middleware, "/ask")
    assert len(caplog.records) == 2


async def test_recorder_failure_does_not_hide_an_exception_of_the_app() -> None:
    error = ValueError()
    middleware = agent(app_of([start(), final(b"x"), error], HandClock()))
    middleware.count = middleware.count_quick_answer = fail
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its identity is checked
        await ask(middleware, "/ask")
    assert caught.value is error
    assert error.__context__ is None


@pytest.mark.parametrize(
    "broken", ["health_reporter.self_report", "recorder.open_windows", "recorder.WindowWriter"]
)
async def test_failure_to_build_the_document_is_served_as_unknown(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"lifesign.middleware.{broken}", fail)
    middleware = agent()
    assert (await ask(middleware, "/ask")).body == b"{}"
    for accept in (b"application/json", b"application/health+json"):
        answer = await ask(middleware, HEALTH, headers=[(b"accept", accept)])
        assert answer.status == 200
        assert b"unknown" in answer.body or answer.json()["status"] == "warn"
    # One line for each thing that could not be done, however often it was tried.
    assert 1 <= len(caplog.records) <= 2


# Uncounted requests (B10).


async def test_health_request_is_not_counted_as_an_interaction() -> None:
    middleware = agent()
    for _ in range(1000):
        await ask(middleware, HEALTH)
    document = middleware.health.document()
    assert document.calibration is not None
    assert document.calibration.sample_count == 0
    assert outcomes(middleware) == {}


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/ask", "/", "/metrics", *CARDS])
async def test_head_and_options_are_not_counted_as_interactions(method: str, path: str) -> None:
    played = await play([start(500), final()], scope=http_scope(path, method))
    assert played.outcomes == {"excluded": 1}


@pytest.mark.parametrize("path", CARDS)
@pytest.mark.parametrize("status", [200, 404, 500])
async def test_card_request_is_not_counted_as_an_interaction(path: str, status: int) -> None:
    played = await play([start(status), final()], scope=http_scope(path, "GET"))
    assert played.outcomes == {"excluded": 1}


async def test_excluded_requests_pass_unchanged() -> None:
    seen: list[Any] = []
    middleware = agent(spy(seen), exclude=["/metrics"])
    server = Server()
    receive, send = server.receive, server.send
    await middleware(http_scope("/metrics"), receive, send)
    assert seen[1] is receive
    assert seen[2] is send
    error = OSError()
    played = await play([error], scope=http_scope("/metrics"), exclude=["/metrics"])
    assert played.error is error
    assert played.outcomes == {"excluded": 1}


@pytest.mark.parametrize(
    ("include", "exclude", "counted", "left_out"),
    [
        (None, (), ["/", "/a", "/a/b"], []),
        (None, ["/metrics"], ["/", "/metrics/x", "/Metrics", "/x/metrics"], ["/metrics"]),
        (None, ["/internal/*"], ["/internal", "/"], ["/internal/", "/internal/a", "/internal/a/b"]),
        (None, ["*.ico", "/a?"], ["/a", "/abc", "/ico"], ["/favicon.ico", "/ab"]),
        (["/a2a", "/a2a/*"], (), ["/a2a", "/a2a/", "/a2a/x/y"], ["/", "/a2ab", "/x/a2a"]),
        (["/a2a/*"], ["/a2a/debug/*"], ["/a2a/x"], ["/a2a/debug/x", "/a2a"]),
        (["*"], ["*"], [], ["/", "/a"]),
    ],
)
async def test_include_and_exclude_are_globs_over_the_path(
    include: list[str] | None, exclude: list[str], counted: list[str], left_out: list[str]
) -> None:
    for paths, outcome in ((counted, "answered"), (left_out, "excluded")):
        for path in paths:
            for root in ("", "/api"):
                # A server may put the root path in front of the path, or leave it out.
                for spelled in {path, root + path}:
                    scope = http_scope(spelled, root_path=root)
                    steps = [start(), final(b"x")]
                    played = await play(steps, scope=scope, include=include, exclude=exclude)
                    assert played.outcomes == {outcome: 1}, spelled


# Context (B30).

_innermost: contextvars.ContextVar[str] = contextvars.ContextVar("innermost", default="unset")


async def value_after(wrap: Callable[[App], App]) -> tuple[str, str]:
    """Return the value that the app saw from outside, and the outside from the app."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(_innermost.get())
        _innermost.set("inner")
        await send(start())
        await send(final(b"x"))

    async def outer() -> str:
        _innermost.set("outer")
        await ask(wrap(app), "/ask")
        return _innermost.get()

    after = await asyncio.create_task(outer())
    return seen[0], after


async def call_next(request: Request, next_: Any) -> Any:
    return await next_(request)


async def test_context_variables_pass_both_ways() -> None:
    assert await value_after(agent) == ("outer", "inner")
    # The control: where a middleware runs the app in a task of its own, they do not.
    assert await value_after(lambda app: BaseHTTPMiddleware(app, call_next)) == ("outer", "outer")


# The card (RFC 8631).


@pytest.mark.parametrize("path", CARDS)
@pytest.mark.parametrize(
    ("root", "spelled", "settings", "link"),
    [
        ("", "", {}, "/.well-known/agent-health"),
        ("/api", "/api", {}, "/api/.well-known/agent-health"),
        ("/api", "", {}, "/api/.well-known/agent-health"),
        ("/api/", "/api", {}, "/api/.well-known/agent-health"),
        ("/api", "/api", {"path": "/health"}, "/api/health"),
    ],
)
async def test_card_response_gets_a_link_to_the_health_document(
    path: str, root: str, spelled: str, settings: dict[str, Any], link: str
) -> None:
    sent = start(headers={"content-type": "application/json", "link": "</terms>; rel=terms"})
    before = {**sent, "headers": list(sent["headers"])}
    scope = http_scope(spelled + path, "GET", root_path=root)
    played = await play([sent, final(b"{}")], scope=scope, **settings)
    answered, body = played.server.sent
    assert answered == {
        **before, "headers": [*before["headers"], (b"link", f'<{link}>; rel="status"'.encode())]
    }  # fmt: skip
    assert sent == before
    assert body == final(b"{}")


@pytest.mark.parametrize("path", ["/ask", "/x/.well-known/agent-card.json", "/.well-known/agent-card.json/"])
async def test_responses_on_other_paths_are_unchanged(path: str) -> None:
    sent = start()
    played = await play([sent, final(b"{}")], scope=http_scope(path, "GET"))
    assert played.server.sent[0] is sent


async def test_card_response_without_headers_gets_the_link() -> None:
    played = await play(
        [{"type": "http.response.start", "status": 200}, final()], scope=http_scope(CARDS[0], "GET")
    )
    assert [name for name, _ in played.server.sent[0]["headers"]] == [b"link"]


async def test_card_response_is_otherwise_unchanged() -> None:
    async def card(request: Request) -> Response:
        return JSONResponse({"name": "Adder"})

    app = Starlette(routes=[Route(CARDS[0], card)])
    bare, wrapped = await ask(app, CARDS[0]), await ask(agent(app), CARDS[0])
    assert wrapped.body == bare.body
    assert wrapped.headers[:-1] == bare.headers


# --- wrapping an app --------------------------------------------------------------------------------------


@pytest.mark.parametrize("app", [None, "app", 7, [None]])
def test_app_that_cannot_be_called_is_refused_at_once(app: Any) -> None:
    with pytest.raises(InvalidValue) as refused:
        AgentHealthMiddleware(app, agent_id="agent")
    assert refused.value.name == "app"


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_add_middleware_also_wraps_routes_added_later(framework: Any) -> None:
    """Wrapping the app first would leave no `app.get` to add a route with."""
    app = framework()
    app.add_middleware(AgentHealthMiddleware, agent_id="agent", refresh_seconds=1)

    async def fail(request: Request) -> Response:
        if request.url.path == "/fail":
            raise LookupError
        return JSONResponse({})

    for path in ("/ask", "/fail"):
        app.add_route(path, fail)
    await ask(app, "/ask")
    with pytest.raises(LookupError):
        await ask(app, "/fail")
    await ask(app, "/none")
    document = (await ask(app, HEALTH)).json()
    counted = document["extensions"]["io.github.lifesign.outcomes"]
    assert counted == {"answered": 1, "raised": 1, "no_operation": 1}


async def test_document_says_whether_bodies_are_inspected() -> None:
    for max_bytes, rule in ((0, "http_status"), (1000, "ratio")):
        document = (await ask(agent(max_inspected_bytes=max_bytes), HEALTH)).json()
        assert document["extensions"]["io.github.lifesign.inspection"]["rule"] == rule
