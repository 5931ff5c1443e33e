"""Classification of database errors: unreachable or a defect, and whether a retry helps."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from lifesign.storage.errors import StoreUnavailable

PRIMARY_CODE = 0xFF
"""The bits of an SQLite error code that show its kind."""

# PostgreSQL: serialization_failure, deadlock_detected, and unique_violation, which means that another
# transaction added the row first.
_TRY_AGAIN = frozenset({"40001", "40P01", "23505"})
# Classes: connection exception, invalid authorization, no such database, insufficient resources, object not
# in the required state (a database that accepts no connections), operator intervention, system error.
_POSTGRESQL_UNAVAILABLE = frozenset({"08", "28", "3D", "53", "55", "57", "58"})
_POSTGRESQL_READ_ONLY = "25006"
"""A standby, or a former primary after a failover."""
_POSTGRESQL_NOT_ALLOWED = "42501"
"""The role of the URL lacks rights on the tables, as after a failover to a copy with other grants."""
_SQLITE_UNAVAILABLE = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOTADB,
})  # fmt: skip
SERVER_HINT = "check that PostgreSQL runs, and that host and port of the database's URL are right"
NO_DATABASE = "the file is damaged or is not an SQLite database"
DAMAGED = f"{NO_DATABASE}: restore a backup"
_SQLITE_IS_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SQLITE_IS_CLOSED = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY})
_SQLITE_CANNOT_WRITE = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL,
})  # fmt: skip
_SQLITE_WRITE_FAILED = frozenset({
    sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_SHMSIZE,
})  # fmt: skip
"""With all bits: other input errors mean that a read failed."""


class Retry(Exception):
    """The database undid the transaction; running it again may succeed."""


@contextmanager
def translated(*, is_last: bool = True) -> Iterator[None]:
    """Raise a driver's exception about an unreachable database as StoreUnavailable."""
    try:
        yield
    except (OSError, TimeoutError, PoolTimeout) as error:
        unavailable = StoreUnavailable(f"the database cannot be reached ({type(error).__name__})")
        if isinstance(error, ConnectionRefusedError):
            unavailable.hint = SERVER_HINT
        raise unavailable from error
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) in _TRY_AGAIN:
            if is_last:
                raise StoreUnavailable("the database is too busy with other changes") from error
            raise Retry from error
        if _is_unreachable(error):
            raise StoreUnavailable(_unreachable_reason(error)) from error
        raise


def check_writable(error: sqlite3.Error) -> None:
    """Raise StoreUnavailable if SQLite cannot write or lock its files; their content is not checked."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & PRIMARY_CODE in _SQLITE_CANNOT_WRITE or code in _SQLITE_WRITE_FAILED:
        raise StoreUnavailable(_sqlite_reason(error)) from error


def _is_unreachable(error: DBAPIError) -> bool:
    """Return whether the database failed, not the statement."""
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return code & PRIMARY_CODE in _SQLITE_UNAVAILABLE
    sqlstate = getattr(error.orig, "sqlstate", None)
    return (
        error.connection_invalidated
        or isinstance(error, OperationalError | InterfaceError)
        # asyncpg reports a session that ended while it connected as a fault of its own state.
        or (isinstance(error, InternalError) and sqlstate is None)
        or (sqlstate is not None and sqlstate[:2] in _POSTGRESQL_UNAVAILABLE)
        or sqlstate in {_POSTGRESQL_READ_ONLY, _POSTGRESQL_NOT_ALLOWED}
    )


def _unreachable_reason(error: DBAPIError) -> str:
    if not isinstance(error.orig, sqlite3.Error):
        sqlstate = getattr(error.orig, "sqlstate", None)
        if sqlstate == _POSTGRESQL_READ_ONLY:
            return "the database accepts no changes (it is read-only)"
        if sqlstate == _POSTGRESQL_NOT_ALLOWED:
            return "the role of the database's URL lacks rights on the tables"
        # PostgreSQL's message may contain hosts and users.
        return f"the database does not answer ({type(error.orig).__name__})"
    return _sqlite_reason(error.orig)


def _sqlite_reason(error: sqlite3.Error) -> str:
    if error.sqlite_errorcode & PRIMARY_CODE in _SQLITE_IS_DAMAGED:
        return DAMAGED
    if error.sqlite_errorcode & PRIMARY_CODE in _SQLITE_IS_CLOSED:
        return f"the database accepts no changes ({error})"
    return f"the database does not answer ({error})"
