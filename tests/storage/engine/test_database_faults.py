import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError
from tests.support.databases import bare_url, postgresql_server

from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.database_faults import DAMAGED, Retry, check_writable, translated
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable


@pytest.mark.parametrize(
    ("error", "has_hint"), [(ConnectionRefusedError(), True), (TimeoutError(), False), (OSError(), False)]
)
def test_refused_connection_has_a_hint(error: OSError, *, has_hint: bool) -> None:
    with pytest.raises(StoreUnavailable) as caught, translated():
        raise error
    assert ("PostgreSQL" in caught.value.hint) == has_hint
    assert type(error).__name__ in str(caught.value)


def test_broken_session_of_the_driver_is_unavailable() -> None:
    """A session that ends while it connects."""
    broken = Exception("cannot switch to state 12; another operation (2) is in progress")
    with pytest.raises(StoreUnavailable), translated():
        raise InternalError("SELECT 1", {}, broken)


def _time(transaction: Transaction) -> float:
    return transaction.now_s


async def test_read_only_postgresql_is_unavailable_for_changes(tmp_path: Path) -> None:
    def change(transaction: Transaction) -> None:
        transaction.connection.execute(text("CREATE TABLE changed ()"))

    url = bare_url("postgresql", tmp_path)
    name = make_url(url).database
    postgresql_server().psql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database = open_database(url)
    try:
        with pytest.raises(StoreUnavailable):
            await database.write(change)
        assert isinstance(database.writes.failure, StoreUnavailable)
        assert await database.read(_time) > 0
    finally:
        await database.close()


@pytest.mark.parametrize("fault", ["no such role", "no such database", "closed"])
async def test_postgresql_that_refuses_to_connect_is_unavailable(fault: str, tmp_path: Path) -> None:
    url = make_url(bare_url("postgresql", tmp_path))
    if fault == "no such role":
        url = url.set(username="nobody_at_all")
    elif fault == "no such database":
        url = url.set(database="nowhere_at_all")
    else:
        postgresql_server().psql(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false")
    database = open_database(url.render_as_string(hide_password=False))
    try:
        with pytest.raises(StoreUnavailable):
            await database.read(_time)
    finally:
        await database.close()


class PostgresqlFault(Exception):
    """An error of the driver with the code that PostgreSQL sent."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("password of host db.internal")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "reason"),
    [
        ("25006", "read-only"),
        ("42501", "rights"),
        ("57P01", "PostgresqlFault"),
        ("08006", "PostgresqlFault"),
        ("53300", "PostgresqlFault"),
        ("40001", "too busy"),
    ],
)
def test_fault_of_postgresql_is_unavailable_without_its_text(sqlstate: str, reason: str) -> None:
    with pytest.raises(StoreUnavailable, match=reason) as caught, translated():
        raise DBAPIError("SELECT 1", {}, PostgresqlFault(sqlstate))
    assert "internal" not in str(caught.value)


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "23505"])
def test_undone_transaction_is_retried_unless_it_was_the_last_attempt(sqlstate: str) -> None:
    with pytest.raises(Retry), translated(is_last=False):
        raise DBAPIError("SELECT 1", {}, PostgresqlFault(sqlstate))


@pytest.mark.parametrize(
    "error",
    [
        ProgrammingError("SELECT", {}, PostgresqlFault("42601")),
        InternalError("SELECT", {}, PostgresqlFault("XX000")),
        OperationalError("SELECT", {}, sqlite3.OperationalError("no such table: agents")),
    ],
)
def test_defect_of_a_statement_stays_a_defect(error: DBAPIError) -> None:
    with pytest.raises(type(error)), translated():
        raise error


def sqlite_fault(code: int) -> sqlite3.OperationalError:
    fault = sqlite3.OperationalError("canary")
    fault.sqlite_errorcode = code
    return fault


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (sqlite3.SQLITE_CORRUPT, DAMAGED),
        (sqlite3.SQLITE_NOTADB, DAMAGED),
        (sqlite3.SQLITE_FULL, "accepts no changes"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "accepts no changes"),
        (sqlite3.SQLITE_BUSY, "not answer (canary)"),
        (sqlite3.SQLITE_IOERR_READ, "not answer (canary)"),
    ],
)
def test_fault_of_sqlite_is_unavailable_with_its_reason(code: int, reason: str) -> None:
    with pytest.raises(StoreUnavailable) as caught, translated():
        raise OperationalError("SELECT 1", {}, sqlite_fault(code))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True),
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_IOERR_WRITE, True),
        (sqlite3.SQLITE_IOERR_READ, False),
        (sqlite3.SQLITE_CORRUPT, False),
    ],
)
def test_only_a_failed_write_or_lock_makes_a_database_unwritable(code: int, *, is_refused: bool) -> None:
    try:
        check_writable(sqlite_fault(code))
    except StoreUnavailable:
        assert is_refused
    else:
        assert not is_refused
