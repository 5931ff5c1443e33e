import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.registry.events.test_archive_events import archive_everything
from tests.registry.events.test_verify_events import live_a_little, report
from tests.support.event_logs import read_archive, verify
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.events.chain import Event, agent_of
from lifesign.registry.events import archive_events, erase_archives
from lifesign.registry.events.archive_events import Archivist
from lifesign.registry.events.erase_archives import overlapping, without
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import archive_erasures, event_archive, event_log
from lifesign.storage.events.archive_erasures import Range
from lifesign.storage.events.event_archive import LOCK_NAME, Archived, archive_lock, files_in


async def erase(api: RegistryApi, agent_id: str = "agent-1") -> int:
    """Erase an agent; return the last event up to which archives may contain it."""
    answer = await api.ask("DELETE", f"{AGENTS}/{agent_id}/record")
    assert answer.status == 200, answer.body
    return int(answer.json()["archived_sequence"])


async def erase_pending(api: RegistryApi, directory: Path) -> int:
    """Rewrite archives without erased agents; return how many agents they may still contain."""
    await erase_archives.erase_archives(api.database, directory)
    return (await report(api)).archive_erasures


def archived_in(directory: Path) -> list[Event]:
    return [event for file in files_in(directory) for event in read_archive(file.path)]


def owners(directory: Path) -> set[str | None]:
    return {agent_of(event) for event in archived_in(directory)}


async def done(api: RegistryApi) -> list[tuple[str, int]]:
    """Return the agents that no archive contains any more, by the events."""
    payloads = [event["payload"] for event in await api.events(type="archive.erased")]
    return [(payload["agent_id"], payload["erased_sequence"]) for payload in payloads]


