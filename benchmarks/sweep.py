"""Duration of a sweep over a million agents, a thousand of which miss their heartbeats at once.

Each of the thousand holds a lease and dies in two steps, which makes two events for the agent and one for
its lease. Beside it, the steady state: agents that send heartbeats also become due, since a heartbeat does
not move their deadline, and the sweep puts them off.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import insert, text

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from benchmarks.fleet import Fleet, fill, new_url
from benchmarks.interleaved import is_quick, print_table
from tests.support.databases import KINDS, WoundClock

from lifesign.domain.lifecycle.verdict_suspension import MonitorPolicy
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.sweep import Sweeper
from lifesign.storage.agents import heartbeats
from lifesign.storage.agents.heartbeats import StoredHeartbeat
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.table_definitions import leases
from lifesign.storage.engine.transaction import Database, Transaction

SILENT = 1_000
DUE = 2_400
BEATS = 500
"""Heartbeats in one group, one after the other while the sweep runs."""
AT_REST_S = 7_200.0
"""How long no agent of the fleet is missed: longer than it takes to make all of them."""
LONG_AGO_S = 100_000.0
"""When the silent were last heard: they are dead at once."""
COLUMNS = ["database", "a thousand die, s", "while others beat, s", "2,400 are put off, s"]


async def make_silent(database: Database, first: int) -> None:
    """Let some agents be silent for too long, each with a lease."""

    def change(transaction: Transaction) -> None:
        now_s, last = transaction.now_s, first + SILENT
        whom = {"first": first, "last": last, "at_s": now_s - LONG_AGO_S, "now_s": now_s}
        connection = transaction.connection
        connection.execute(
            text("UPDATE heartbeats SET last_heartbeat_at_s = :at_s WHERE agent > :first AND agent <= :last"),
            whom,
        )
        connection.execute(
            text("UPDATE agents SET assess_at_s = :now_s WHERE id > :first AND id <= :last"), whom
        )
        held = [
            {
                "number": number,
                "resource": f"task:{number}",
                "lease_id": f"lease_{number}_1",
                "holder": f"agent-{number - 1:07}",
                "holder_incarnation": 1,
                "token": 1,
                "acquired_at_s": now_s,
                "expires_at_s": now_s + 3600,
            }
            for number in range(first + 1, last + 1)
        ]
        connection.execute(insert(leases), held)

    await database.write(change)


async def make_due(database: Database, first: int) -> None:
    """Let some agents that have just beaten be due."""

    def change(transaction: Transaction) -> None:
        now_s = transaction.now_s
        transaction.connection.execute(
            text("UPDATE agents SET assess_at_s = :now_s WHERE id > :first AND id <= :last"),
            {"first": first, "last": first + DUE, "now_s": now_s},
        )

    await database.write(change)


async def timed(sweeper: Sweeper) -> float:
    began_s = time.perf_counter()
    await sweeper.sweep_once()
    return time.perf_counter() - began_s


async def keep_beating(database: Database, first: int, at_s: float) -> None:
    """Store one group of heartbeats after the other, until cancelled."""
    stored = [
        StoredHeartbeat(first + number, at_s, 1, None, is_drifting=False) for number in range(1, BEATS + 1)
    ]
    while True:
        await database.write(lambda transaction: heartbeats.store(transaction, stored))


async def measured(url: str, agents: int, rounds: int) -> list[float]:
    clock = WoundClock(time.time())
    database = open_database(url, clock=clock.now_s)
    policy = MonitorPolicy(min_exits=1_000_000)
    sweeper = Sweeper(database, RegistrySettings.read(), clock.now_s, policy=policy)
    alone_s, beating_s, due_s = [], [], []
    await sweeper.sweep_once()
    for number in range(rounds):
        first = number * (2 * SILENT + DUE)
        await make_silent(database, first)
        alone_s.append(await timed(sweeper))
        await make_silent(database, first + SILENT)
        beating = asyncio.create_task(keep_beating(database, agents - BEATS, clock.at_s))
        beating_s.append(await timed(sweeper))
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await make_due(database, first + 2 * SILENT)
        due_s.append(await timed(sweeper))
    await database.close()
    return [statistics.median(several) for several in (alone_s, beating_s, due_s)]


def show(*, agents: int, rounds: int) -> None:
    rows = []
    for kind in KINDS:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-bench-"))
            url = new_url(kind, Path(directory))
            fill(url, Fleet(agents, interval_s=AT_REST_S / 3, unhealthy_after_s=AT_REST_S), with_keys=False)
            figures = asyncio.run(measured(url, agents, rounds))
            rows.append([kind, *(f"{seconds:.3f}" for seconds in figures)])
    print_table(f"a sweep over {agents} agents, median of {rounds}", COLUMNS, rows)


def main() -> None:
    if is_quick(__doc__):
        show(agents=10_000, rounds=2)
    else:
        show(agents=1_000_000, rounds=5)


if __name__ == "__main__":
    main()
