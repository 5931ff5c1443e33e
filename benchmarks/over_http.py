"""Throughput that is left of a server with the middleware, over HTTP.

Each contestant has one uvicorn worker. All run at the same time and are idle outside their turn; wrk asks
them in turns. On two cores, the servers share one and wrk has the other.
"""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

import uvicorn
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lifesign import AgentHealthMiddleware

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import Measured, in_rounds, is_quick, print_table, verdict
from benchmarks.json_rpc import CALL, answer_of

App = Callable[[Any, Any, Any], Awaitable[None]]

HEALTH_PATH = "/.well-known/agent-health"
CONNECTIONS = 16
PATIENCE_SECONDS = 10
ANSWER = answer_of(1024)

BARE = "bare Starlette"
NO_OP = "no-op async send wrapper"
PARSING = "no-op wrapper that parses the answer"
UNINSPECTING = "ours, max_inspected_bytes=0"
OURS = "ours"
CONSTANT = "health document: constant bytes, raw ASGI"
SAME_HEADERS = "health document: constant bytes, our headers"
DOCUMENT = "health document: ours"
TARGETS = {f"text: {UNINSPECTING}": 0.94, f"1 KB JSON-RPC: {OURS}": 0.88, DOCUMENT: 0.9}
"""Share of the throughput that must be left."""


# --- served -----------------------------------------------------------------------------------------------


async def say_hello(request: Request) -> PlainTextResponse:  # noqa: ARG001 - an endpoint of Starlette
    return PlainTextResponse("Hello, world!")


async def answer_call(request: Request) -> Response:
    await request.body()
    return Response(ANSWER, media_type="application/json")


def bare() -> App:
    return Starlette(routes=[Route("/text", say_hello), Route("/rpc", answer_call, methods=["POST"])])


def no_op() -> App:
    """Return what every wrapper that sees the answer costs at the least."""
    app = bare()

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def send_on(message: Any) -> None:
            await send(message)

        await app(scope, receive, send_on)

    return wrapped


