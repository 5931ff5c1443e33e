"""Heartbeats per second of one server process.

The server checks each heartbeat (key, body), stores it and commits it before it answers. A bare Starlette
route that reads the same body and returns it takes turns with it in the same run.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fleet import Fleet, fill, new_url
from benchmarks.interleaved import Measured, in_rounds, is_quick, print_table, verdict
from benchmarks.over_http import Question, serve, server

from lifesign.registry.app import Registry, create_app
from lifesign.registry.settings import RegistrySettings
from lifesign.serving.connection_limits import BoundedProtocol

FLEET = 10_000
CONNECTIONS = 256
TARGET = 0.5
BARE = "bare Starlette"


async def echo(request: Request) -> Response:
    return Response(await request.body(), media_type="application/json")


def bare() -> Starlette:
    return Starlette(routes=[Route("/api/v1/agents/{agent_id}/heartbeat", echo, methods=["POST"])])


def beating(directory: str, fleet: Fleet) -> Path:
    """Write the script that makes wrk send heartbeats of the whole fleet, one agent after another."""
    script = Path(directory, "beat.lua")
    known = Path(directory, "fleet.txt")
    known.write_text(
        "".join(f"{fleet.agent_id(number)} {fleet.key(number)}\n" for number in range(fleet.size))
    )
    script.write_text(f"""
local requests, next_one = {{}}, 0
function init(args)
  local now = os.date("!%Y-%m-%dT%H:%M:%SZ")
  for line in io.lines("{known}") do
    local id, key = line:match("(%S+) (%S+)")
    local load = #requests % 5
    local body = '{{"status":"active","current_load":' .. load ..
      ',"tasks_in_progress":[],"client_timestamp":"' .. now .. '"}}'
    requests[#requests + 1] = wrk.format("POST", "/api/v1/agents/" .. id .. "/heartbeat",
      {{["x-api-key"] = key, ["content-type"] = "application/json"}}, body)
  end
end
function request()
  next_one = next_one % #requests + 1
  return requests[next_one]
end
""")
    return script


@contextmanager
def filled(kind: str, fleet: Fleet) -> Iterator[str]:
    """A database of this kind with the fleet in it."""
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
        url = new_url(kind, Path(directory))
        fill(url, fleet)
        yield url


def show(*, seconds: int, rounds: int) -> None:
    fleet = Fleet(FLEET)
    with ExitStack() as stack:
        script = beating(stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-bench-")), fleet)
        questions = {BARE: stack.enter_context(server("bare", file=__file__))}
        for kind in ("sqlite", "postgresql"):
            url = stack.enter_context(filled(kind, fleet))
            questions[kind] = stack.enter_context(server(url, file=__file__))
        asked = {
            name: Question(where, "/", seconds=seconds, script=script, connections=CONNECTIONS)
            for name, where in questions.items()
        }
        measured = in_rounds(asked, rounds=rounds)
    cpu_us = Measured({name: question.cpu_us[1:] for name, question in asked.items()})
    p99_ms = Measured({name: question.p99_ms[1:] for name, question in asked.items()})
    print_table(
        f"heartbeats of {FLEET} agents to one process, {CONNECTIONS} connections kept alive",
        ["", "requests/s", "of the bare one", "target", "p99 ms", "CPU µs"],
        [
            [
                name,
                f"{measured.median(name):.0f}",
                f"{measured.ratio(name, BARE):.3f}",
                verdict(measured.ratio(name, BARE), at_least=TARGET) if name != BARE else "",
                f"{p99_ms.median(name):.1f}",
                f"{cpu_us.median(name):.1f}",
            ]
            for name in asked
        ],
    )


def serve_registry(url: str, processes: int = 1) -> None:
    """Serve a registry over this database, with no limit on how often a key may ask."""
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as state:
        settings = RegistrySettings.read(
            database=url, state_dir=state, requests_per_second=1_000_000, request_burst=1_000_000
        )
        app = create_app(Registry(settings))
        serve(app, lifespan="on", protocol=BoundedProtocol, proxy_headers=False, processes=processes)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        which = sys.argv[2]
        if which == "bare":
            serve(bare(), proxy_headers=False)
            return
        serve_registry(which)
        return
    is_smoke = is_quick(__doc__)
    if shutil.which("wrk") is None:
        print("wrk is absent: nothing is measured over HTTP (apt-get install wrk)")
        return
    show(seconds=2 if is_smoke else 5, rounds=3 if is_smoke else 9)


if __name__ == "__main__":
    main()
