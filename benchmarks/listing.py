"""Time to find the agents that can do some work, among 200,000 agents.

One connection asks a real server by capability, status and free capacity, then repeats it with as many dead
agents beside the living ones. No agent sends heartbeats or times out meanwhile.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from lifesign.domain.access.permissions import Role, StoredKey, digest_of, key_of
from lifesign.storage.engine.database import open_database
from lifesign.storage.keys import key_rows

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fleet import CAPABILITIES, LOADS, Fleet, fill, new_url
from benchmarks.heartbeats import serve_registry
from benchmarks.interleaved import is_quick, print_table, verdict
from benchmarks.over_http import Question, server

ALIVE = 200_000
MOST_P99_MS = 20.0
READER = key_of(bytes(32))
QUERIES = {
    f"capability (1 of {CAPABILITIES}), active, free capacity": (
        "capabilities=capability-3&status=active&min_available_capacity=2",
    ),
    "the same of another capability each time": tuple(
        f"capabilities=capability-{able}&status=active&min_available_capacity={free}"
        for free in range(3)
        for able in range(CAPABILITIES)
        if able % LOADS < LOADS - 1
    ),
    "two capabilities": ("capabilities=capability-3,capability-4&min_available_capacity=1",),
    "pool of a role": ("role_id=role-7",),
    "all who are active": ("status=active",),
    "a capability that all have, free capacity": ("capabilities=any&min_available_capacity=2",),
}
"""Sent in turns: the same query within five seconds gets the total that was counted before."""
JUDGED = 2
"""Queries with a target. The others are shown without one: most of their cost is the total of all matches."""
AT_REST_S = 7_200.0
"""Heartbeat timeout of the fleet: longer than the benchmark runs."""


def add_reader(url: str) -> None:
    """Store a key that may list."""

    async def run() -> None:
        database = open_database(url)
        stored = StoredKey(
            key_id="key_reader", name="reader", role=Role.READER, digest=digest_of(READER), created_at_s=0.0
        )
        await database.write(lambda transaction: key_rows.add(transaction, stored))
        await database.close()

    asyncio.run(run())


def asking(script: Path, queries: Sequence[str]) -> Path:
    """Write the script that makes wrk ask these in turns."""
    paths = ", ".join(f'"/api/v1/agents?{query}"' for query in queries)
    script.write_text(f"""
wrk.headers["x-api-key"] = "{READER}"
local paths, next_one = {{ {paths} }}, 0
function request()
  next_one = next_one % #paths + 1
  return wrk.format("GET", paths[next_one])
end
""")
    return script


def show(alive: int, seconds: int) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-bench-"))
        scripts = [
            asking(Path(directory, f"ask-{number}.lua"), queries)
            for number, queries in enumerate(QUERIES.values())
        ]
        rows = []
        for kind in ("sqlite", "postgresql"):
            p99_ms: dict[int, list[float]] = {}
            for dead in (0, alive):
                url = new_url(kind, Path(directory))
                fill(
                    url,
                    Fleet(alive, interval_s=AT_REST_S / 3, unhealthy_after_s=AT_REST_S, dead=dead),
                    with_keys=False,
                )
                add_reader(url)
                with server(url, file=__file__) as where:
                    asked = [
                        Question(where, "/", seconds=seconds, script=script, connections=1)
                        for script in scripts
                    ]
                    # Of its first seconds a server needs some for itself.
                    Question(where, "/", seconds=3, script=scripts[0], connections=1)()
                    for question in asked:
                        question()
                    p99_ms[dead] = [question.p99_ms[0] for question in asked]
            for number, name in enumerate(QUERIES):
                figure = p99_ms[0][number]
                rows.append(
                    [
                        f"{kind}: {name}",
                        f"{figure:.1f}",
                        f"{p99_ms[alive][number]:.1f}",
                        verdict(max(figure, p99_ms[alive][number]), at_most=MOST_P99_MS)
                        if number < JUDGED
                        else "",
                    ]
                )
    print_table(
        f"{alive} agents alive, pages of 100 with their total",
        ["", "p99 ms", "with as many dead", "target"],
        rows,
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve_registry(sys.argv[2])
        return
    is_smoke = is_quick(__doc__)
    if shutil.which("wrk") is None:
        print("wrk is absent: nothing is measured over HTTP (apt-get install wrk)")
        return
    show(20_000 if is_smoke else ALIVE, 2 if is_smoke else 10)


if __name__ == "__main__":
    main()
