"""The tables of a new SQLite database, created by the statements that the migrations needed the first time.

The migrations themselves take a tenth of a second, and many commands set up a database of their own.
"""

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, create_engine

from lifesign.storage.engine import schema_version

_migrate = schema_version.upgrade_connection


def upgrade_connection(connection: Connection, to: str = "head") -> None:
    """Do as `schema_version.upgrade_connection`."""
    if connection.dialect.name != "sqlite" or to != "head" or _has_tables(connection):
        _migrate(connection, to)
        return
    for statement in _statements(schema_version.MIGRATIONS):
        connection.exec_driver_sql(statement)


def _has_tables(connection: Connection) -> bool:
    return bool(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one())


@cache
def _statements(_migrations: Path) -> list[str]:
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            _migrate(connection)
        with engine.connect() as connection:
            opened = connection.connection.driver_connection
            assert opened is not None
            statements: list[str] = list(opened.iterdump())
            # The first begins a transaction, and the last commits it.
            return statements[1:-1]
    finally:
        engine.dispose()
