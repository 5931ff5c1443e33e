"""Acknowledged writes survive killed servers and several servers on one database."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.support.databases import bare_url
from tests.support.registry_load import Ledger, Load
from tests.support.registry_process import PATIENT, kill, prepare, registries, registry, with_database
from tests.support.servers import Server, free_port

AGENTS = [f"agent-{number}" for number in range(16)]
FACTS_PER_LIFE = (1, 60)
"""Between two kills; the first ones are those of a server that has only just begun."""


async def _load_for(seconds: float, ports: list[int], ledger: Ledger) -> None:
    async with Load(AGENTS, ports, ledger):
        await asyncio.sleep(seconds)


async def _load_until_killed(server: Server, ledger: Ledger) -> None:
    """Kill the server once it has acknowledged some more changes, in the middle of others."""
    async with Load(AGENTS, [server.port], ledger) as load:
        await load.until_acknowledged(random.randint(*FACTS_PER_LIFE))  # noqa: S311 - no secret
        await asyncio.to_thread(kill, server)


def _kill_over_and_over(url: str, directory: Path, kills: int) -> None:
    """Load a server, kill it in the middle, and look at once whether all is there that it promised."""
    prepare(url, AGENTS)
    ledger, port = Ledger(), free_port()
    events = 0
    for _ in range(kills):
        with registry(url, directory, port=port) as server:
            asyncio.run(_load_until_killed(server, ledger))
        events = asyncio.run(with_database(url, ledger.check)).events
    with registry(url, directory, port=port):
        asyncio.run(_load_for(0.5, [port], ledger))
    asyncio.run(with_database(url, ledger.check))
    print(  # noqa: T201 - the figures of the drill
        f"{kills} kills: {len(ledger.facts)} acknowledged changes, {events} events, "
        f"{ledger.unanswered} requests unanswered, slowest {ledger.slowest_s:.2f} s"
    )


@pytest.mark.fault
@pytest.mark.both_databases
def test_killed_server_loses_no_acknowledged_write(database_kind: str, tmp_path: Path) -> None:
    _kill_over_and_over(bare_url(database_kind, tmp_path), tmp_path, kills=2)


@pytest.mark.fault
@pytest.mark.long
def test_server_killed_fifty_times_loses_no_acknowledged_write(database_kind: str, tmp_path: Path) -> None:
    _kill_over_and_over(bare_url(database_kind, tmp_path), tmp_path, kills=50)


def _share_one_file(directory: Path, seconds: float) -> None:
    url = bare_url("sqlite", directory)
    prepare(url, AGENTS)
    ledger = Ledger()
    with registries(url, directory, 2, settings=PATIENT) as servers:
        asyncio.run(_load_for(seconds, [server.port for server in servers], ledger))
        report = asyncio.run(with_database(url, ledger.check))
    assert not [status for status in ledger.statuses if status >= 500], ledger.statuses
    assert not ledger.unanswered
    print(  # noqa: T201 - the figures of the drill
        f"{seconds:g} s at two servers: {ledger.statuses.total()} requests, {report.events} events, "
        f"slowest {ledger.slowest_s:.2f} s"
    )


@pytest.mark.fault
def test_two_servers_on_one_sqlite_file_lose_no_write(tmp_path: Path) -> None:
    _share_one_file(tmp_path, 1.5)


@pytest.mark.fault
@pytest.mark.long
def test_two_servers_on_one_sqlite_file_lose_no_write_for_a_minute(tmp_path: Path) -> None:
    _share_one_file(tmp_path, 60)
