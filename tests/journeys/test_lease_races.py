from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.databases import create_tables, empty_url
from tests.support.event_logs import verify
from tests.support.keys_without_events import add_without_event
from tests.support.lease_racer import PATIENCE_SECONDS, RESOURCES, key_of_racer, race
from tests.support.racing import racing_context
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role, StoredKey, digest_of
from lifesign.domain.events.replay import Replay
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log

PROCESSES = 4


async def _prepare(url: str) -> None:
    """Register an agent for each racer, with a key that the racer knows."""
    database = open_database(url)
    try:
        if url.startswith("sqlite"):
            await create_tables(database)
        await _register(database)
    finally:
        await database.close()


async def _register(database: Database) -> None:
    from tests.support.databases import WoundClock  # noqa: PLC0415

    api = RegistryApi(database, WoundClock())
    await api.add_keys()
    for number in range(PROCESSES):
        await api.register(f"racer-{number}")

    def store(transaction: Transaction) -> None:
        for number in range(PROCESSES):
            stored = StoredKey(
                key_id=f"key_{number}",
                name="racer",
                role=Role.AGENT,
                agent_id=f"racer-{number}",
                digest=digest_of(key_of_racer(number)),
                created_at_s=0,
            )
            add_without_event(transaction, stored)

    await database.write(store)


async def _check_log(url: str) -> None:
    """Replay the event log: it must not contradict itself."""
    database = open_database(url)

    def check(transaction: Transaction) -> None:
        replay = Replay()
        last = event_log.last_sequence(transaction)
        verify(event_log.between(transaction, 1, last))
        for event in event_log.between(transaction, 1, last):
            replay.apply(event)

    try:
        await database.read(check)
    finally:
        await database.close()


async def _race(url: str, races: int) -> None:
    await _prepare(url)
    context = racing_context()
    with context.Manager() as shared, ProcessPoolExecutor(PROCESSES, mp_context=context) as racers:
        start = shared.Barrier(PROCESSES)
        running = [racers.submit(race, url, number, races, start) for number in range(PROCESSES)]
        won = [victory for racer in running for victory in racer.result(PATIENCE_SECONDS * 10)]
    assert len(won) == len({which for which, _ in won}) == races
    for number in range(RESOURCES):
        tokens = [
            token
            for _, token in sorted(
                (int(which.split()[1]), token) for which, token in won if which.endswith(f":{number}")
            )
        ]
        assert all(earlier < later for earlier, later in pairwise(tokens))
    await _check_log(url)


@pytest.mark.both_databases
async def test_a_race_of_several_processes_has_one_winner(database_kind: str, tmp_path: Path) -> None:
    await _race(empty_url(database_kind, tmp_path), races=100)


@pytest.mark.long
async def test_a_thousand_races_of_several_processes_have_one_winner_each(
    database_kind: str, tmp_path: Path
) -> None:
    await _race(empty_url(database_kind, tmp_path), races=1_000)
