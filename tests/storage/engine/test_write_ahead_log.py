import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from shutil import copyfile
from subprocess import run

import pytest
from sqlalchemy import insert, select, update
from tests.support.databases import create_tables

from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.table_definitions import registry
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.engine.write_ahead_log import FRAME_HEADER_BYTES, HEADER_BYTES, LogShrunk, WriteAheadLog
from lifesign.storage.errors import DatabaseReplaced, StoreUnavailable

CHECKPOINT = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as connection:
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in map(int, sys.argv[2:]):
        connection.execute(
            "INSERT INTO registry (id, token_floor, monitor, excluded_downtime) VALUES (?, 0, '', '')",
            (number,),
        )
"""


def _add_row(number: int) -> Callable[[Transaction], None]:
    def add(transaction: Transaction) -> None:
        transaction.connection.execute(
            insert(registry).values(id=number, token_floor=0, monitor="", excluded_downtime="")
        )

    return add


def _rows(transaction: Transaction) -> list[int]:
    return list(transaction.connection.scalars(select(registry.c.id).order_by(registry.c.id)))


def _checkpoint_elsewhere(file: Path, *numbers: int) -> None:
    """Have another process move the log into the database, truncate it and add rows."""
    run([sys.executable, "-c", CHECKPOINT, file, *map(str, numbers)], check=True, timeout=60)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@pytest.fixture
def log(file: Path) -> Path:
    return file.with_name("registry.db-wal")


@pytest.fixture
async def database(file: Path) -> AsyncIterator[Database]:
    """An open database with row 1, which is in the log only."""
    database = open_database(f"sqlite:///{file}")
    await create_tables(database)
    await database.write(_add_row(1))
    yield database
    await database.close()


def _size_of(log: Path) -> int:
    return log.stat().st_size


def _cut_all(log: Path) -> None:
    os.truncate(log, 0)


def _cut_half(log: Path) -> None:
    os.truncate(log, _size_of(log) // 2)


def _cut_last_byte(log: Path) -> None:
    os.truncate(log, _size_of(log) - 1)


def _cut_to_part_of_the_header(log: Path) -> None:
    os.truncate(log, HEADER_BYTES // 2)


CUTS = [_cut_all, _cut_half, _cut_last_byte, _cut_to_part_of_the_header]


@pytest.mark.parametrize("cut", CUTS)
async def test_a_change_after_a_truncation_is_refused_and_not_written(
    database: Database, log: Path, cut: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    cut(log)
    size = _size_of(log)
    for _ in range(3):
        with pytest.raises(DatabaseReplaced):
            await database.write(_add_row(2))
    assert _size_of(log) == size
    assert isinstance(database.writes.failure, DatabaseReplaced)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("cut", CUTS)
async def test_a_truncation_is_found_without_a_write(
    database: Database, log: Path, cut: Callable[[Path], None]
) -> None:
    await database.check_files()
    cut(log)
    for _ in range(2):
        with pytest.raises(DatabaseReplaced):
            await database.check_files()


@pytest.mark.parametrize("cut", CUTS)
async def test_each_change_that_is_acknowledged_after_a_truncation_survives_a_kill(
    database: Database, file: Path, log: Path, tmp_path: Path, cut: Callable[[Path], None]
) -> None:
    cut(log)
    acknowledged = set()
    for number in range(2, 6):
        with suppress(DatabaseReplaced):
            await database.write(_add_row(number))
            acknowledged.add(number)
    # As after a killed process: SQLite does not use the index of the log.
    left = tmp_path / "left.db"
    copyfile(file, left)
    copyfile(log, left.with_name("left.db-wal"))
    with closing(sqlite3.connect(left)) as connection:
        try:
            found = {number for (number,) in connection.execute("SELECT id FROM registry")}
        except sqlite3.OperationalError:
            # Even the tables are lost.
            found = set()
    assert acknowledged <= found


async def test_log_that_cannot_be_checked_on_a_full_disk_is_not_called_truncated(
    database: Database, file: Path, log: Path, tmp_path: Path
) -> None:
    def enlarge(transaction: Transaction) -> None:
        transaction.connection.execute(update(registry).values(monitor="x" * 500_000))

    await database.write(enlarge)
    left = tmp_path / "left.db"
    copyfile(file, left)
    copyfile(log, left.with_name("left.db-wal"))
    again = open_database(f"sqlite:///{left}")
    soft, hard = getrlimit(RLIMIT_FSIZE)
    try:
        # Instead of a full disk: no file may grow beyond this size.
        setrlimit(RLIMIT_FSIZE, (300_000, hard))
        with pytest.raises(StoreUnavailable) as raised:
            await again.write(_add_row(2))
        assert not isinstance(raised.value, DatabaseReplaced)
        setrlimit(RLIMIT_FSIZE, (soft, hard))
        await again.write(_add_row(2))
        assert await again.read(_rows) == [1, 2]
    finally:
        setrlimit(RLIMIT_FSIZE, (soft, hard))
        await again.close()


async def test_checkpoint_of_another_process_is_no_loss(database: Database, file: Path, log: Path) -> None:
    _checkpoint_elsewhere(file)
    assert _size_of(log) == 0
    await database.check_files()
    await database.write(_add_row(2))
    _checkpoint_elsewhere(file)
    await database.write(_add_row(3))
    # With rows of that process in a new log, which is shorter.
    for number in range(4, 12):
        await database.write(_add_row(number))
    _checkpoint_elsewhere(file, 12)
    await database.write(_add_row(13))
    _checkpoint_elsewhere(file, 14)
    await database.check_files()
    assert await database.read(_rows) == list(range(1, 15))
    assert database.writes.failure is None


async def test_truncated_wal_without_needed_frames_is_restarted(
    database: Database, file: Path, log: Path
) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        os.truncate(log, 0)
        await database.write(_add_row(2))
    assert await database.read(_rows) == [1, 2]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_the_first_change_of_another_connection_is_refused_too(
    database: Database, file: Path, log: Path
) -> None:
    os.truncate(log, 0)
    other = open_database(f"sqlite:///{file}")
    with pytest.raises(StoreUnavailable):
        await other.write(_add_row(2))
    assert _size_of(log) == 0
    await other.close()


async def test_a_truncation_during_a_transaction_is_found_before_its_commit(
    database: Database, log: Path
) -> None:
    def cut(transaction: Transaction) -> None:
        _add_row(2)(transaction)
        os.truncate(log, 0)

    with pytest.raises(DatabaseReplaced):
        await database.write(cut)
    assert _size_of(log) == 0


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (a)")
        yield connection


def test_gap_in_the_wal_before_a_commit_is_detected(connection: sqlite3.Connection, log: Path) -> None:
    """As if the log were truncated between the check and the commit."""
    seen = WriteAheadLog(log)
    seen.note_commit(has_changed=True)
    os.truncate(log, 0)
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(DatabaseReplaced) as refused:
        seen.note_commit(has_changed=True)
    assert not isinstance(refused.value, LogShrunk)


def test_expected_wal_size_is_the_size_of_its_frames(connection: sqlite3.Connection, log: Path) -> None:
    [(page_bytes,)] = connection.execute("PRAGMA page_size")
    [(_, frames, _)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert _size_of(log) == HEADER_BYTES + frames * (FRAME_HEADER_BYTES + page_bytes)
    WriteAheadLog(log).confirm(connection)


def test_other_journal_modes_have_no_write_ahead_log(file: Path, log: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (a)")
        seen = WriteAheadLog(log)
        seen.check_before_commit()
        seen.note_commit(has_changed=True)
        seen.confirm(connection)
        seen.check_before_commit()


def test_log_that_is_empty_after_a_change_was_truncated(log: Path) -> None:
    log.touch()
    seen = WriteAheadLog(log)
    seen.note_commit(has_changed=False)
    with pytest.raises(LogShrunk):
        seen.note_commit(has_changed=True)
