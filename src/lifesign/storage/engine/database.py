"""Opening of a database by its URL."""

import re

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from lifesign.domain.net.database_url import has_one_reading, shown_database_url
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
    if url.partition("://")[0] in _SERVERS and not has_one_reading(url):
        raise InvalidValue("database", None, _ENCODED)
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError):
        raise InvalidValue("database", shown_database_url(url), _EXPECTED) from None
    if parsed.drivername not in {*_SERVERS, "sqlite"}:
        raise InvalidValue("database", shown_database_url(url), _EXPECTED)
    if parsed.port is not None and not 0 < parsed.port <= _MAX_PORT:
        raise InvalidValue("database", shown_database_url(url), f"a port of 1 to {_MAX_PORT}")
    if parsed.drivername == "sqlite":
        return parsed
    if not all(_hosts(parsed)):
        # asyncpg would try sockets in several directories, also in /tmp: any user may create one there.
        raise InvalidValue("database", shown_database_url(url), _WITH_HOST)
    return _with_driver_parameters(parsed)


def _hosts(url: URL) -> list[str]:
    """Return the hosts and socket directories of a PostgreSQL URL; an empty text for an absent one."""
    given = url.query.get("host") or url.host or ""
    hosts = ",".join([given] if isinstance(given, str) else given).split(",")
    return ["" if _PORT_ONLY.fullmatch(host) else host for host in hosts]


def _with_driver_parameters(url: URL) -> URL:
    """Return a PostgreSQL URL with the names of asyncpg: `ssl` for libpq's `sslmode`."""
    if unknown := sorted(url.query.keys() - _PARAMETERS):
        raise InvalidValue(
            "database", f"?{unknown[0]}=", f"one of the parameters {', '.join(sorted(_PARAMETERS))}"
        )
    mode = url.query.get("sslmode")
    return url if mode is None else url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})


_PARAMETERS = frozenset({"host", "passfile", "port", "ssl", "sslmode", "target_session_attrs"})
_MAX_PORT = 65_535
_PORT_ONLY = re.compile(r":\d*")
_SERVERS = frozenset({"postgresql", "postgres"})
_EXPECTED = "sqlite:///FILE or postgresql://USER@HOST/NAME"
_WITH_HOST = "a host, or the directory of a Unix socket, as in postgresql:///NAME?host=/run/postgresql"
_ENCODED = "a user and a password with %40 for @, and so on for : / ? # and spaces, and a number as the port"
