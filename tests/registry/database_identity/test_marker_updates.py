import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from shutil import move

import pytest
from tests.support.databases import WoundClock, migrated_url
from tests.support.metrics import Scraped
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.events.chain import Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.registry.database_identity import marker_check
from lifesign.registry.database_identity.marker_check import current_marker
from lifesign.registry.database_identity.marker_file import MarkerFile
from lifesign.registry.database_identity.marker_updates import LAST_SECONDS, TRACK_SECONDS
from lifesign.registry.request_handling.work_counts import WorkCounts
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.table_definitions import metadata
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import DatabaseReplaced

METRIC = "lifesign_registry_database_marker_timestamp_seconds"


@pytest.fixture
async def api(database_kind: str, tmp_path: Path, clock: WoundClock) -> AsyncIterator[RegistryApi]:
    """A registry whose database was set up as servers do, with its state in `state`."""
    database = open_database(migrated_url(database_kind, tmp_path), clock=clock.now_s)
    api = RegistryApi(database, clock, state_dir=str(tmp_path / "state"))
    await api.add_keys()
    yield api
    await database.close()


@pytest.fixture
def file(api: RegistryApi, tmp_path: Path) -> MarkerFile:
    file = MarkerFile.of(api.database.url, tmp_path / "state")
    assert file is not None
    return file


async def current(api: RegistryApi) -> DatabaseMarker:
    return await api.database.read(current_marker)


async def health(api: RegistryApi) -> tuple[int, str]:
    answer = await api.ask("GET", "/healthz", key=None)
    return answer.status, "" if answer.status == 200 else str(answer.json()["error"]["code"])


async def registered(api: RegistryApi, agent_id: str) -> tuple[int, str]:
    answer = await api.ask("POST", "/api/v1/agents", {"agent_id": agent_id})
    return answer.status, "" if answer.status == 201 else str(answer.json()["error"]["code"])


async def marked_at_s(api: RegistryApi) -> float | None:
    text = (await api.ask("GET", "/metrics", key=Role.READER)).body.decode()
    return Scraped(text).value(METRIC)


def set_ahead(file: MarkerFile) -> DatabaseMarker:
    """Let the host know an event that the database does not have; return the marker as it was."""
    known = file.read()
    assert known is not None
    file.write(replace(known, head=Checkpoint(known.head.sequence + 1, "a" * 64)))
    return known


async def test_marker_is_updated_with_the_log(api: RegistryApi, file: MarkerFile) -> None:
    await api.registry.marker.begin()
    assert file.read() == await current(api)
    assert await registered(api, "agent-1") == (201, "")
    await api.registry.marker.track_once()
    assert file.read() == await current(api)
    assert TRACK_SECONDS + LAST_SECONDS < 5


async def test_a_marker_that_is_not_outdated_is_not_written(api: RegistryApi, file: MarkerFile) -> None:
    await api.registry.marker.track_once()
    before = file.path.stat().st_ino
    await api.registry.marker.track_once()
    assert file.path.stat().st_ino == before


