"""Load time of dashboard pages with 200,000 agents, and the cost of 1,000 open pages.

One visitor after the other loads a page from a real server. A sample is the time until the last byte, most
of which is the server's. Then 1,000 pages listen while one event happens each second.
"""

import asyncio
import http.client
import json
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from lifesign.dashboard import page_handler
from lifesign.dashboard.routes import Dashboard
from lifesign.domain.access.permissions import Role, StoredKey, digest_of, key_of
from lifesign.domain.access.rate_limit import RateLimit
from lifesign.registry.app import Registry, create_app
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.agents import histories
from lifesign.storage.engine.database import open_database
from lifesign.storage.keys import key_rows

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fleet import Fleet, fill
from benchmarks.interleaved import is_quick, print_table, verdict
from benchmarks.over_http import Server, serve, server
from tests.support.dashboard_sample import month_behind
from tests.support.databases import empty_url
from tests.support.nearest_rank import nearest_rank

AGENTS = 200_000
MOST_P99_MS = 50.0
MOST_PAGE_KB = 100.0
VIEWERS = 1_000
MOST_CORE_PERCENT = 25.0
COORDINATOR = key_of(bytes(32))
AT_REST_S = 7_200.0
"""How long no agent of the fleet is missed: longer than it is looked at."""
PAGES = {
    "the fleet at a glance": "/",
    "agents, the first page": "/agents",
    "agents, by id": "/agents?sort=name",
    "agents that are active, changed last": "/agents?status=active&sort=changed",
    "agents of a capability": "/agents?capability=capability-3",
    "agents, a part of the name": "/agents?q=gent-01234",
    "one agent": "/agents/agent-0000007",
    "one agent, with a month behind it": "/agents/agent-0000008",
    "events": "/events",
}
JUDGED = 2
"""Of the pages: the first ones that people see; the others are shown, and have no target for their time."""
WITH_MONTH = 8
"""The number of the agent of whom each half hour and each day is known."""


def serve_dashboard(url: str) -> None:
    """Serve a registry over this database with its pages open to everyone, as often as they are asked for."""
    page_handler.PAGES_PER_VISITOR = RateLimit(1_000_000, 1_000_000)  # type: ignore[misc]
    settings = RegistrySettings.read(database=url, open_dashboard=True)
    serve(create_app(Registry(settings), Dashboard), lifespan="on")


def add_coordinator(url: str) -> None:
    """Store a key that may let something happen, and what is known of one agent by a month of probes."""

    async def run() -> None:
        database = open_database(url)
        stored = StoredKey(
            key_id="key_bench",
            name="bench",
            role=Role.COORDINATOR,
            digest=digest_of(COORDINATOR),
            created_at_s=0.0,
        )
        await database.write(lambda transaction: key_rows.add(transaction, stored))
        await database.write(
            lambda transaction: histories.store(
                transaction, {WITH_MONTH + 1: month_behind(transaction.now_s, has_gaps=False)}
            )
        )
        await database.close()

    asyncio.run(run())


def page_times(where: Server, path: str, times: int) -> tuple[list[int], int]:
    """Load a page so often over one connection; return how long each took in µs, and how large it was."""
    connection = http.client.HTTPConnection(urlsplit(where.url).netloc, timeout=60)
    took_us: list[int] = []
    size = 0
    # The first ones wait for counts that are kept from then on.
    for number in range(times + 3):
        began_s = time.perf_counter()
        connection.request("GET", path, headers={"accept": "text/html"})
        answer = connection.getresponse()
        size = len(answer.read())
        if answer.status != 200:
            raise SystemExit(f"{path} was answered by {answer.status}")
        if number >= 3:
            took_us.append(round((time.perf_counter() - began_s) * 1e6))
    connection.close()
    return took_us, size


async def watch(where: Server, heard: list[int], number: int) -> None:
    """Be one open page."""
    place = urlsplit(where.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(f"GET /live HTTP/1.1\r\nhost: {place.netloc}\r\n\r\n".encode())
    try:
        while line := await reader.readline():
            heard[number] += line.startswith(b"event: line")
    finally:
        writer.close()


async def live_cost(where: Server, viewers: int, seconds: int) -> tuple[float, float]:
    """Return how much of a core so many open pages cost, in percent, and how many events each heard."""
    heard = [0] * viewers
    watching = [asyncio.create_task(watch(where, heard, number)) for number in range(viewers)]
    await asyncio.sleep(3)
    heard[:] = [0] * viewers
    before_s, began_s = where.cpu_seconds(), time.monotonic()
    for _ in range(seconds):
        await asyncio.to_thread(happen, where)
        await asyncio.sleep(1)
    await asyncio.sleep(1)
    took_s = where.cpu_seconds() - before_s
    share = 100 * took_s / (time.monotonic() - began_s)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    return share, sum(heard) / viewers


def happen(where: Server) -> None:
    """Let one event happen."""
    connection = http.client.HTTPConnection(urlsplit(where.url).netloc, timeout=60)
    headers = {"x-api-key": COORDINATOR, "content-type": "application/json"}
    connection.request("POST", "/api/v1/tasks", json.dumps({"title": "something to do"}), headers)
    if connection.getresponse().status != 201:
        raise SystemExit("nothing happened")
    connection.close()


def show(agents: int, times: int, viewers: int, seconds: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows, live = [], []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-bench-")))
        for kind in ("sqlite", "postgresql"):
            url = empty_url(kind, directory)
            fill(url, Fleet(agents, interval_s=AT_REST_S / 3, unhealthy_after_s=AT_REST_S), with_keys=False)
            add_coordinator(url)
            with server(url, file=__file__) as where:
                for number, (name, path) in enumerate(PAGES.items()):
                    took_us, size = page_times(where, path, times)
                    p99_ms = nearest_rank(took_us, 99) / 1e3
                    kept = verdict(p99_ms, at_most=MOST_P99_MS) if number < JUDGED else ""
                    middle = f"{nearest_rank(took_us, 50) / 1e3:.1f}"
                    rows.append([f"{kind}: {name}", middle, f"{p99_ms:.1f}", f"{size / 1e3:.0f}", kept])
                    if size > MOST_PAGE_KB * 1e3:
                        rows[-1][-1] += f", > {MOST_PAGE_KB:g} KB: MISSED"
                share, heard = asyncio.run(live_cost(where, viewers, seconds))
                kept = verdict(share, at_most=MOST_CORE_PERCENT)
                live.append([f"{kind}: {viewers} open pages", f"{heard:.1f}", f"{share:.1f}", kept])
    print_table(f"{agents} agents, one visitor", ["page", "p50 ms", "p99 ms", "KB", "target"], rows)
    print_table(
        f"One event per second for {seconds} s", ["", "events heard by each", "% of a core", "target"], live
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve_dashboard(sys.argv[2])
        return
    is_smoke = is_quick(__doc__)
    if is_smoke:
        show(20_000, times=20, viewers=100, seconds=3)
    else:
        show(AGENTS, times=300, viewers=VIEWERS, seconds=20)


if __name__ == "__main__":
    main()
