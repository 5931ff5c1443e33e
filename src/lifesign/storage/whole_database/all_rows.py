"""Reading, deleting and restoring the rows of all tables."""

from collections.abc import Iterator

from sqlalchemy import MetaData, Table, func, insert, select, text
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from lifesign.storage.engine.database_faults import translated
from lifesign.storage.engine.ownership import table_names
from lifesign.storage.engine.table_definitions import metadata, sessions
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import RowRefused
from lifesign.storage.whole_database.backup_file import BATCH, Batch

TABLES: tuple[Table, ...] = tuple(metadata.sorted_tables)
"""Tables with references to them come first."""
EXCLUDED_TABLE: Table = sessions
"""Excluded from backups, though older ones contain it: users have to log in again."""
KEPT: tuple[Table, ...] = tuple(table for table in TABLES if table is not EXCLUDED_TABLE)
"""Tables in a backup."""
INVALID_ROW = (ArithmeticError, DataError, IntegrityError, LookupError, TypeError, ValueError)
"""Errors of code that uses a value of a wrong type or range."""


def lock_all(transaction: Transaction) -> None:
    """Lock all tables against reads and writes of other transactions.

    On SQLite every write keeps others from writing by itself.
    """
    if transaction.is_postgresql:
        transaction.connection.execute(text(f"LOCK TABLE {_names(transaction)} IN ACCESS EXCLUSIVE MODE"))


def filled(transaction: Transaction) -> list[str]:
    """Return the names of the tables that are not empty."""
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
    """Insert rows of a backup unchanged, except omitted ones; RowRefused if they do not fit."""
    if batch.table == EXCLUDED_TABLE.name:
        return
    target = metadata.tables.get(batch.table)
    if target is None or set(batch.columns) != set(target.columns.keys()):
        raise RowRefused(batch.table)
    rows = [dict(zip(batch.columns, row, strict=True)) for row in batch.rows]
    try:
        transaction.connection.execute(insert(target), rows)
    except (SQLAlchemyError, *INVALID_ROW) as error:
        raise RowRefused(batch.table) from error


def add_older(transaction: Transaction, batch: Batch) -> None:
    """Insert rows like `add`, into a table of an older revision."""
    if batch.table == EXCLUDED_TABLE.name:
        return
    connection = transaction.connection
    if batch.table not in table_names(connection):
        raise RowRefused(batch.table)
    # With the types of its columns: a backup contains JSON values, and databases expect text.
    there = Table(batch.table, MetaData(), autoload_with=connection, resolve_fks=False)
    if set(batch.columns) != set(there.columns.keys()):
        raise RowRefused(batch.table)
    rows = [dict(zip(batch.columns, row, strict=True)) for row in batch.rows]
    try:
        with translated():
            connection.execute(insert(there), rows)
    except (SQLAlchemyError, *INVALID_ROW) as error:
        raise RowRefused(batch.table) from error


def count_on(transaction: Transaction) -> None:
    """Set PostgreSQL's sequences of row numbers above the restored rows."""
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
