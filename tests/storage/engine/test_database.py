import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text
from tests.support.databases import WoundClock, create_tables, opened
from tests.support.servers import PATIENCE_SECONDS

from lifesign.errors import InvalidValue
from lifesign.storage.engine.database import open_database, read_url
from lifesign.storage.engine.table_definitions import registry
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import DatabaseReplaced, StoreUnavailable


def _add_row(number: int) -> Callable[[Transaction], int]:
    def function(transaction: Transaction) -> int:
        transaction.connection.execute(
            insert(registry).values(id=number, token_floor=0, monitor="", excluded_downtime="")
        )
        return number

    return function


def _rows(transaction: Transaction) -> list[int]:
    return list(transaction.connection.scalars(select(registry.c.id).order_by(registry.c.id)))


async def test_written_files_can_be_read(database: Database) -> None:
    assert await database.write(_add_row(1)) == 1
    assert await database.read(_rows) == [1]


@pytest.mark.parametrize("vanishes", [False, True], ids=["before", "between"])
async def test_file_that_must_exist_is_not_created(vanishes: bool, tmp_path: Path) -> None:  # noqa: FBT001
    file = tmp_path / "lost and found.db"
    url = f"sqlite:///{file}"
    if not vanishes:
        with pytest.raises(InvalidValue):
            open_database(url, must_exist=True)
    else:
        file.touch()
        database = open_database(url, must_exist=True)
        file.unlink()
        with pytest.raises(StoreUnavailable):
            await database.read(_rows)
        await database.close()
    assert not file.exists()


async def test_empty_file_in_place_of_the_database_counts_as_replaced(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/empty.db")
    try:
        database.writes.mismatch = "it is another one"
        with pytest.raises(DatabaseReplaced):
            await database.read(_rows)
    finally:
        await database.close()


async def test_failed_transaction_of_a_group_is_rolled_back_alone(database: Database) -> None:
    def fail_late(transaction: Transaction) -> None:
        _add_row(7)(transaction)
        raise LookupError("on purpose")

    outcomes = await asyncio.gather(
        database.write(_add_row(1)),
        database.write(fail_late),
        database.write(_add_row(2)),
        return_exceptions=True,
    )
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], LookupError)
    assert outcomes[2] == 2
    assert await database.read(_rows) == [1, 2]


async def test_first_transaction_on_an_existing_file_runs_once(tmp_path: Path) -> None:
    runs = []

    def add(transaction: Transaction) -> None:
        runs.append(transaction)
        _add_row(1)(transaction)

    async with opened("sqlite", tmp_path) as database:
        await database.write(add)
        assert len(runs) == 1
        assert await database.read(_rows) == [1]


async def test_failed_single_transaction_is_rolled_back(database: Database) -> None:
    def fail_late(transaction: Transaction) -> None:
        _add_row(7)(transaction)
        raise LookupError("on purpose")

    with pytest.raises(LookupError):
        await database.write(fail_late)
    assert await database.read(_rows) == []
    assert await database.write(_add_row(7)) == 7


