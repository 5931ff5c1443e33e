import time
from pathlib import Path

import pytest
from sqlalchemy import insert, make_url, select, text
from tests.support.databases import empty_url, postgresql_server

from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.postgresql_sessions import MAX_IDLE_SECONDS, SETTINGS
from lifesign.storage.engine.table_definitions import registry
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable


def _add_row(transaction: Transaction) -> None:
    transaction.connection.execute(
        insert(registry).values(id=1, token_floor=0, monitor="", excluded_downtime="")
    )


def _rows(transaction: Transaction) -> list[int]:
    return list(transaction.connection.scalars(select(registry.c.id)))


async def _costs_of_pages(url: str) -> list[str]:
    """Return the cost of a random page before and after a transaction that is rolled back."""
    costs: list[str] = []

    def look(transaction: Transaction) -> None:
        costs.append(str(transaction.connection.scalar(text("SHOW random_page_cost"))))
        raise LookupError("on purpose")

    database = open_database(url)
    try:
        for _ in range(2):
            with pytest.raises(LookupError):
                await database.write(look)
    finally:
        await database.close()
    return costs


async def test_default_random_page_cost_suits_flash_storage(tmp_path: Path) -> None:
    assert await _costs_of_pages(empty_url("postgresql", tmp_path)) == ["1.1", "1.1"]


async def test_page_cost_of_the_database_is_kept(tmp_path: Path) -> None:
    url = empty_url("postgresql", tmp_path)
    name = make_url(url).database
    postgresql_server().psql(f"ALTER DATABASE {name} SET random_page_cost = 2.5")
    assert await _costs_of_pages(url) == ["2.5", "2.5"]


@pytest.mark.parametrize("idle_s", [0.0, 3600.0])
async def test_dead_idle_connection_is_replaced_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float
) -> None:
    monkeypatch.setattr("lifesign.storage.engine.postgresql_sessions.PING_AFTER_SECONDS", idle_s)
    url = empty_url("postgresql", tmp_path)
    database, other = open_database(url), open_database(url)
    try:
        await database.write(_add_row)
        await other.write(
            lambda transaction: transaction.connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                     " WHERE datname = current_database() AND pid <> pg_backend_pid()")
            ).all()
        )  # fmt: skip
        if idle_s:
            # It was used just now, so it was not checked; the one after it is new.
            with pytest.raises(StoreUnavailable):
                await database.read(_rows)
        assert await database.read(_rows) == [1]
    finally:
        await database.close()
        await other.close()


async def test_transaction_of_a_process_that_does_not_continue_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_url("postgresql", tmp_path)
    monkeypatch.setitem(SETTINGS, "idle_in_transaction_session_timeout", "100ms")
    stopped, other = open_database(url), open_database(url)

    def stop(transaction: Transaction) -> None:
        _add_row(transaction)
        time.sleep(1)
        _rows(transaction)

    try:
        await stopped.read(_rows)
        # Connections that are made from now on.
        monkeypatch.undo()
        shown = await other.read(lambda transaction: transaction.connection.scalar(text(
            "SHOW idle_in_transaction_session_timeout"
        )))  # fmt: skip
        assert shown == f"{MAX_IDLE_SECONDS}s"
        with pytest.raises(StoreUnavailable):
            await stopped.write(stop)
        await other.write(_add_row)
        assert await stopped.read(_rows) == [1]
    finally:
        await stopped.close()
        await other.close()
