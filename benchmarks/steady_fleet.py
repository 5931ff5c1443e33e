"""One server process with a fleet of 181,666 agents that send a heartbeat every 30 s.

The census that started this project found that many agents. One client sends each agent's heartbeat when it
is due, 6,056 per second, while the sweep runs. Afterwards no agent may have been unhealthy. The heartbeat
timeout is 60 s here instead of 90 s, so that one minute is enough to see a wrong verdict.
"""

import asyncio
import json
import sys
import time
from collections import deque
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fleet import Fleet
from benchmarks.heartbeats import filled, serve_registry
from benchmarks.interleaved import is_quick, print_table
from benchmarks.listing import READER, add_reader
from benchmarks.over_http import Server, server

AGENTS = 181_666
INTERVAL_SECONDS = 30
CONNECTIONS = 128
TICK_SECONDS = 0.01


class Beater(asyncio.Protocol):
    """One connection that is kept alive: a heartbeat goes out, its answer comes back, then the next one."""

    def __init__(self, free: "deque[Beater]", latencies_s: list[float], failures: list[bytes]) -> None:
        self._free = free
        self._latencies_s = latencies_s
        self._failures = failures
        self._due_s = 0.0
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = transport
        self._free.append(self)

    def send_heartbeat(self, request: bytes, due_s: float) -> None:
        """Send a heartbeat; its latency counts from when it was due."""
        self._due_s = due_s
        self._transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Take the answer, which may come in two pieces: its head, and its JSON."""
        self._answer += data
        if not data.endswith(b"}"):
            return
        self._latencies_s.append(time.perf_counter() - self._due_s)
        if not self._answer.startswith(b"HTTP/1.1 200"):
            self._failures.append(self._answer[:200])
        self._answer = b""
        self._free.append(self)


def request_of(fleet: Fleet, number: int, now: str, host: str) -> bytes:
    body = json.dumps(
        {"status": "active", "current_load": number % 5, "tasks_in_progress": [], "client_timestamp": now}
    )
    return (
        f"POST /api/v1/agents/{fleet.agent_id(number)}/heartbeat HTTP/1.1\r\nHost: {host}\r\n"
        f"X-API-Key: {fleet.key(number)}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def beat_all(fleet: Fleet, url: str, seconds: float) -> tuple[list[float], list[bytes], int]:
    """Send what is due; return latencies, failures, and how many were left unsent."""
    host = url.removeprefix("http://")
    address, _, port = host.partition(":")
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    requests = [request_of(fleet, number, now, host) for number in range(fleet.size)]
    free: deque[Beater] = deque()
    latencies_s: list[float] = []
    failures: list[bytes] = []
    loop = asyncio.get_running_loop()
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Beater(free, latencies_s, failures), address, int(port))
    await asyncio.sleep(0.1)
    spacing_s = INTERVAL_SECONDS / fleet.size
    began_s = time.perf_counter()
    sent, last = 0, int(seconds / spacing_s)
    while sent < last and time.perf_counter() < began_s + seconds + INTERVAL_SECONDS:
        while free and sent < last and (due_s := began_s + sent * spacing_s) <= time.perf_counter():
            free.popleft().send_heartbeat(requests[sent % fleet.size], due_s)
            sent += 1
        await asyncio.sleep(TICK_SECONDS if began_s + sent * spacing_s > time.perf_counter() else 0)
    await asyncio.sleep(1)
    return latencies_s, failures, last - sent


def unhealthy(where: Server) -> int:
    """Return how many the registry takes for silent."""
    request = Request(  # noqa: S310 - our own server
        f"{where.url}/api/v1/agents?status=unhealthy,dead&limit=1", headers={"X-API-Key": READER}
    )
    with urlopen(request) as answer:  # noqa: S310 - our own server
        return int(json.load(answer)["total"])


def show(agents: int, seconds: float) -> bool:
    fleet = Fleet(agents, interval_s=INTERVAL_SECONDS, unhealthy_after_s=2 * INTERVAL_SECONDS)
    rows = []
    is_good = True
    for kind in ("sqlite", "postgresql"):
        with ExitStack() as stack:
            url = stack.enter_context(filled(kind, fleet))
            add_reader(url)
            where = stack.enter_context(server(url, file=__file__))
            before_s, began_s = where.cpu_seconds(), time.perf_counter()
            latencies_s, failures, unsent = asyncio.run(beat_all(fleet, where.url, seconds))
            share = (where.cpu_seconds() - before_s) / (time.perf_counter() - began_s)
            silent = unhealthy(where)
        if failures:
            print(f"{kind}: {failures[0]!r}", file=sys.stderr)
        latencies_s.sort()
        is_good = is_good and not (failures or unsent or silent)
        rows.append(
            [
                kind,
                f"{len(latencies_s) / seconds:.0f}",
                f"{latencies_s[len(latencies_s) // 2] * 1e3:.1f}",
                f"{latencies_s[int(len(latencies_s) * 0.99)] * 1e3:.1f}",
                f"{share:.0%}",
                str(len(failures)),
                str(unsent),
                str(silent),
            ]
        )
    print_table(
        f"{agents} agents, one heartbeat each per {INTERVAL_SECONDS} s, for {seconds:g} s",
        ["", "heartbeats/s", "p50 ms", "p99 ms", "of a core", "failed", "unsent", "falsely unhealthy"],
        rows,
    )
    return is_good


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        serve_registry(sys.argv[2])
        return 0
    is_smoke = is_quick(__doc__)
    return 0 if show(AGENTS // 10 if is_smoke else AGENTS, 5 if is_smoke else 60) else 1


if __name__ == "__main__":
    sys.exit(main())
