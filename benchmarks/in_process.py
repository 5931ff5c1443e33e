"""Time that the middleware adds to a request, without a network.

The app's coroutines are driven without an event loop, except for the table of peers, some of which need
one. A figure is the difference between a contestant and the bare app.
"""

import asyncio
import functools
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse as FastAPIText
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette_exporter import PrometheusMiddleware

from lifesign import AgentHealthMiddleware

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import Deed, Measured, is_quick, measure, print_table, repeated, verdict
from benchmarks.json_rpc import (
    CALL,
    KIB,
    MCP_CALL,
    MCP_HEADERS,
    MIB,
    answer_of,
    bracket_like,
    slow_bodies,
    text_like,
    too_many_brackets,
    tool_result_of,
)

Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "scheme": "http",
    "path": "/ask",
    "raw_path": b"/ask",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")],
    "client": ("127.0.0.1", 50_000),
    "server": ("127.0.0.1", 8000),
}
TEXT = b"Hello, world!"
JSON_TYPE = b"application/json"
TEXT_TYPE = b"text/plain; charset=utf-8"
EVENT = b'data: {"jsonrpc":"2.0","id":1,"result":{"artifactUpdate":{"taskId":"t","lastChunk":false}}}\r\n\r\n'
CHUNKS = 1000

BARE = "bare"
NO_OP = "no-op async send wrapper"
UNINSPECTING = "ours, max_inspected_bytes=0"
OURS = "ours"


# --- apps -------------------------------------------------------------------------------------------------