async def test_archived_events_of_an_agent_are_erased(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    whole = await api.database.read(lambda transaction: event_log.with_agents(transaction, 0, limit=1_000))
    of_agent = {event.sequence for event, agent_id in whole if agent_id == "agent-1"}
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    others = {
        line
        for line in archived.path.read_bytes().splitlines()
        if json.loads(line)["sequence"] not in of_agent
    }
    assert await erase(api) == archived.last_sequence
    assert (await report(api)).archive_erasures == 1
    assert await done(api) == []
    (erased,) = await api.events(type="agent.erased")
    assert await erase_pending(api, tmp_path) == 0
    assert {event.sequence for event in archived_in(tmp_path) if event.is_erased} == of_agent
    assert owners(tmp_path) == {"agent-2", None}
    assert others < {*archived.path.read_bytes().splitlines()}
    assert await done(api) == [("agent-1", erased["sequence"])]
    found = await report(api)
    assert found.is_good, found
    assert verify(read_archive(archived.path)) == found.archived
    assert archived.path.stat().st_mode & 0o777 == 0o600


async def test_erasing_without_archives_changes_nothing(api: RegistryApi, tmp_path: Path) -> None:
    await api.register("agent-1")
    assert await erase(api) == 0
    assert await erase_pending(api, tmp_path / "none") == 0
    assert await done(api) == []
    assert not (tmp_path / "none").exists()


async def test_erasing_an_unarchived_agent_changes_no_file(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    before = archived.path.stat()
    await api.register("agent-3")
    await erase(api, "agent-3")
    assert await erase_pending(api, tmp_path) == 0
    assert len(await done(api)) == 1
    after = archived.path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


async def test_erasure_killed_before_its_note_is_repeated(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live_a_little(api)
    await archive_everything(api, tmp_path)
    await erase(api)

    def killed(*_arguments: object) -> None:
        raise StoreUnavailable("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(archive_erasures, "leave", killed)
        with pytest.raises(StoreUnavailable):
            await erase_pending(api, tmp_path)
    assert "agent-1" not in owners(tmp_path)
    assert await done(api) == []
    assert await erase_pending(api, tmp_path) == 0
    assert len(await done(api)) == 1


@pytest.mark.both_databases
async def test_erasure_killed_while_writing_leaves_the_old_file(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await live_a_little(api)
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    await erase(api)
    before = archived.path.read_bytes()

    def full(*_arguments: object) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(event_archive.ArchiveFile, "finish", full)
        assert await erase_pending(api, tmp_path) == 1
    assert "no space" in caplog.text
    assert archived.path.read_bytes() == before
    left_behind = tmp_path / f".{archived.path.name[:32]}.0123456789abcdef"
    left_behind.write_bytes(before)
    assert await erase_pending(api, tmp_path) == 0
    assert not left_behind.exists()


async def test_erasure_waits_for_missing_archive_files(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    elsewhere = archived.path.rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    await erase(api)
    assert await erase_pending(api, tmp_path) == 1
    archived.path.symlink_to(elsewhere)
    assert await erase_pending(api, tmp_path) == 1
    assert await done(api) == []
    elsewhere.replace(archived.path)
    assert await erase_pending(api, tmp_path) == 0
    assert "agent-1" not in owners(tmp_path)
    assert len(await done(api)) == 1


async def test_each_machine_erases_in_its_own_archive_files(api: RegistryApi, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    await live_a_little(api)
    await archive_everything(api, one)
    await api.ask("PATCH", f"{AGENTS}/agent-1", {"name": "y"}, headers={"If-Match": "*"})
    await archive_everything(api, other)
    await erase(api)
    assert await erase_pending(api, one) == 1
    assert await erase_pending(api, one) == 1
    assert await done(api) == []
    assert await erase_pending(api, other) == 0
    assert "agent-1" not in owners(one) | owners(other)
    assert len(await done(api)) == 1
    assert (await report(api)).is_good


async def test_new_owner_of_an_erased_id_is_not_erased_with_it(api: RegistryApi, tmp_path: Path) -> None:
    await api.register("agent-1")
    await archive_everything(api, tmp_path)
    await erase(api)
    await api.register("agent-1")
    await archive_everything(api, tmp_path)
    assert await erase_pending(api, tmp_path) == 0
    first, second = files_in(tmp_path)
    assert {agent_of(event) for event in read_archive(first.path)} == {None}
    assert "agent-1" in {agent_of(event) for event in read_archive(second.path)}
    await erase(api)
    assert await erase_pending(api, tmp_path) == 0
    assert "agent-1" not in owners(tmp_path)
    assert verify(archived_in(tmp_path)) == (await report(api)).archived


async def test_id_erased_twice_between_runs_is_removed_from_all_files(
    api: RegistryApi, tmp_path: Path
) -> None:
    for _ in range(2):
        await api.register("agent-1")
        await archive_everything(api, tmp_path)
        await erase(api)
    assert await erase_pending(api, tmp_path) == 0
    assert owners(tmp_path) == {None}
    assert len(await done(api)) == 2


@pytest.mark.both_databases
async def test_simultaneously_erased_agents_are_removed_from_the_archives_at_once(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase_archives, "PAGE", 6)
    names = [f"agent-{number}" for number in range(10)]
    for name in (*names, "other"):
        await api.register(name)
    await archive_everything(api, tmp_path)
    for name in names:
        await erase(api, name)
    looks = (erase_archives.erase_archives(api.database, tmp_path) for _ in range(4))
    await asyncio.gather(*looks)
    assert await erase_pending(api, tmp_path) == 0
    assert owners(tmp_path) == {"other", None}
    assert sorted(name for name, _ in await done(api)) == names
    assert verify(archived_in(tmp_path)) == (await report(api)).archived


async def test_archive_locked_by_another_process_is_not_changed(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    await archive_everything(api, tmp_path)
    await erase(api)
    with archive_lock(tmp_path) as is_alone:
        assert is_alone
        assert await erase_pending(api, tmp_path) == 1
        assert await archive_everything(api, tmp_path) is None
    assert "agent-1" in owners(tmp_path)
    assert await erase_pending(api, tmp_path) == 0
    assert (tmp_path / LOCK_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.both_databases
async def test_damaged_archive_is_unchanged_and_does_not_block_other_archives(
    api: RegistryApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await live_a_little(api)
    first = await archive_everything(api, tmp_path)
    await api.ask("PATCH", f"{AGENTS}/agent-1", {"name": "y"}, headers={"If-Match": "*"})
    second = await archive_everything(api, tmp_path)
    assert first is not None
    assert second is not None
    whole = second.path.read_bytes()
    damaged = whole[:-1]
    second.path.write_bytes(damaged)
    await erase(api)
    assert await erase_pending(api, tmp_path) == 1
    assert second.path.read_bytes() == damaged
    assert "agent-1" not in {agent_of(event) for event in read_archive(first.path)}
    assert second.path.name in caplog.text
    second.path.write_bytes(whole)
    assert await erase_pending(api, tmp_path) == 0


@pytest.mark.both_databases
async def test_agent_is_erased_in_all_files_with_the_same_sequence_numbers(
    api: RegistryApi, tmp_path: Path
) -> None:
    await live_a_little(api)
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    # As after a restore: a file of the replaced log.
    other = archived.path.with_name(archived.path.name.replace(archived.hash_start, "0" * 16))
    whole = archived.path.read_bytes()
    other.write_bytes(whole[:-1])
    await erase(api)
    assert await erase_pending(api, tmp_path) == 1
    assert await done(api) == []
    other.write_bytes(whole)
    assert await erase_pending(api, tmp_path) == 0
    assert len(files_in(tmp_path)) == 2
    assert "agent-1" not in owners(tmp_path)
    assert len(await done(api)) == 1


async def test_archive_written_before_a_crash_is_also_erased(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.register("agent-1")
    await archive_everything(api, tmp_path)
    await api.ask("PATCH", f"{AGENTS}/agent-1", {"name": "y"}, headers={"If-Match": "*"})

    def killed(*_arguments: object) -> None:
        raise StoreUnavailable("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(event_log, "remove_until", killed)
        with pytest.raises(StoreUnavailable):
            await archive_everything(api, tmp_path)
    assert len(files_in(tmp_path)) == 2
    await erase(api)
    assert await erase_pending(api, tmp_path) == 0
    assert "agent-1" not in owners(tmp_path)
    # Tasks finished later are in the database and erased there too.
    assert await archive_everything(api, tmp_path) is not None
    assert "agent-1" not in owners(tmp_path)
    assert verify(archived_in(tmp_path)) == (await report(api)).archived


async def until(found: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await found():  # noqa: ASYNC110 - only the files and the database know
            await asyncio.sleep(0.01)


@pytest.mark.both_databases
async def test_server_erases_archives_without_a_retention_and_reports_missing_files(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archive_events, "ARCHIVE_SECONDS", 0.01)
    await live_a_little(api)
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    elsewhere = archived.path.rename(tmp_path / "elsewhere")
    await erase(api)
    archivist = Archivist(api.database, RegistrySettings.read(archive_dir=tmp_path))
    running = asyncio.create_task(archivist.run())
    caplog.set_level(logging.WARNING)

    async def is_reported() -> bool:
        return "events of 1 erased agents may still be" in caplog.text

    await until(is_reported)
    elsewhere.rename(archived.path)
    await until(lambda: done(api))
    running.cancel()
    assert "agent-1" not in owners(tmp_path)


def test_files_with_common_sequence_numbers_are_one_group() -> None:
    files = [
        Archived(first, last, "0" * 16, Path(f"{first}-{last}"))
        for first, last in ((1, 10), (11, 20), (11, 50), (30, 40), (50, 60), (61, 70))
    ]
    groups = [((1, 10), files[:1]), ((11, 60), files[1:5]), ((61, 70), files[5:])]
    assert overlapping(files) == groups
    assert overlapping([]) == []


RANGES = st.lists(st.integers(1, 60), unique=True, max_size=8).map(
    lambda edges: tuple(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)


def members(ranges: Sequence[Range]) -> set[int]:
    return {number for begin, end in ranges for number in range(begin, end + 1)}


@given(RANGES, st.integers(1, 60), st.integers(0, 60))
def test_remaining_ranges_exclude_processed_ones(ranges: tuple[Range, ...], first: int, more: int) -> None:
    left = without(ranges, (first, first + more))
    assert members(left) == members(ranges) - members([(first, first + more)])
    assert list(left) == sorted(left)
    assert all(begin <= end for begin, end in left)
