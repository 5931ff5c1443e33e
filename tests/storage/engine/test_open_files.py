import asyncio
import logging
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from subprocess import run

import pytest
from sqlalchemy import delete, insert, select
from tests.support.databases import create_tables

from lifesign.storage.engine import open_files
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.open_files import FILE_TRUNCATED, OpenFiles
from lifesign.storage.engine.table_definitions import registry
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import DatabaseReplaced, StoreUnavailable

ANSWER_SECONDS = 30.0


def _add_row(number: int) -> Callable[[Transaction], None]:
    def add(transaction: Transaction) -> None:
        transaction.connection.execute(
            insert(registry).values(id=number, token_floor=0, monitor="", excluded_downtime="")
        )

    return add


def _rows(transaction: Transaction) -> list[int]:
    return list(transaction.connection.scalars(select(registry.c.id).order_by(registry.c.id)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "registry.db"


@pytest.fixture
async def database(file: Path) -> AsyncIterator[Database]:
    """An open database with row 1, and `copy.db` of it in the directory above."""
    database = open_database(f"sqlite:///{file}")
    await create_tables(database)
    await database.write(_add_row(1))
    copy = open_database(f"sqlite:///{file.parent.parent}/copy.db")
    await create_tables(copy)
    await copy.write(_add_row(1))
    await copy.close()
    yield database
    await database.close()


def _remove(file: Path) -> None:
    file.unlink()


def _replace(file: Path) -> None:
    (file.parent.parent / "copy.db").replace(file)


def _rename(file: Path, name: str) -> None:
    file.rename(file.with_name(name))


def _recreate(file: Path) -> None:
    file.unlink()
    file.touch()


def _rename_directory(file: Path) -> None:
    file.parent.rename(file.parent.parent / "elsewhere")


def _remove_all(file: Path) -> None:
    shutil.rmtree(file.parent)


def _remove_log(file: Path) -> None:
    file.with_name("registry.db-wal").unlink()


def _remove_index(file: Path) -> None:
    file.with_name("registry.db-shm").unlink()


LOSSES = {
    "the database file was removed": [_remove, _rename_directory, _remove_all],
    "the database file was replaced by another file": [_replace, _recreate],
    "the database's wal file was removed": [_remove_log],
    "the database's shm file was removed": [_remove_index],
}


@pytest.mark.parametrize(("lose", "why"), [(lose, why) for why, ways in LOSSES.items() for lose in ways])
async def test_first_commit_after_a_lost_file_is_not_acknowledged(
    database: Database, file: Path, lose: Callable[[Path], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    lose(file)
    for _ in range(2):
        with pytest.raises(DatabaseReplaced) as refused:
            await database.write(_add_row(2))
        assert refused.value.why == why
        # The path is for the operator, not for callers.
        assert str(file.parent) not in str(refused.value)
    assert isinstance(database.writes.failure, DatabaseReplaced)
    assert [record.args for record in caplog.records if record.levelno == logging.ERROR] == [(file, why)]


def _size_of(file: Path) -> int:
    return file.stat().st_size


VACUUM = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1], isolation_level=None) as connection:
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in map(int, sys.argv[2:]):
        connection.execute(
            "INSERT INTO registry (id, token_floor, monitor, excluded_downtime) VALUES (?, 0, ?, '')",
            (number, "m" * 50_000),
        )
"""


def _compact_elsewhere(file: Path, *numbers: int) -> None:
    """Have another process shorten the file, and add large rows to the log."""
    run([sys.executable, "-c", VACUUM, file, *map(str, numbers)], check=True, timeout=60)


async def _write_and_remove(database: Database, file: Path) -> None:
    """Let the file have pages that are in use, and free ones, all of them out of the log."""

    def write(transaction: Transaction) -> None:
        for number in range(10, 60):
            transaction.connection.execute(
                insert(registry).values(id=number, token_floor=0, monitor="m" * 9_000, excluded_downtime="")
            )

    def remove(transaction: Transaction) -> None:
        transaction.connection.execute(delete(registry).where(registry.c.id >= 30))

    await database.write(write)
    await database.write(remove)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await database.write(_add_row(2))


@pytest.mark.parametrize("share", [0, 0.1, 0.5])
async def test_truncated_file_is_found_before_anything_is_written(
    database: Database, file: Path, share: float
) -> None:
    await _write_and_remove(database, file)
    os.truncate(file, int(_size_of(file) * share))
    log = file.with_name("registry.db-wal").read_bytes()
    for _ in range(2):
        with pytest.raises(DatabaseReplaced) as refused:
            await database.write(_add_row(3))
        assert refused.value.why == FILE_TRUNCATED
        with pytest.raises(DatabaseReplaced):
            await database.check_files()
    assert file.with_name("registry.db-wal").read_bytes() == log


@pytest.mark.parametrize("numbers", [(), (4, 5, 6)])
async def test_file_shortened_by_sqlite_itself_is_no_loss(
    database: Database, file: Path, numbers: tuple[int, ...]
) -> None:
    await _write_and_remove(database, file)
    before = _size_of(file)
    _compact_elsewhere(file, *numbers)
    assert _size_of(file) < before
    await database.check_files()
    await database.write(_add_row(3))
    assert await database.read(_rows) == [1, 2, 3, *numbers, *range(10, 30)]


async def test_failed_transaction_on_a_lost_file_reports_the_loss(database: Database, file: Path) -> None:
    """The content of the file is useless: it may be an earlier change that was refused."""
    _replace(file)
    with pytest.raises(DatabaseReplaced):
        await database.write(_add_row(1))


async def test_lost_file_is_detected_without_a_write(database: Database, file: Path) -> None:
    await database.check_files()
    assert await database.read(_rows) == [1]
    _replace(file)
    with pytest.raises(DatabaseReplaced):
        await database.check_files()
    # Nothing more is written to it. Its content is still readable.
    with pytest.raises(DatabaseReplaced):
        await database.write(_add_row(2))
    assert await database.read(_rows) == [1]


async def test_a_file_that_is_moved_back_is_written_to_again(database: Database, file: Path) -> None:
    _rename(file, "aside.db")
    with pytest.raises(DatabaseReplaced):
        await database.write(_add_row(2))
    _rename(file.with_name("aside.db"), file.name)
    await database.check_files()
    await database.write(_add_row(3))
    # The change that was not acknowledged may be there, as after any 503.
    assert await database.read(_rows) == [1, 2, 3]
    assert database.writes.failure is None


async def test_new_file_at_the_path_is_refused_and_not_combined_with_the_old_wal(
    database: Database, file: Path
) -> None:
    await database.write(_add_row(2))
    _replace(file)
    with pytest.raises(DatabaseReplaced):
        await database.write(_add_row(3))
    # A reader opens its connection now.
    with pytest.raises(DatabaseReplaced):
        await database.read(_rows)
    assert file.with_name("registry.db-wal").stat().st_size == 0
    await database.close()
    restored = open_database(f"sqlite:///{file}")
    assert await restored.read(_rows) == [1]
    await restored.close()


async def test_removed_file_with_a_truncated_log_is_reported_at_once(database: Database, file: Path) -> None:
    os.truncate(file.with_name("registry.db-wal"), 0)
    _remove(file)
    for _ in range(2):
        async with asyncio.timeout(ANSWER_SECONDS):
            with pytest.raises(DatabaseReplaced):
                await database.write(_add_row(2))


async def test_a_removed_file_is_not_created_again(database: Database, file: Path) -> None:
    _remove(file)
    with pytest.raises(StoreUnavailable):
        await database.read(_rows)
    assert file.name not in os.listdir(file.parent)  # noqa: PTH208 - not a path's method in a coroutine


async def test_a_changed_symbolic_link_is_a_replacement(tmp_path: Path) -> None:
    for name in ("one.db", "two.db"):
        database = open_database(f"sqlite:///{tmp_path / name}")
        await create_tables(database)
        await database.close()
    link = tmp_path / "current.db"
    link.symlink_to("one.db")
    database = open_database(f"sqlite:///{link}")
    await database.write(_add_row(1))
    link.unlink()
    link.symlink_to("two.db")
    with pytest.raises(DatabaseReplaced):
        await database.write(_add_row(2))
    link.unlink()
    link.symlink_to("one.db")
    await database.write(_add_row(3))
    (tmp_path / "one.db-wal").unlink()
    with pytest.raises(DatabaseReplaced):
        await database.write(_add_row(4))
    await database.close()


async def test_a_relative_path_leads_to_the_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = open_database("sqlite:///registry.db")
    await create_tables(database)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    await database.write(_add_row(1))
    # Through a connection opened now.
    assert await database.read(_rows) == [1]
    await database.close()


async def test_connections_of_other_processes_do_not_count_as_a_lost_file(
    database: Database, file: Path
) -> None:
    for number in (2, 3):
        other = open_database(f"sqlite:///{file}")
        await other.write(_add_row(number))
        await other.close()
    await database.write(_add_row(4))
    assert await database.read(_rows) == [1, 2, 3, 4]


async def test_reader_that_connects_during_a_commit_reports_no_lost_file(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes that it finds are those before the commit, and the writer has remembered the new ones."""

    def stat_before_the_commit(path: Path) -> os.stat_result:
        found = list(path.stat())
        found[stat.ST_SIZE] = 0
        return os.stat_result(found)

    monkeypatch.setattr(open_files, "_stat", stat_before_the_commit)
    assert await database.read(_rows) == [1]


async def test_a_database_in_memory_has_no_files() -> None:
    database = open_database("sqlite://")
    await create_tables(database)
    await database.check_files()
    await database.write(_add_row(1))
    await database.close()


def test_unreachable_path_counts_as_a_lost_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "registry.db"
    file.touch()
    files = OpenFiles(file)
    files.note_opened()
    files.check()

    def refuse(_path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(open_files, "_stat", refuse)
    with pytest.raises(DatabaseReplaced) as refused:
        files.check()
    assert refused.value.why.endswith(" (Permission denied)")
    assert files.is_lost


def test_file_check_makes_one_stat_call_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "registry.db"
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"registry.db{suffix}").touch()
    files = OpenFiles(file)
    files.note_opened()
    files.note_companions()
    asked: list[str] = []
    stat = os.stat

    def noted(path: Path) -> os.stat_result:
        asked.append(path.name)
        return stat(path)

    monkeypatch.setattr(os, "stat", noted)
    files.note_companions()
    files.check()
    assert asked == ["registry.db", "registry.db-wal", "registry.db-shm"]


def test_files_that_no_connection_has_opened_are_not_compared(file: Path) -> None:
    file.write_bytes(b"x" * 4096)
    files = OpenFiles(file)
    files.check_known()
    files.check_before_commit()
    file.write_bytes(b"")
    files.check_before_commit()
    assert (files.is_known, files.is_lost) == (False, False)