def parsing() -> App:
    """Return what every wrapper costs at the least that looks into an answer and judges nothing."""
    app = bare()

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def send_on(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                from_json(message["body"], allow_inf_nan=False, cache_strings="keys")

        await app(scope, receive, send_on)

    return wrapped


def uninspecting() -> App:
    return AgentHealthMiddleware(bare(), agent_id="https://agent.example.com", max_inspected_bytes=0)


def inspecting() -> App:
    return AgentHealthMiddleware(bare(), agent_id="https://agent.example.com")


def constant(headers: Sequence[str]) -> App:
    """Return an ASGI app that always answers the same bytes; `headers` are "name: value"."""
    pairs = [(name, value) for name, _, value in (header.encode().partition(b": ") for header in headers)]
    body = b"x" * int(dict(pairs)[b"content-length"])

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - an ASGI app
        await send({"type": "http.response.start", "status": 200, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    return app


APPS = {
    "bare": bare,
    "no_op": no_op,
    "parsing": parsing,
    "uninspecting": uninspecting,
    "inspecting": inspecting,
}


def serve(
    app: App,
    *,
    lifespan: Literal["on", "off"] = "off",
    protocol: type[asyncio.Protocol] | str = "httptools",
    proxy_headers: bool = True,
    processes: int = 1,
) -> None:
    """Serve an app on a free port, which is printed, until stdin is closed.

    `proxy_headers`: as uvicorn does by default, and `lifesign serve` does not. Of several processes
    each takes from the same socket; the app must hold no connection yet.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    config = uvicorn.Config(
        app,
        http=protocol,
        loop="uvloop" if find_spec("uvloop") else "asyncio",
        lifespan=lifespan,
        proxy_headers=proxy_headers,
        log_level="warning",
        access_log=False,
    )
    server = uvicorn.Server(config)

    def stop_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    print(listening.getsockname()[1], flush=True)
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    threading.Thread(target=stop_with_parent, daemon=True).start()
    server.run(sockets=[listening])


# --- asked ------------------------------------------------------------------------------------------------


def pinned(command: Sequence[str], core: int) -> list[str]:
    """Return the command bound to one core, if there are several."""
    cores = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(cores[core]), *command] if taskset and len(cores) > 1 else list(command)


@dataclass(frozen=True, slots=True)
class Server:
    """A server process on loopback."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the processor time that it has taken so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(*arguments: str, file: str = __file__, is_pinned: bool = True) -> Iterator[Server]:
    """Start a server process of a benchmark's file, and end it."""
    command = [sys.executable, file, "--serve", *arguments]
    command = pinned(command, 0) if is_pinned else command
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not (port := process.stdout.readline().strip()):
                raise SystemExit(f"the server {' '.join(arguments)} did not start")
            yield Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


class Question:
    """Requests that wrk sends to one server; a sample is the number of answers per second."""

    def __init__(
        self,
        server: Server,
        path: str,
        *,
        seconds: int,
        script: Path | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
        command += ["-s", str(script)] if script else []
        self._command = pinned([*command, server.url + path], 1)
        self._server = server
        self.cpu_us: list[float] = []
        """Processor time of the server for one request, in µs, of every sample."""
        self.p99_ms: list[float] = []

    def __call__(self) -> float:
        """Take a sample."""
        before = self._server.cpu_seconds()
        done = subprocess.run(self._command, capture_output=True, text=True, check=True)
        took = self._server.cpu_seconds() - before
        rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
        requests = re.search(r"(\d+) requests in", done.stdout)
        if not rate or not requests or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
            raise SystemExit(f"wrk had trouble: {' '.join(self._command)}\n{done.stdout}{done.stderr}")
        self.cpu_us.append(took * 1e6 / int(requests[1]))
        p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", done.stdout)
        if p99:
            self.p99_ms.append(float(p99[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[p99[2]])
        return float(rate[1])


def posting(directory: str) -> Path:
    """Write the script that makes wrk send A2A calls."""
    script = Path(directory, "post.lua")
    script.write_text(
        'wrk.method = "POST"\n'
        'wrk.headers["content-type"] = "application/json"\n'
        f"wrk.body = [==[{CALL.decode()}]==]\n"
    )
    return script


def show(*, seconds: int, rounds: int) -> None:
    with ExitStack() as stack:
        script = posting(stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-bench-")))
        plain, passing, reading, quiet, curious = (stack.enter_context(server(name)) for name in APPS)
        with urlopen(quiet.url + HEALTH_PATH) as answer:  # noqa: S310 - our own server
            size_bytes = len(answer.read())
            headers = [f"{name}: {value}" for name, value in answer.headers.items()]
        # These are uvicorn's own, the last as this one question asked for it.
        of_server = ("date:", "server:", "connection:")
        headers = [header for header in headers if not header.startswith(of_server)]
        few = [header for header in headers if header.startswith(("content-type:", "content-length:"))]
        same_size = stack.enter_context(server("constant", *few))
        same_headers = stack.enter_context(server("constant", *headers))
        questions = {
            f"text: {BARE}": Question(plain, "/text", seconds=seconds),
            f"text: {NO_OP}": Question(passing, "/text", seconds=seconds),
            f"text: {UNINSPECTING}": Question(quiet, "/text", seconds=seconds),
            f"text: {OURS}": Question(curious, "/text", seconds=seconds),
            f"1 KB JSON-RPC: {BARE}": Question(plain, "/rpc", seconds=seconds, script=script),
            f"1 KB JSON-RPC: {PARSING}": Question(reading, "/rpc", seconds=seconds, script=script),
            f"1 KB JSON-RPC: {UNINSPECTING}": Question(quiet, "/rpc", seconds=seconds, script=script),
            f"1 KB JSON-RPC: {OURS}": Question(curious, "/rpc", seconds=seconds, script=script),
            CONSTANT: Question(same_size, "/", seconds=seconds),
            SAME_HEADERS: Question(same_headers, "/", seconds=seconds),
            DOCUMENT: Question(quiet, HEALTH_PATH, seconds=seconds),
        }
        measured = in_rounds(questions, rounds=rounds)
    # Steadier than the throughput where others use the machine; the first round warmed up.
    cpu_us = Measured({name: question.cpu_us[1:] for name, question in questions.items()})
    rows = []
    for name in questions:
        base = CONSTANT if name in {SAME_HEADERS, DOCUMENT} else name.partition(":")[0] + ": " + BARE
        row = [name, f"{measured.median(name):.0f}", "", "", f"{cpu_us.median(name):.1f}", ""]
        if name not in {base, CONSTANT}:
            kept = measured.ratio(name, base)
            row[2] = f"{kept:.3f}"
            row[3] = verdict(kept, at_least=TARGETS[name]) if name in TARGETS else ""
            row[5] = f"{cpu_us.ratio(base, name):.3f}"
        rows.append(row)
    print_table(
        f"uvicorn, one worker, {CONNECTIONS} connections kept alive; the document has {size_bytes} bytes",
        ["", "requests/s", "of the bare one", "target", "CPU µs", "bare CPU / ours"],
        rows,
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        name, *headers = sys.argv[2:]
        serve(constant(headers) if headers else APPS[name]())
        return
    is_smoke = is_quick(__doc__)
    if shutil.which("wrk") is None:
        print("wrk is absent: nothing is measured over HTTP (apt-get install wrk)")
        return
    show(seconds=1 if is_smoke else 3, rounds=3 if is_smoke else 15)


if __name__ == "__main__":
    main()
