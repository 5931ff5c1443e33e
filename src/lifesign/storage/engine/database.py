"""Opening of a database by its URL."""

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from lifesign.errors import InvalidValue
from lifesign.storage.engine.sqlite import SqliteDatabase
from lifesign.storage.engine.sqlite_file import sealed_url
from lifesign.storage.engine.transaction import Clock, Database


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
    return parsed if parsed.drivername == "sqlite" else _with_driver_parameters(parsed)


def _with_driver_parameters(url: URL) -> URL:
    """Return a PostgreSQL URL with the names of asyncpg: `ssl` for libpq's `sslmode`."""
    if unknown := sorted(url.query.keys() - _PARAMETERS):
        raise InvalidValue(
            "database", f"?{unknown[0]}=", f"one of the parameters {', '.join(sorted(_PARAMETERS))}"
        )
    mode = url.query.get("sslmode")
    return url if mode is None else url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})


_PARAMETERS = frozenset({"host", "passfile", "port", "ssl", "sslmode", "target_session_attrs"})
_DRIVERS = frozenset({"sqlite", "postgresql", "postgres"})
_EXPECTED = "sqlite:///FILE or postgresql://USER@HOST/NAME"
MAX_SHOWN_CHARACTERS = 80
"""Maximum length of an invalid URL in a message."""


def _shown(url: str) -> str | None:
    """Return a part of an invalid URL that may be shown; None if it may contain a password."""
    scheme, is_like_one, _ = url.partition("://")
    if is_like_one:
        return f"{scheme[:MAX_SHOWN_CHARACTERS]}://..."
    # libpq also reads `host=... password=...`.
    return None if "@" in url or "=" in url else url[:MAX_SHOWN_CHARACTERS]