async def test_disconnected_caller_does_not_undo_a_write(database: Database) -> None:
    waiting = asyncio.create_task(database.write(_add_row(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await database.write(_add_row(2))
    assert 2 in await database.read(_rows)


async def test_time_is_fixed_within_a_transaction(database: Database, clock: WoundClock) -> None:
    def look_twice(transaction: Transaction) -> tuple[float, float]:
        first = transaction.now_s
        clock.advance(5)
        return first, transaction.now_s

    first, second = await database.read(look_twice)
    assert first == second


async def test_without_a_clock_the_database_provides_the_time(database_kind: str, tmp_path: Path) -> None:
    async with opened(database_kind, tmp_path) as database:
        first = await database.read(lambda transaction: transaction.now_s)
        second = await database.write(lambda transaction: transaction.now_s)
    assert 1_700_000_000 < first <= second < first + 60


def _modes(directory: Path) -> list[int]:
    return [file.stat().st_mode for file in directory.iterdir()]


async def test_waiting_transactions_are_committed_together_on_sqlite(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as database:
        at_the_gate, go_on = threading.Event(), threading.Event()

        def hold_the_writer(_transaction: Transaction) -> None:
            at_the_gate.set()
            go_on.wait(PATIENCE_SECONDS)

        def connection_and_row(number: int) -> Callable[[Transaction], object]:
            def function(transaction: Transaction) -> object:
                _add_row(number)(transaction)
                return transaction.connection

            return function

        first = asyncio.create_task(database.write(hold_the_writer))
        await asyncio.to_thread(at_the_gate.wait, 10)
        others = [asyncio.create_task(database.write(connection_and_row(number))) for number in range(1, 51)]
        await asyncio.sleep(0)
        go_on.set()
        await first
        connections = await asyncio.gather(*others)
        assert len({id(connection) for connection in connections}) == 1


async def test_a_file_that_another_process_locks_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.storage.engine.sqlite.BUSY_SECONDS", 0.1)
    database = open_database(f"sqlite:///{tmp_path}/locked.db")
    await create_tables(database)
    other = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await database.write(_add_row(1))
    other.execute("ROLLBACK")
    other.close()
    assert await database.write(_add_row(1)) == 1
    await database.close()


async def test_opening_waits_for_another_server_that_creates_the_database(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    let_go = threading.Timer(0.3, other.execute, ("ROLLBACK",))
    let_go.start()
    database = open_database(f"sqlite:///{path}")
    try:
        assert await database.write(lambda _: "written") == "written"
    finally:
        let_go.join()
        other.close()
        await database.close()


async def test_full_disk_is_unavailable_and_keeps_stored_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened("sqlite", tmp_path) as database:
        await database.write(_add_row(1))

        def fill(transaction: Transaction) -> None:
            pages = transaction.connection.scalar(text("PRAGMA page_count")) or 0
            transaction.connection.execute(text(f"PRAGMA max_page_count = {pages}"))
            transaction.connection.execute(
                insert(registry).values(id=2, token_floor=0, monitor="x" * 1_000_000, excluded_downtime="")
            )

        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="full"):
                await database.write(fill)
        assert await database.read(_rows) == [1]
        assert "full" in str(database.writes.failure)
        # A write without changes is no sign of free space.
        await database.write(_rows)
        assert "full" in str(database.writes.failure)
        await database.write(
            lambda transaction: transaction.connection.execute(text("PRAGMA max_page_count = 100000")).all()
        )
        await database.write(_add_row(3))
        assert database.writes.failure is None
    refused, stored = caplog.records
    assert "(database or disk is full)" in refused.getMessage()
    assert (stored.module, stored.args) == (refused.module, ())


async def test_damaged_or_foreign_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"Dear diary, " * 1_000)
    database = open_database(f"sqlite:///{tmp_path}/registry.db")
    with pytest.raises(StoreUnavailable, match="damaged"):
        await database.read(_rows)
    with pytest.raises(StoreUnavailable, match="damaged"):
        await database.write(_add_row(1))
    await database.close()


async def test_a_file_that_others_may_read_is_served_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "registry.db").touch(0o600)
    (tmp_path / "registry.db").chmod(0o640)
    await open_database(f"sqlite:///{tmp_path}/registry.db").close()
    (warning,) = caplog.messages
    assert "640" in warning
    (tmp_path / "registry.db").chmod(0o600)
    await open_database(f"sqlite:///{tmp_path}/registry.db").close()
    assert len(caplog.messages) == 1


async def test_second_connection_of_a_process_keeps_the_wal_when_another_process_closes(
    tmp_path: Path,
) -> None:
    async with opened("sqlite", tmp_path) as first:
        await first.write(_add_row(1))
        file = Path(str(first.url.database))
        second = open_database(f"sqlite:///{file}")
        assert await second.read(_rows) == [1]
        # The last process that closes a database removes its log.
        assert _rows_by_another_process(file) == "(1,)\n"
        await first.write(_add_row(2))
        assert _rows_by_another_process(file) == "(1,) (2,)\n"
        await second.close()


def _rows_by_another_process(file: Path) -> str:
    look = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT id FROM registry'))"
    return subprocess.check_output([sys.executable, "-c", look, str(file)], text=True)


@pytest.mark.parametrize("what", ["directory", "pipe", "hard link", "forbidden"])
def test_invalid_database_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    file = tmp_path / "registry.db"
    why = "it is not a regular file"
    if what == "directory":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "hard link":
        file.touch(0o600)
        (tmp_path / "other.db").hardlink_to(file)
        why = "it has 2 hard links"
    else:
        # Root may write whatever its mode, and the tests may be root's.
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
        why = "its owner or mode forbids it"
    with pytest.raises(InvalidValue, match=rf"\({why}"):
        open_database(f"sqlite:///{file}")


async def test_unreachable_database_server_is_unavailable() -> None:
    database = open_database("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(StoreUnavailable):
        await database.read(lambda transaction: transaction.now_s)
    await database.close()


async def test_a_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as database:
        await database.write(_add_row(1))
        assert {mode & 0o077 for mode in _modes(tmp_path)} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may give files to another user")
async def test_files_created_by_root_belong_to_the_service(tmp_path: Path) -> None:
    directory = tmp_path / "service"
    directory.mkdir()
    os.chown(directory, 64_477, 64_478)
    for _ in range(2):
        database = open_database(f"sqlite:///{directory}/registry.db")
        await database.write(lambda transaction: transaction.connection.execute(text("CREATE TABLE a (b)")))
        # The log beside it too, which SQLite sees to.
        owners = {(file.stat().st_uid, file.stat().st_gid) for file in directory.iterdir()}
        assert owners == {(64_477, 64_478)}
        assert len([*directory.iterdir()]) == 3
        await database.write(lambda transaction: transaction.connection.execute(text("DROP TABLE a")))
        await database.close()
        assert [file.name for file in directory.iterdir()] == ["registry.db"]
    (directory / "theirs").touch()
    (directory / "link.db").symlink_to(directory / "theirs")
    await open_database(f"sqlite:///{directory}/link.db").close()
    assert (directory / "theirs").stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may give files to another user")
@pytest.mark.parametrize("name", ["registry.db", "registry.db-wal", "registry.db-shm", "registry.db-journal"])
@pytest.mark.parametrize("kind", ["file", "link"])
async def test_file_of_another_user_in_a_shared_directory_is_refused(
    name: str, kind: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    await open_database(url).close()
    place = tmp_path / name
    place.unlink(missing_ok=True)
    if kind == "link":
        (tmp_path / "theirs").touch()
        place.symlink_to(tmp_path / "theirs")
    place.touch()
    os.chown(place, 65_534, 65_534, follow_symlinks=False)
    with pytest.raises(InvalidValue, match="user 65534"):
        open_database(url)
    assert place.stat().st_size == 0


@pytest.mark.parametrize("url", ["mysql://root:secret@h/d", "nonsense", "", "sqlite+aiosqlite:///x"])
def test_any_other_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        open_database(url)
    assert "secret" not in str(refused.value)


def test_a_file_that_cannot_be_written_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="No such file"):
        open_database(f"sqlite:///{tmp_path}/absent/registry.db")


async def test_in_memory_reads_see_what_was_written() -> None:
    database = open_database("sqlite://")
    await create_tables(database)
    await database.write(_add_row(1))
    assert await database.read(_rows) == [1]
    await database.close()


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
def test_port_out_of_range_is_refused_without_the_password(port: int) -> None:
    with pytest.raises(InvalidValue, match="1 to 65535") as refused:
        read_url(f"postgresql://u:canary@h:{port}/db")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "place", ["", ":5432", "/db", ":5432/db", "/db?host=", "/db?host=:5432", "/db?port=5432"]
)
def test_postgresql_needs_a_host(place: str) -> None:
    with pytest.raises(InvalidValue, match="socket") as refused:
        read_url(f"postgresql://u:canary@{place}")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("place", ["[::1]/db", "/db?host=/run/pg", "/db?host=a:1&host=b:2", "/db?host=::1"])
def test_host_of_postgresql_may_be_a_parameter(place: str) -> None:
    assert read_url(f"postgresql://u@{place}").database == "db"


def test_parameters_of_postgresql_are_those_of_libpq() -> None:
    assert read_url("postgresql://u@h/db?sslmode=require&host=/run/pg").query == {
        "ssl": "require",
        "host": "/run/pg",
    }
    with pytest.raises(InvalidValue, match="sslmode"):
        read_url("postgresql://u@h/db?sslrootcert=ca.pem")


@pytest.mark.parametrize("password", ["two secrets", "x@y/secret", "x@y:secret", "x/secret", "12?secret"])
def test_password_of_postgresql_must_be_encoded(password: str) -> None:
    with pytest.raises(InvalidValue, match="%40 for @") as refused:
        read_url(f"postgresql://u:{password}@127.0.0.1:5/db")
    assert "secret" not in str(refused.value)
    assert read_url("postgresql://u:two%20%40%2Fsecrets@h/db").password == "two @/secrets"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("foo", "; got 'foo'"),
        ("a b://user:secret@host", "; got 'a b://...'"),
        ("user:secret@host/db", ""),
        ("mysql://user:x@y/secret@host", "; got 'mysql://...'"),
        ("mysql://user:x@y:secret@host", "; got 'mysql://...'"),
        ("mysql://user:secret@host", "; got 'mysql://user:...@host'"),
        ("host=127.0.0.1 password=secret", ""),
        ("x" * 999, f"; got '{'x' * 80}'"),
    ],
)
def test_invalid_url_is_quoted_unless_it_may_contain_a_password(url: str, shown: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_url(url)
    assert str(refused.value) == f"database: expected sqlite:///FILE or postgresql://USER@HOST/NAME{shown}"
