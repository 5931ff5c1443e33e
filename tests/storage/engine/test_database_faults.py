from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import InternalError
from tests.support.databases import bare_url, postgresql_server

from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.database_faults import translated
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