@pytest.mark.both_databases
async def test_one_process_updates_the_marker_and_each_process_at_its_end(
    api: RegistryApi, file: MarkerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.registry.marker.track_once()
    monkeypatch.setattr(WorkCounts, "is_first", False)
    await registered(api, "agent-1")
    await api.registry.marker.track_once()
    assert file.read() != await current(api)
    await api.registry.marker.end()
    assert file.read() == await current(api)


@pytest.mark.both_databases
async def test_database_behind_its_marker_is_not_written_to(
    api: RegistryApi, file: MarkerFile, caplog: pytest.LogCaptureFixture
) -> None:
    await api.registry.marker.begin()
    assert await health(api) == (200, "")
    right = set_ahead(file)
    await api.registry.marker.track_once()
    assert await registered(api, "agent-1") == (503, "database_replaced")
    assert await health(api) == (503, "database_replaced")
    # The marker still names what was acknowledged, however often it is compared.
    await api.registry.marker.track_once()
    await api.registry.marker.end()
    known = file.read()
    assert known is not None
    assert known.head.sequence == right.head.sequence + 1
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    # Simulates an adoption.
    file.write(right)
    await api.registry.marker.track_once()
    assert await registered(api, "agent-1") == (201, "")
    assert await health(api) == (200, "")


async def test_stale_read_of_a_replica_is_repeated_on_the_primary(
    api: RegistryApi, file: MarkerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool may answer reads from a replica that lags."""
    await api.registry.marker.begin()
    set_ahead(file)
    write = api.database.write

    async def write_to_the_primary(function: Callable[[Transaction], object]) -> object:
        monkeypatch.setattr(marker_check, "mismatch", lambda _marker, _state: None)
        return await write(function)

    monkeypatch.setattr(api.database, "write", write_to_the_primary)
    await api.registry.marker.track_once()
    assert api.database.writes.mismatch is None


async def test_marker_written_by_another_server_is_no_mismatch(
    api: RegistryApi, file: MarkerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.registry.marker.begin()
    loop = asyncio.get_running_loop()
    read = MarkerFile.read

    async def go_on() -> None:
        await registered(api, f"agent-{loop.time()}")
        await asyncio.to_thread(file.write, await current(api))

    def read_and_be_overtaken(self: MarkerFile) -> DatabaseMarker | None:
        # Before and after: the marker has to be read before the database is.
        asyncio.run_coroutine_threadsafe(go_on(), loop).result()
        known = read(self)
        asyncio.run_coroutine_threadsafe(go_on(), loop).result()
        return known

    monkeypatch.setattr(MarkerFile, "read", read_and_be_overtaken)
    for _ in range(3):
        await api.registry.marker.track_once()
    assert api.database.writes.mismatch is None
    assert await health(api) == (200, "")


async def test_missing_tables_count_as_a_replaced_database(api: RegistryApi, file: MarkerFile) -> None:
    await api.registry.marker.begin()
    known = file.read()
    await api.database.write(lambda transaction: metadata.drop_all(transaction.connection))
    await api.registry.marker.track_once()
    assert await health(api) == (503, "database_replaced")
    assert file.read() == known


@pytest.mark.both_databases
async def test_a_marker_that_cannot_be_written_is_a_warning_and_a_metric(
    api: RegistryApi, file: MarkerFile, caplog: pytest.LogCaptureFixture
) -> None:
    await api.registry.marker.begin()
    before_s = await marked_at_s(api)
    assert before_s is not None
    await registered(api, "agent-1")
    shutil.rmtree(file.directory)
    file.directory.touch()
    for _ in range(3):
        await api.registry.marker.track_once()
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert await marked_at_s(api) == before_s
    assert await registered(api, "agent-2") == (201, "")
    assert await health(api) == (200, "")
    file.directory.unlink()
    await api.registry.marker.track_once()
    assert file.read() == await current(api)
    assert (await marked_at_s(api) or 0) > before_s


@pytest.mark.both_databases
async def test_a_damaged_marker_is_written_again(api: RegistryApi, file: MarkerFile) -> None:
    await api.registry.marker.begin()
    file.path.write_bytes(b"\0" * 100)
    await api.registry.marker.track_once()
    assert file.read() == await current(api)


async def test_a_marker_of_a_newer_format_is_kept(api: RegistryApi, file: MarkerFile) -> None:
    await api.registry.marker.begin()
    file.path.write_text('{"format": 2}')
    await api.registry.marker.track_once()
    await api.registry.marker.end()
    assert file.path.read_text() == '{"format": 2}'


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_a_lost_file_is_found_without_a_write_and_its_last_event_is_marked(
    api: RegistryApi, file: MarkerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await api.registry.marker.begin()
    shutil.copy(str(api.database.url.database), "older.db")
    await registered(api, "agent-1")
    known = await current(api)
    move(str(api.database.url.database), "aside.db")
    move("older.db", str(api.database.url.database))
    assert await health(api) == (503, "database_replaced")
    await api.registry.marker.track_once()
    assert file.read() == known
    await api.registry.marker.end()
    assert isinstance(api.database.writes.failure, DatabaseReplaced)
    assert file.read() == known
    move("aside.db", str(api.database.url.database))
    assert await health(api) == (200, "")


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_a_lost_file_does_not_change_the_marker_of_a_restored_database(
    api: RegistryApi, file: MarkerFile, tmp_path: Path
) -> None:
    await api.registry.marker.begin()
    known = file.read()
    assert known is not None
    move(str(api.database.url.database), tmp_path / "aside.db")
    restored = replace(known, epoch=known.epoch + 1)
    file.write(restored)
    await api.registry.marker.track_once()
    await api.registry.marker.end()
    assert file.read() == restored


async def test_a_database_in_memory_needs_no_state(clock: WoundClock, tmp_path: Path) -> None:
    database = open_database("sqlite://", clock=clock.now_s)
    await database.write(lambda transaction: metadata.create_all(transaction.connection))
    api = RegistryApi(database, clock, state_dir=str(tmp_path / "state"))
    await api.registry.marker.begin()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - not a path's method in a coroutine
    await database.close()


async def test_a_database_that_does_not_answer_delays_neither_start_nor_end(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(_function: object) -> None:
        await asyncio.Event().wait()

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(api.database, "read", never)
    monkeypatch.setattr("lifesign.registry.database_identity.marker_updates.LAST_SECONDS", 0.01)
    await api.registry.marker.begin()
    await api.registry.marker.end()
    assert len(caplog.records) == 2
