import asyncio
import json
from pathlib import Path

import pytest
from sqlalchemy import update
from tests.registry.events.test_verify_events import execute, live_a_little, report
from tests.support.event_logs import read_archive, verify
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.errors import BrokenChain
from lifesign.registry.events import archive_events
from lifesign.registry.events.archive_events import Archivist, archive, archive_directory
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.engine.table_definitions import events
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_archive, event_log
from lifesign.storage.events.event_archive import Archived

DAY_S = 86_400.0


def files_in(directory: Path) -> list[Path]:
    """Return the archives and leftover files."""
    return sorted(directory.glob("*events*"))


async def archive_everything(api: RegistryApi, directory: Path) -> Archived | None:
    return await archive(api.database, directory, api.clock.now_s() + 1)


async def test_archived_events_are_in_a_file_and_the_chain_continues(
    api: RegistryApi, tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    await live_a_little(api)
    before = await api.events()
    archived = await archive_everything(api, directory)
    assert archived is not None
    assert (archived.first_sequence, archived.last_sequence) == (1, len(before))
    assert [json.loads(line) for line in archived.path.read_bytes().splitlines()] == before
    assert archived.path.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    (event,) = await api.events()
    assert event["type"] == "log.archived"
    assert event["payload"] == {
        "first_sequence": 1,
        "last_sequence": len(before),
        "last_hash": before[-1]["hash"],
        "file": archived.path.name,
    }
    assert event["previous_hash"] == before[-1]["hash"]
    page = (await api.ask("GET", "/api/v1/events")).json()
    assert page["archived_sequence"] == len(before)
    found = await report(api)
    assert found.is_good, found
    assert (found.events, found.agents, found.leases) == (1, 2, 4)
    assert verify(read_archive(archived.path)) == found.archived


async def test_replay_continues_across_archives(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    await archive_everything(api, tmp_path)
    await api.register("agent-2")
    taken = await api.ask("POST", "/api/v1/leases", {"resource": "r:1"})
    assert taken.status == 201, taken.body
    await archive_everything(api, tmp_path)
    await api.ask("DELETE", f"{AGENTS}/agent-2")
    found = await report(api)
    assert found.is_good, found
    files = files_in(tmp_path)
    assert len(files) == 2
    assert verify(event for file in files for event in read_archive(file)) == found.archived


async def test_only_old_events_are_archived(api: RegistryApi, tmp_path: Path) -> None:
    await api.register("agent-1")
    old = len(await api.events())
    api.clock.advance(10)
    boundary_s = api.clock.now_s()
    await api.register("agent-2")
    archived = await archive(api.database, tmp_path, boundary_s)
    assert archived is not None
    assert archived.last_sequence == old
    assert await archive(api.database, tmp_path, boundary_s) is None
    assert (await report(api)).is_good


@pytest.mark.both_databases
async def test_archive_file_has_at_most_the_allowed_number_of_events(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_events, "MAX_EVENTS", 5)
    monkeypatch.setattr(event_log, "PAGE", 2)
    monkeypatch.setattr(archive_events, "PAGE", 2)
    await live_a_little(api)
    settings = RegistrySettings.read(event_retention_seconds=86_400, archive_dir=tmp_path)
    api.clock.advance(2 * DAY_S)
    running = asyncio.create_task(Archivist(api.database, settings).run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await api.events()) > 5:  # noqa: ASYNC110 - it is over when the database says so
            await asyncio.sleep(0.01)
    running.cancel()
    found = await report(api)
    assert found.is_good, found
    files = files_in(tmp_path)
    assert {len([*read_archive(file)]) for file in files[:-1]} == {5}
    assert verify(event for file in files for event in read_archive(file)) == found.archived


async def test_killed_archiver_loses_no_events(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live_a_little(api)
    before = await api.events()

    def killed(*_arguments: object) -> None:
        raise StoreUnavailable("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(event_log, "remove_until", killed)
        with pytest.raises(StoreUnavailable):
            await archive_everything(api, tmp_path)
    assert await api.events() == before
    (file,) = files_in(tmp_path)
    # More has happened since; the file that is there is finished all the same.
    await api.register("agent-3")
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    assert archived.path == file
    assert (await report(api)).is_good
    assert files_in(tmp_path) == [file]


@pytest.mark.both_databases
async def test_file_of_another_log_is_neither_finished_nor_replaced(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    count = len(await api.events())
    other = tmp_path / f"events-{1:012}-{count:012}-{'0' * 16}.jsonl"
    other.write_bytes(b"another log\n")
    # No event is old enough, whatever the other file contains.
    assert await archive(api.database, tmp_path, 0.0) is None
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    assert (archived.first_sequence, archived.last_sequence) == (1, count)
    assert files_in(tmp_path) == sorted([other, archived.path])
    assert other.read_bytes() == b"another log\n"
    assert (await report(api)).is_good


async def test_killed_writer_leaves_no_partial_file(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live_a_little(api)

    def full(*_arguments: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(event_archive.ArchiveFile, "finish", full)
    with pytest.raises(OSError, match="no space"):
        await archive_everything(api, tmp_path / "archive")
    assert files_in(tmp_path / "archive") == []
    assert (await report(api)).is_good


async def test_log_with_a_broken_chain_is_not_archived(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    before = len(await api.events())
    tampering = update(events).where(events.c.sequence == 3).values(actor="somebody")
    await execute(api, tampering)
    with pytest.raises(BrokenChain):
        await archive_everything(api, tmp_path)
    assert len(await api.events()) == before
    assert files_in(tmp_path) == []


@pytest.mark.both_databases
async def test_concurrent_archivers_archive_events_once(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    at_s = api.clock.now_s()
    api.clock.advance(1)
    await asyncio.gather(*(archive(api.database, tmp_path, at_s) for _ in range(4)))
    assert len(await api.events(type="log.archived")) == 1
    assert (await report(api)).is_good


async def test_file_of_events_that_another_machine_has_archived_is_removed(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live_a_little(api)
    at_s = api.clock.now_s()
    api.clock.advance(1)
    real = archive_events._write
    others: list[Archived | None] = []

    async def archived_meanwhile(*arguments: object) -> object:
        written = await real(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(archive_events, "_write", real)
        others.append(await archive(api.database, tmp_path / "other", at_s))
        return written

    monkeypatch.setattr(archive_events, "_write", archived_meanwhile)
    assert await archive(api.database, tmp_path / "one", at_s) is None
    assert files_in(tmp_path / "one") == []
    assert files_in(tmp_path / "other") == [other.path for other in others if other is not None]
    assert len(await api.events(type="log.archived")) == 1


async def test_erasure_during_archiving_reaches_the_file(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.register("agent-1", name="secret")
    real = archive_events._write
    erased = False

    async def erased_meanwhile(*arguments: object) -> object:
        nonlocal erased
        written = await real(*arguments)  # type: ignore[arg-type]
        if not erased:
            erased = True
            assert (await api.ask("DELETE", f"{AGENTS}/agent-1/record")).status == 200
        return written

    monkeypatch.setattr(archive_events, "_write", erased_meanwhile)
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    (file,) = files_in(tmp_path)
    assert all(event.is_erased for event in read_archive(file) if event.type == "agent.lifecycle")
    assert (await report(api)).is_good


@pytest.mark.both_databases
async def test_each_database_has_an_archive_directory_of_its_own_by_default(
    api: RegistryApi, database_kind: str
) -> None:
    result = archive_directory(api.database, RegistrySettings.read(archive_dir="/elsewhere"))
    assert result == Path("/elsewhere")
    found = archive_directory(api.database, RegistrySettings.read())
    # The absolute path of an SQLite file.
    assert found == Path(f"{api.database.url.database}.archive")
    assert found.is_absolute() == (database_kind == "sqlite")
