"""Access to a database: one transaction function per call.

A transaction function takes a `Transaction` first; all of it is committed, or nothing. On SQLite all
that wait are committed together, so that a hundred of them cost one flush to disk; each has its own
savepoint and fails alone.
"""

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from lifesign.errors import InvalidValue
from lifesign.storage.engine.sqlite import SqliteDatabase
from lifesign.storage.engine.sqlite_file import sealed_url
from lifesign.storage.engine.transaction import Clock, T, Transaction
from lifesign.storage.engine.write_watch import WriteWatch


class Database(Protocol):
    """The registry's database."""

    url: URL
    writes: WriteWatch
    """Whether changes fail at present."""

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function that changes nothing; it sees one state throughout."""

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function and return after the commit; any exception rolls it back.

        Raise StoreUnavailable if the database is unreachable, full or locked for too long.
        """

    async def check_files(self) -> None:
        """Raise DatabaseReplaced if its file or a companion was removed or replaced, or its log truncated."""

    async def close(self) -> None:
        """Let all connections go; functions that wait are finished first."""


def open_database(
    url: str,
    *,
    clock: Clock | None = None,
    is_only_read: bool = False,
    is_excluded: bool = False,
    must_exist: bool = False,
) -> Database:
    """Open the database behind `sqlite:///file.db`, `sqlite://` (in memory) or `postgresql://...`.

    `clock` replaces the database's own time, for tests. `is_only_read`: nothing will be written, so that an
    SQLite file need not be writable. `is_excluded`: nor is a log taken up that a crash has left, or any
    file made beside it; for a short look, since a server that starts meanwhile is not noticed.
    `must_exist`: an SQLite file is not created. InvalidValue for any other URL, and for what must exist.
    """
    parsed = read_url(url)
    if parsed.drivername != "sqlite":
        # It loads SQLAlchemy's ORM, a sixth of the time of a server's start; SQLite needs none of it.
        from lifesign.storage.engine.postgresql import PostgresqlDatabase  # noqa: PLC0415

        return PostgresqlDatabase(parsed, clock=clock)
    sealed = sealed_url(parsed, is_excluded=is_excluded) if is_only_read or is_excluded else None
    return SqliteDatabase(parsed, clock=clock, sealed=sealed, must_exist=must_exist)


def read_url(url: str) -> URL:
    """Read the URL of a database that can be opened; InvalidValue for any other."""
    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        raise InvalidValue("database", _shown(url), _EXPECTED) from None
    if parsed.drivername not in _DRIVERS:
        raise InvalidValue("database", parsed.render_as_string(hide_password=True), _EXPECTED)
    return parsed


_DRIVERS = frozenset({"sqlite", "postgresql", "postgres"})
_EXPECTED = "sqlite:///FILE or postgresql://USER@HOST/NAME"
MAX_SHOWN_CHARACTERS = 80
"""Maximum length of an invalid URL in a message."""


def _shown(url: str) -> str | None:
    """Return a part of an invalid URL that may be shown; None if it may contain a password."""
    scheme, is_like_one, _ = url.partition("://")
    if is_like_one:
        return f"{scheme[:MAX_SHOWN_CHARACTERS]}://..."
    return None if "@" in url else url[:MAX_SHOWN_CHARACTERS]