def raw_app(body: bytes, content_type: bytes) -> App:
    """Return an ASGI app that reads what it is sent and always answers the same."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def streaming_app(scope: Any, receive: Receive, send: Send) -> None:  # noqa: ARG001 - an ASGI app
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(CHUNKS):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def say_hello(request: Request) -> PlainTextResponse:  # noqa: ARG001 - an endpoint of Starlette
    return PlainTextResponse(TEXT)


def starlette_app() -> Starlette:
    return Starlette(routes=[Route("/ask", say_hello)])


def starlette_rpc_app(body: bytes) -> Starlette:
    async def answer(request: Request) -> Response:
        await request.body()
        return Response(body, media_type="application/json")

    return Starlette(routes=[Route("/ask", answer, methods=["POST"])])


def fastapi_app() -> FastAPI:
    app = FastAPI()

    @app.get("/ask", response_class=FastAPIText)
    async def answer() -> str:
        return TEXT.decode()

    return app


# --- wrappers ---------------------------------------------------------------------------------------------


def no_op(app: App) -> App:
    async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            await send(message)

        await app(scope, receive, send_on)

    return wrapped


def ours(app: App, **settings: Any) -> App:
    return AgentHealthMiddleware(app, agent_id="https://agent.example.com", **settings)


def wrappers_around(app: App) -> dict[str, App]:
    return {BARE: app, NO_OP: no_op(app), UNINSPECTING: ours(app, max_inspected_bytes=0), OURS: ours(app)}


async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


def peers() -> dict[str, App]:
    """Return the middleware of others, each around a Starlette app of its own."""
    instrumented = starlette_app()
    Instrumentator(registry=CollectorRegistry()).instrument(instrumented)
    metrics = MeterProvider(metric_readers=[InMemoryMetricReader()])
    return {
        "prometheus-fastapi-instrumentator": instrumented,
        "starlette_exporter": PrometheusMiddleware(starlette_app()),
        "OpenTelemetry ASGI, metrics only": OpenTelemetryMiddleware(
            starlette_app(), meter_provider=metrics, tracer_provider=NoOpTracerProvider()
        ),
        "BaseHTTPMiddleware, no-op": BaseHTTPMiddleware(starlette_app(), dispatch=pass_on),
    }


# --- driving ----------------------------------------------------------------------------------------------


def caller(
    method: str, call: bytes = CALL, headers: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[dict[str, Any], Receive, Send]:
    """Return scope, `receive` and `send` of a server without a network, none of which ever waits."""
    request = {"type": "http.request", "body": call if method == "POST" else b"", "more_body": False}

    async def receive() -> Message:
        return request

    async def send(message: Message) -> None:
        pass

    return {**SCOPE, "method": method, "headers": [*SCOPE["headers"], *headers]}, receive, send


def by_hand(
    apps: Mapping[str, App],
    method: str = "GET",
    call: bytes = CALL,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> dict[str, Deed]:
    """Return the functions of asking each app, without an event loop."""
    scope, receive, send = caller(method, call, headers)

    def function_of(app: App) -> Deed:
        def ask(times: int) -> None:
            for _ in range(times):
                coroutine: Any = app({**scope}, receive, send)
                try:
                    coroutine.send(None)
                except StopIteration:
                    continue
                raise RuntimeError("the app waits for an event loop")

        return ask

    return {name: function_of(app) for name, app in apps.items()}


def in_loop(apps: Mapping[str, App], runner: asyncio.Runner) -> dict[str, Deed]:
    """Return the functions of asking each app, in the event loop of `runner`."""
    scope, receive, send = caller("GET")

    def function_of(app: App) -> Deed:
        async def ask(times: int) -> None:
            for _ in range(times):
                await app({**scope}, receive, send)

        return lambda times: runner.run(ask(times))

    return {name: function_of(app) for name, app in apps.items()}


# --- tables -----------------------------------------------------------------------------------------------


def show_added(rounds: int) -> None:
    kinds: dict[str, Measured] = {
        "raw ASGI": measure(by_hand(wrappers_around(raw_app(TEXT, TEXT_TYPE))), times=500, rounds=rounds),
        "Starlette": measure(by_hand(wrappers_around(starlette_app())), times=100, rounds=rounds),
        "FastAPI": measure(by_hand(wrappers_around(fastapi_app())), times=25, rounds=rounds),
    }
    rows = []
    for kind, measured in kinds.items():
        rows.append([f"{kind}: {BARE}", f"{measured.median(BARE) / 1000:.2f} in all", "", "", ""])
        for name in (NO_OP, UNINSPECTING, OURS):
            added_us = measured.added(name, BARE) / 1000
            multiple = measured.added(name, BARE) / measured.added(NO_OP, BARE)
            is_judged = name == UNINSPECTING
            rows.append(
                [
                    f"{kind}: {name}",
                    f"{added_us:.2f}",
                    verdict(added_us, at_most=1.5) if is_judged else "",
                    f"{multiple:.1f}",
                    verdict(multiple, at_most=3.5) if is_judged else "",
                ]
            )
    title = "Added to one request that is answered by plain text (one of the two targets must be kept)"
    print_table(title, ["", "added µs", "target", "x the no-op", "or target"], rows)


def show_inspection(rounds: int) -> None:
    answer = answer_of(1024)
    kinds: dict[str, tuple[App, int]] = {
        "raw ASGI": (raw_app(answer, b"application/json"), 200),
        "Starlette": (starlette_rpc_app(answer), 100),
    }
    rows = []
    for kind, (app, times) in kinds.items():
        functions = by_hand(wrappers_around(app), "POST")
        functions["json.loads"] = repeated(lambda: json.loads(answer))
        measured = measure(functions, times=times, rounds=rounds)
        loads_us = measured.median("json.loads") / 1000
        rows.append([f"{kind}: json.loads of the answer", f"{loads_us:.2f}", "", ""])
        rows.append([f"{kind}: {UNINSPECTING}", f"{measured.added(UNINSPECTING, BARE) / 1000:.2f}", "", ""])
        inspection_us = measured.added(OURS, UNINSPECTING) / 1000
        rows.append(
            [
                f"{kind}: {OURS}",
                f"{measured.added(OURS, BARE) / 1000:.2f}",
                f"{inspection_us:.2f}",
                verdict(inspection_us - loads_us, at_most=1) + f" ({inspection_us - loads_us:+.2f})",
            ]
        )
    print_table(
        "Inspection of a JSON-RPC answer of 1 KB",
        ["", "added µs", "of it inspection", "beyond json.loads, target"],
        rows,
    )


def show_mcp(rounds: int) -> None:
    """Show an MCP tool's answer beside an A2A answer of the same size."""
    kinds = {"A2A": (answer_of(1024), CALL), "MCP": (tool_result_of(1024), MCP_CALL)}
    functions: dict[str, Deed] = {}
    for kind, (answer, call) in kinds.items():
        apps = {f"{kind}: {name}": app for name, app in wrappers_around(raw_app(answer, JSON_TYPE)).items()}
        functions |= by_hand(apps, "POST", call, MCP_HEADERS if kind == "MCP" else [])
    measured = measure(functions, times=200, rounds=rounds)
    added_us = {kind: measured.added(f"{kind}: {OURS}", f"{kind}: {BARE}") / 1000 for kind in kinds}
    ratio = added_us["MCP"] / added_us["A2A"]
    rows = [["A2A", f"{added_us['A2A']:.2f}", "", ""]]
    rows.append(["MCP", f"{added_us['MCP']:.2f}", f"{ratio:.2f}", verdict(ratio, at_most=1)])
    print_table("An answer of 1 KB of MCP beside one of A2A", ["", "added µs", "ratio", "target"], rows)


