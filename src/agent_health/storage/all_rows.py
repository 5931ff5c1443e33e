"""How are the rows of all tables read, removed and put back?"""

from collections.abc import Iterator

from sqlalchemy import Table, func, insert, select, text
from sqlalchemy.exc import SQLAlchemyError

from agent_health.errors import RowRefused
from agent_health.storage.backup_file import BATCH, Batch
from agent_health.storage.database import Transaction
from agent_health.storage.tables import metadata, sessions

TABLES: tuple[Table, ...] = tuple(metadata.sorted_tables)
"""Those that others refer to come first."""
KEPT: tuple[Table, ...] = tuple(table for table in TABLES if table is not sessions)
"""What a backup holds: who was logged in when it was made has to log in again."""


def lock_all(transaction: Transaction) -> None:
    """Keep everybody else from reading and writing until the transaction ends.

    On SQLite every write keeps others from writing by itself.
    """
    if transaction.is_postgresql:
        transaction.connection.execute(text(f"LOCK TABLE {_names(transaction)} IN ACCESS EXCLUSIVE MODE"))


def filled(transaction: Transaction) -> list[str]:
    """Return the names of the tables that hold anything."""
    return [
        table.name
        for table in TABLES
        if transaction.connection.execute(select(1).select_from(table).limit(1)).first() is not None
    ]


def read(transaction: Transaction, table: Table) -> Iterator[tuple[object, ...]]:
    """Read all rows of a table in the order of their keys, a batch at a time."""
    wanted = select(table).order_by(*table.primary_key.columns)
    for row in transaction.connection.execute(wanted, execution_options={"yield_per": BATCH}):
        yield tuple(row)


def remove_all(transaction: Transaction) -> None:
    """Empty all tables."""
    if transaction.is_postgresql:
        transaction.connection.execute(text(f"TRUNCATE {_names(transaction)}"))
        return
    for table in reversed(TABLES):
        transaction.connection.execute(table.delete())


def add(transaction: Transaction, batch: Batch) -> None:
    """Put rows back as they were; RowRefused if they do not fit.

    Sessions, which older backups hold, are left out.
    """
    if batch.table == sessions.name:
        return
    table = metadata.tables.get(batch.table)
    if table is None or set(batch.columns) != set(table.columns.keys()):
        raise RowRefused(batch.table)
    rows = [dict(zip(batch.columns, row, strict=True)) for row in batch.rows]
    try:
        transaction.connection.execute(insert(table), rows)
    except (SQLAlchemyError, TypeError, ValueError) as error:
        raise RowRefused(batch.table) from error


def count_on(transaction: Transaction) -> None:
    """Let PostgreSQL number new rows above those that were put back; SQLite does by itself."""
    if not transaction.is_postgresql:
        return
    for table in TABLES:
        column = table.autoincrement_column
        if column is not None:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            last = func.coalesce(func.max(column), 0) + 1
            transaction.connection.execute(select(func.setval(sequence, last, False)).select_from(table))  # noqa: FBT003 - SQL


def _names(transaction: Transaction) -> str:
    preparer = transaction.connection.dialect.identifier_preparer
    return ", ".join(preparer.format_table(table) for table in TABLES)
