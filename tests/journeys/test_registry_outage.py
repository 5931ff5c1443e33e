"""Answers while PostgreSQL is stopped, and recovery after it."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.registry_load import Ledger, Load
from tests.support.registry_process import OwnPostgresql, own_postgresql, prepare, registries, with_database

AGENTS = [f"agent-{number}" for number in range(16)]
FACTS_BETWEEN = 20
"""Number of changes acknowledged before each outage and after the last one."""


async def _outage(postgresql: OwnPostgresql, load: Load, seconds: float) -> float:
    """Crash PostgreSQL under load and start it again; return how long it took until all was well."""
    ledger = load.ledger
    await asyncio.to_thread(postgresql.stop)
    ledger.statuses.clear()
    ledger.slowest_s = 0.0
    await asyncio.sleep(seconds)
    # While nothing but the servers themselves can answer.
    await load.until_refused()
    await asyncio.to_thread(postgresql.start)
    began_s = time.monotonic()
    await load.until_acknowledged(1)
    return time.monotonic() - began_s


async def _drill(postgresql: OwnPostgresql, ports: list[int], outages: int, seconds: float) -> None:
    ledger = Ledger()
    recoveries_s, refused, slowest_s = [], 0, 0.0
    async with Load(AGENTS, ports, ledger) as load:
        for _ in range(outages):
            await load.until_acknowledged(FACTS_BETWEEN)
            recoveries_s.append(await _outage(postgresql, load, seconds))
            refused += ledger.statuses[503]
            slowest_s = max(slowest_s, ledger.slowest_s)
        await load.until_acknowledged(FACTS_BETWEEN)
    report = await with_database(postgresql.url, ledger.check)
    assert ledger.unanswered == 0, "no server has stopped"
    print(  # noqa: T201 - the figures of the drill
        f"{outages} outages: {refused} answered 503, slowest {slowest_s:.2f} s, "
        f"well again after at most {max(recoveries_s):.2f} s, {report.events} events"
    )


def _run(directory: Path, outages: int, seconds: float) -> None:
    with own_postgresql() as postgresql:
        prepare(postgresql.url, AGENTS)
        with registries(postgresql.url, directory, 2) as servers:
            asyncio.run(_drill(postgresql, [server.port for server in servers], outages, seconds))


@pytest.mark.fault
def test_stopped_postgresql_gives_503_until_it_returns(tmp_path: Path) -> None:
    _run(tmp_path, outages=1, seconds=2)


@pytest.mark.fault
@pytest.mark.long
def test_ten_outages_of_postgresql_lose_nothing(tmp_path: Path) -> None:
    _run(tmp_path, outages=10, seconds=5)