def show_bodies(rounds: int) -> None:
    rows = []
    kinds = {"text": text_like, "brackets": bracket_like, "too many brackets": too_many_brackets}
    for kind, make in kinds.items():
        for name, size in (("64 KiB", 64 * KIB), ("1 MiB", MIB - 2 * KIB)):
            answer = make(size)
            value = json.loads(answer)
            functions = by_hand(wrappers_around(raw_app(answer, b"application/json")), "POST")
            functions["json.dumps"] = repeated(functools.partial(json.dumps, value))
            measured = measure(functions, times=3, rounds=rounds)
            added_us = measured.added(OURS, UNINSPECTING) / 1000
            ratio = added_us * 1000 / measured.median("json.dumps")
            rows.append(
                [
                    f"{kind}, {name}",
                    f"{measured.median('json.dumps') / 1000:.0f}",
                    f"{added_us:.0f}",
                    f"{ratio:.2f}",
                    verdict(ratio, at_most=1.5),
                ]
            )
    print_table(
        "Inspection of longer JSON-RPC answers, beside one json.dumps of the same body",
        ["", "json.dumps µs", "inspection µs", "ratio", "target"],
        rows,
    )


def show_slow_bodies(rounds: int) -> None:
    rows = []
    for name, answer in slow_bodies().items():
        measured = measure(
            by_hand(wrappers_around(raw_app(answer, b"application/json")), "POST"), times=1, rounds=rounds
        )
        added_ms = measured.added(OURS, UNINSPECTING) / 1e6
        rows.append([name, f"{len(answer) / KIB:.0f}", f"{added_ms:.2f}", verdict(added_ms, at_most=10)])
    print_table("Inspection of the answers that take longest", ["", "KiB", "inspection ms", "target"], rows)


def show_long_answer(rounds: int) -> None:
    app = raw_app(answer_of(MIB + 1), b"application/json")
    measured = measure(by_hand(wrappers_around(app), "POST"), times=400, rounds=rounds)
    rows = [
        [name, f"{measured.added(name, BARE) / 1000:.2f}", f"{measured.ratio(name, BARE):.2f}"]
        for name in (NO_OP, UNINSPECTING, OURS)
    ]
    print_table(
        "A JSON-RPC answer beyond max_inspected_bytes (1 MiB)", ["", "added µs", "x bare, raw ASGI"], rows
    )


def show_streams(rounds: int) -> None:
    measured = measure(by_hand(wrappers_around(streaming_app)), times=3, rounds=rounds)
    rows = []
    for name in (NO_OP, UNINSPECTING, OURS):
        added_us = measured.added(name, BARE) / CHUNKS / 1000
        # An inspected event may cost twice what it did when only the last 16 were inspected, at the end.
        target = "" if name == NO_OP else verdict(added_us, at_most=0.25 if name == OURS else 0.12)
        rows.append([name, f"{added_us:.3f}", target, f"{measured.ratio(name, BARE):.2f}"])
    print_table(
        f"A stream of {CHUNKS} events, one to a message",
        ["", "added µs per event", "target", "x bare, raw ASGI"],
        rows,
    )


def show_peers(rounds: int) -> None:
    apps = {**wrappers_around(starlette_app()), **peers()}
    with asyncio.Runner() as runner:
        measured = measure(in_loop(apps, runner), times=25, rounds=rounds)
    rows = [[f"{BARE} Starlette", f"{measured.median(BARE) / 1000:.1f} in all", "", ""]]
    rows += [
        [
            name,
            f"{measured.added(name, BARE) / 1000:.1f}",
            f"{measured.ratio(name, BARE):.2f}",
            f"{measured.added(name, BARE) / measured.added(OURS, BARE):.1f}",
        ]
        for name in list(apps)[1:]
    ]
    print_table(
        "Beside others, around Starlette in an event loop", ["", "added µs", "x bare", "x ours"], rows
    )


def main() -> None:
    rounds = 60 if is_quick(__doc__) else 800
    show_added(rounds)
    show_inspection(rounds)
    show_mcp(rounds)
    show_bodies(max(10, rounds // 10))
    show_slow_bodies(max(5, rounds // 20))
    show_long_answer(rounds)
    show_streams(rounds)
    show_peers(rounds)


if __name__ == "__main__":
    main()
