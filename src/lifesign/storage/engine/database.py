"""How does a deed become one transaction, all of it or nothing?

A deed is a plain function that takes a `Transaction` first. On SQLite all deeds that wait are
committed together, so that a hundred of them cost one flush to disk; each has its own savepoint and
fails alone. On PostgreSQL each has its own connection, and the server groups the commits.
"""

import asyncio
import errno
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol, TypeVar

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, event, func, make_url, select
from sqlalchemy import create_engine as create_sync_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from lifesign.domain.events.event import EventDraft
from lifesign.errors import DatabaseReplaced, InvalidValue, StoreUnavailable
from lifesign.storage.engine import postgresql_sessions
from lifesign.storage.engine.database_faults import PRIMARY_CODE, Retry, translated
from lifesign.storage.engine.open_files import OpenFiles
from lifesign.storage.engine.ownership import TABLES_OF_SQLITE, is_foreign

T = TypeVar("T")
Clock = Callable[[], float]
Listener = Callable[[Sequence[EventDraft]], None]
"""Is told which events one transaction has appended to the log; it must not raise."""

MAX_WAITING = 20_000
"""Of deeds that wait for the SQLite writer; more are refused at once."""
MAX_GROUP = 1_000
"""Of deeds that one SQLite transaction commits together."""
BUSY_SECONDS = 10.0
"""How long another process may hold the SQLite file before a deed fails."""
BUSY_RETRY_SECONDS = 0.01
"""Between two tries where SQLite itself does not wait."""
POOL_CONNECTIONS = 10
"""To PostgreSQL, per server process."""
POOL_WAIT_SECONDS = 10.0
STATEMENT_SECONDS = 30.0
"""How long PostgreSQL may take over one statement."""
WARN_AGAIN_SECONDS = 60.0
"""Between two lines in the log that say that changes fail."""
READER_THREADS = 2
ROOM_BYTES = 262_144
"""That the disk must have left before changes to SQLite count as stored again: more than one change takes."""
MAX_TRIES = 5
"""Of a deed whose transaction PostgreSQL gave up because of another one."""

EPOCH = func.extract("epoch", func.clock_timestamp())
"""PostgreSQL's time."""

_SELECT_EPOCH = select(EPOCH)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_log = logging.getLogger("lifesign.registry")


@dataclass(slots=True)
class Transaction:
    """One transaction, and the time at which it happens."""

    connection: Connection
    _clock: Clock | None
    _now_s: float | None = field(default=None)
    appended: list[EventDraft] = field(default_factory=list)
    """To the event log; whoever listens is told of them once they are committed."""

    @property
    def now_s(self) -> float:
        """The database's time in seconds since the epoch, the same throughout the transaction."""
        if self._now_s is None:
            if self._clock is not None:
                self._now_s = self._clock()
            else:
                self._now_s = float(self.connection.scalar(_SELECT_EPOCH))  # type: ignore[arg-type]
        return self._now_s

    def take_time(self, at_s: float) -> None:
        """Take the time that a statement has told besides, unless it is known already."""
        if self._now_s is None and self._clock is None:
            self._now_s = at_s

    def after_waiting(self) -> "Transaction":
        """The same transaction at the time that it is now: whoever has waited for a lock judges by that."""
        return Transaction(self.connection, self._clock, appended=self.appended)

    @property
    def is_postgresql(self) -> bool:
        """Whether statements may use what only PostgreSQL has."""
        return self.connection.dialect.name == "postgresql"


def _hear_nothing(_appended: Sequence[EventDraft]) -> None:
    """Nobody listens."""


class WriteWatch:
    """Remembers whether changes fail because the database is away, and says so in the log."""

    def __init__(self) -> None:
        self.listener: Listener = _hear_nothing
        """Hears, in the event loop, of all that this process appends to the event log."""
        self.failure: StoreUnavailable | None = None
        """Of the last change; None if it was stored with room for others, or failed through no fault of the
        database."""
        self.mismatch: str | None = None
        """Why the database is not the one that the server began with; while set, every change is refused."""
        self._warned_at_s = -inf
        self._is_said = False

    def failed(self, failure: StoreUnavailable) -> None:
        """Take note; said once, and again each WARN_AGAIN_SECONDS while it lasts."""
        self.failure = failure
        now_s = time.monotonic()
        if now_s - self._warned_at_s >= WARN_AGAIN_SECONDS:
            self._warned_at_s, self._is_said = now_s, True
            _log.warning("changes cannot be stored: %s", failure)

    def refuse_mismatch(self) -> None:
        """Raise DatabaseReplaced while the database is not the one that the server began with."""
        if self.mismatch is not None:
            raise DatabaseReplaced(self.mismatch)

    def succeeded(self) -> None:
        """Take note that something was stored."""
        self.failure = None
        if self._is_said:
            self._is_said = False
            _log.warning("changes are stored again")


class Database(Protocol):
    """Where the registry keeps what it knows."""

    url: URL
    writes: WriteWatch
    """Whether changes fail at present."""

    async def read(self, deed: Callable[[Transaction], T]) -> T:
        """Run a deed that changes nothing; it sees one state throughout."""

    async def write(self, deed: Callable[[Transaction], T]) -> T:
        """Run a deed and return once it is committed; whatever it raises undoes it.

        StoreUnavailable if the database is away, full or locked for too long.
        """

    def check_files(self) -> None:
        """Raise DatabaseReplaced if its file, or one of its companions, was removed or replaced."""

    async def close(self) -> None:
        """Let all connections go; deeds that wait are finished first."""


def open_database(
    url: str,
    *,
    clock: Clock | None = None,
    is_only_read: bool = False,
    is_left_alone: bool = False,
    must_exist: bool = False,
) -> Database:
    """Open the database behind `sqlite:///file.db`, `sqlite://` (in memory) or `postgresql://...`.

    `clock` replaces the database's own time, for tests. `is_only_read`: nothing will be written, so that an
    SQLite file need not be writable. `is_left_alone`: nor is a log taken up that a crash has left, or any
    file made beside it; for a short look, since a server that starts meanwhile is not noticed.
    `must_exist`: an SQLite file is not created. InvalidSetting for any other URL, and for what must exist.
    """
    parsed = read_url(url)
    if parsed.drivername != "sqlite":
        return PostgresqlDatabase(parsed, clock=clock)
    sealed = _sealed(parsed, is_left_alone=is_left_alone) if is_only_read or is_left_alone else None
    return SqliteDatabase(parsed, clock=clock, sealed=sealed, must_exist=must_exist)


def read_url(url: str) -> URL:
    """Read the URL of a database that can be opened; InvalidSetting for any other."""
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
"""Of what was given for a URL and is none."""


def _shown(url: str) -> str | None:
    """Return what may be shown of what is no URL; None for what may hold a password."""
    scheme, is_like_one, _ = url.partition("://")
    if is_like_one:
        return f"{scheme[:MAX_SHOWN_CHARACTERS]}://..."
    return None if "@" in url else url[:MAX_SHOWN_CHARACTERS]


@dataclass(slots=True)
class _Waiting:
    """A deed that waits for the writer, and who waits for it."""

    deed: Callable[[Transaction], Any]
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a deed returned or raised."""

    value: Any = None
    error: BaseException | None = None
    appended: Sequence[EventDraft] = ()


class SqliteDatabase:
    """An SQLite file, or memory: one writer thread that commits in groups, some reader threads."""

    def __init__(
        self, url: URL, *, clock: Clock | None = None, sealed: URL | None = None, must_exist: bool = False
    ) -> None:
        self.url = url
        self.writes = WriteWatch()
        self._clock = clock or time.time
        self._is_sealed = sealed is not None
        self._opened_url = sealed or url
        self._has_told_loss = False
        """Since the files were last found in their places."""
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        is_memory = url.database in {None, "", ":memory:"}
        self._directory: Path | None = None
        self._files: OpenFiles | None = None
        if not is_memory and not self._is_sealed:
            file = Path(str(url.database))
            _make_private(file, may_create=not must_exist)
            if must_exist:
                # It may vanish before SQLite opens it, which would create an empty one.
                existing = {**url.query, "uri": "true", "mode": "rw"}
                self._opened_url = url.set(database=file.absolute().as_uri(), query=existing)
            # Where SQLite keeps its log, also of a file that is a link.
            self._directory = Path(str(url.database)).resolve().parent
            self._files = OpenFiles(Path(str(url.database)))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="registry-writer")
        self._write_engine = self._engine("BEGIN IMMEDIATE")
        if is_memory:
            # In memory there is one connection, and the writer's thread owns it.
            self._readers, self._read_engine = self._writer, self._write_engine
        else:
            self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="registry-reader")
            self._read_engine = self._engine("BEGIN")

    async def read(self, deed: Callable[[Transaction], T]) -> T:
        """Run a deed that changes nothing; it sees one state throughout."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run_alone, deed)

    async def write(self, deed: Callable[[Transaction], T]) -> T:
        """Run a deed and return once it is committed, together with others that wait."""
        self.writes.refuse_mismatch()
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable("too many changes wait for the database")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(deed, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await done

    def check_files(self) -> None:
        """Raise DatabaseReplaced if its file, or one of its companions, was removed or replaced."""
        if self._files is not None:
            self._files.check()

    async def close(self) -> None:
        """Let all connections go; deeds that wait are finished first."""
        while self._writing is not None:
            await asyncio.shield(self._writing)
        for executor in {self._writer, self._readers}:
            executor.shutdown(wait=True)
        for engine in {self._write_engine, self._read_engine}:
            engine.dispose()

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
                deeds = [waiting.deed for waiting in group]
                outcomes, has_changed = await loop.run_in_executor(self._writer, self._run_group, deeds)
                if isinstance(failure := outcomes[0].error, StoreUnavailable):
                    # Then all of them have failed.
                    self.writes.failed(failure)
                elif (
                    has_changed
                    and self.writes.failure is not None
                    and await loop.run_in_executor(self._writer, self._has_room)
                ):
                    # What changes nothing succeeds on a full disk too, and so does what still fits.
                    self.writes.succeeded()
                for waiting, outcome in zip(group, outcomes, strict=True):
                    if outcome.appended:
                        self.writes.listener(outcome.appended)
                    _resolve(waiting.done, outcome)
        finally:
            self._writing = None

    def _run_group(self, deeds: list[Callable[[Transaction], Any]]) -> tuple[list[_Outcome], bool]:
        """As `_commit_group`, unless the files are lost."""
        if self._files is None:
            return self._commit_group(deeds)
        try:
            if self._files.is_lost:
                # Before anything is written: another database may have taken over the log's path.
                self._files.check()
            outcomes, has_changed = self._commit_group(deeds)
            # Before the answer, a refusal too: what was committed to a file without a path is lost.
            self._files.note_companions()
            self._files.check()
        except DatabaseReplaced as error:
            self._empty_log(error)
            return [_Outcome(error=error)] * len(deeds), False
        self._has_told_loss = False
        return outcomes, has_changed

    def _commit_group(self, deeds: list[Callable[[Transaction], Any]]) -> tuple[list[_Outcome], bool]:
        """Commit several deeds at once; what one of them raises undoes that one alone.

        Tells besides whether any row was written.
        """
        try:
            with translated(), self._write_engine.begin() as connection:
                driver: Any = connection.connection.dbapi_connection
                changes = driver.total_changes
                # Who is alone fails with all of it: for a savepoint SQLite keeps a copy of each page.
                run = self._run_in_savepoint if len(deeds) > 1 else self._run_plainly
                outcomes = [run(connection, deed) for deed in deeds]
                has_changed = driver.total_changes > changes
        except Exception as error:  # noqa: BLE001 - it is handed to all who wait
            return [_Outcome(error=error)] * len(deeds), False
        return outcomes, has_changed

    def _empty_log(self, error: DatabaseReplaced) -> None:
        """Once the file is lost, move its log into it: no other file at its path must be read with that log.

        SQLite would apply the log to whatever database lies at the path. The moved file becomes complete.
        """
        if self._has_told_loss or self._files is None:
            return
        self._has_told_loss = True
        _log.error("%s: %s; docs/operating.md, section 10, says how to go on", self._files.file, error.why)
        with suppress(SQLAlchemyError, sqlite3.Error, StoreUnavailable):
            connection = self._write_engine.raw_connection()
            try:
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()

    def _has_room(self) -> bool:
        """Whether the disk can hold ROOM_BYTES more: the log may have kept some room that it reuses.

        They are taken and given back at once, since no count of free blocks knows of quotas.
        """
        if self._directory is None:
            return True
        try:
            with TemporaryFile(buffering=0, dir=self._directory) as file:
                return file.write(bytes(ROOM_BYTES)) == ROOM_BYTES
        except OSError as error:
            # Anything else tells nothing about the disk.
            return error.errno not in _NO_ROOM

    def _run_plainly(self, connection: Connection, deed: Callable[[Transaction], Any]) -> _Outcome:
        transaction = Transaction(connection, self._clock)
        return _Outcome(deed(transaction), appended=transaction.appended)

    def _run_in_savepoint(self, connection: Connection, deed: Callable[[Transaction], Any]) -> _Outcome:
        savepoint = connection.begin_nested()
        transaction = Transaction(connection, self._clock)
        try:
            with translated():
                value = deed(transaction)
        except StoreUnavailable:
            # SQLite may have undone the whole transaction already: there is no way back to the savepoint.
            raise
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits
            savepoint.rollback()
            return _Outcome(error=error)
        savepoint.commit()
        return _Outcome(value, appended=transaction.appended)

    def _run_alone(self, deed: Callable[[Transaction], T]) -> T:
        with translated(), self._read_engine.connect() as connection, connection.begin() as transaction:
            try:
                return deed(Transaction(connection, self._clock))
            except OperationalError:
                # An empty file may have taken its place, which has no tables.
                self.writes.refuse_mismatch()
                raise
            finally:
                transaction.rollback()

    def _engine(self, begin: str) -> Engine:
        is_memory = self.url.database in {None, "", ":memory:"}
        engine = create_sync_engine(
            self._opened_url,
            connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS, "isolation_level": None},
            # What is bound may be a secret, and an error's text ends in a log.
            hide_parameters=True,
            # An agent's record has three columns of JSON, and Python's own reader takes six times as long.
            json_deserializer=from_json,
            **({"poolclass": StaticPool} if is_memory else {}),
        )

        @event.listens_for(engine, "do_connect")
        def _check_before(*_given: object) -> None:
            # Else SQLite would create an empty file in place of one that was removed.
            if self._files is not None and self._files.is_known:
                self._files.check()

        @event.listens_for(engine, "connect")
        def _set_up(connection: sqlite3.Connection, _record: object) -> None:
            if self._files is not None and self._files.is_known:
                self._files.check()
            elif self._files is not None:
                self._files.note_opened()
            if not (self._is_sealed or _is_foreign(connection)):
                _enter_wal_mode(connection)
            # FULL: a commit that was answered survives a power failure, not only a crash.
            for pragma in ("synchronous=FULL", "foreign_keys=ON", "cache_size=-65536"):
                connection.execute(f"PRAGMA {pragma}")

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return engine


def _sealed(url: URL, *, is_left_alone: bool = False) -> URL | None:
    """Return how an SQLite file is read of which nothing is changed; None if it may be changed.

    It may not if `is_left_alone`, or if this user may read it and not write. Where no log lies beside it
    nobody is at work on it: it is read as it is, for SQLite could not make there the files by which readers
    and writers know of each other. InvalidSetting if it may not be read, or its log may not, which holds the
    latest changes; if it is no file and may not be made either.
    """
    file = Path(str(url.database or "")).absolute()
    if not file.is_file():
        if is_left_alone:
            raise InvalidValue("database", url.database or str(url), "a file, and no directory or device")
        return None
    if not os.access(file, os.R_OK, effective_ids=True):
        raise InvalidValue("database", str(file), "a file that can be read (its owner or mode forbids it)")
    places = (file, file.resolve().parent)
    if not is_left_alone and all(os.access(place, os.W_OK, effective_ids=True) for place in places):
        return None
    log = file.resolve().with_name(f"{file.resolve().name}-wal")
    index = log.with_name(f"{file.resolve().name}-shm")
    if not log.exists() or not (index.exists() or log.stat().st_size):
        return url.set(database=file.as_uri(), query={"uri": "true", "mode": "ro", "immutable": "1"})
    for beside in (log, index):
        if not os.access(beside, os.R_OK, effective_ids=True):
            why = "its owner or mode forbids it" if beside.exists() else "only who may write can make it"
            expected = f"a file whose latest changes can be read too, in {beside.name} beside it ({why})"
            raise InvalidValue("database", str(file), expected)
    return url.set(database=file.as_uri(), query={"uri": "true", "mode": "ro", "readonly_shm": "1"})


def _is_foreign(connection: sqlite3.Connection) -> bool:
    return is_foreign(frozenset(name for (name,) in connection.execute(TABLES_OF_SQLITE)))


def _enter_wal_mode(connection: sqlite3.Connection) -> None:
    """Have the file keep a write-ahead log; servers that start at once wait for one another.

    For the lock that this takes SQLite does not wait, however long its timeout is.
    """
    give_up_s = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & PRIMARY_CODE == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() >= give_up_s:
                raise
            time.sleep(BUSY_RETRY_SECONDS)
        else:
            return


class PostgresqlDatabase:
    """A PostgreSQL server, shared by any number of registry processes."""

    def __init__(self, url: URL, *, clock: Clock | None = None) -> None:
        self.url = url.set(drivername="postgresql+asyncpg")
        self.writes = WriteWatch()
        self._clock = clock
        self._engine: AsyncEngine = create_async_engine(
            self.url,
            pool_size=POOL_CONNECTIONS,
            max_overflow=0,
            pool_timeout=POOL_WAIT_SECONDS,
            # The connection that was used last knows our statements: ten in turns would learn each ten times.
            pool_use_lifo=True,
            hide_parameters=True,
            connect_args={
                "timeout": POOL_WAIT_SECONDS,
                "command_timeout": STATEMENT_SECONDS,
                "server_settings": postgresql_sessions.SETTINGS,
            },
        )
        postgresql_sessions.look_after(self._engine.sync_engine)

    async def read(self, deed: Callable[[Transaction], T]) -> T:
        """Run a deed that changes nothing; it sees one state throughout."""
        return await self._again(lambda: self._run(deed, isolation="REPEATABLE READ"))

    async def write(self, deed: Callable[[Transaction], T]) -> T:
        """Run a deed and return once it is committed."""
        self.writes.refuse_mismatch()
        try:
            result = await self._again(lambda: self._run(deed, isolation="READ COMMITTED"))
        except StoreUnavailable as failure:
            self.writes.failed(failure)
            raise
        self.writes.succeeded()
        return result

    def check_files(self) -> None:
        """There are none of ours."""

    async def close(self) -> None:
        """Let all connections go."""
        await self._engine.dispose()

    async def _run(self, deed: Callable[[Transaction], T], *, isolation: str) -> T:
        appended: list[EventDraft] = []
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level=isolation)
            async with connection.begin():
                value = await connection.run_sync(
                    lambda sync: deed(Transaction(sync, self._clock, appended=appended))
                )
        if appended:
            self.writes.listener(appended)
        return value

    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again when another transaction was in the way, or a kept connection had died."""
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                with translated(is_last=tries_left == 0):
                    return await attempt()
            except Retry:
                continue
        raise AssertionError("the last try returns or raises")  # pragma: no cover


def _resolve(done: asyncio.Future[Any], outcome: _Outcome) -> None:
    if done.done():
        # Whoever asked has left; it is committed all the same.
        return
    if outcome.error is not None:
        done.set_exception(outcome.error)
    else:
        done.set_result(outcome.value)


def _make_private(file: Path, *, may_create: bool) -> None:
    """Create the file if it may be created, readable by its owner only: it holds digests of keys.

    One that is there keeps its mode, which its owner may have meant; the log says so. It is not opened:
    to close it again would let go of all locks that this process has on it, SQLite's too, and the next
    process that closes the database would delete its log under us.
    """
    try:
        if may_create:
            _create(file)
    except OSError as error:
        raise _unwritable(file, error.strerror) from None
    mode = check_writable(file)
    if mode & 0o077:
        shown = stat.S_IMODE(mode)
        _log.warning("others may read %s (mode %o), which holds secrets: chmod 600 it", file, shown)


def check_writable(file: Path) -> int:
    """Return the mode of a file that this user may write to; InvalidSetting if it is not such a one."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise _unwritable(file, error.strerror) from None
    if not stat.S_ISREG(mode) or not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
        raise _unwritable(file, _obstacle(file, mode))
    return mode


def _unwritable(file: Path, why: str | None) -> InvalidValue:
    return InvalidValue("database", str(file), f"a file that can be written ({why})")


def _obstacle(file: Path, mode: int) -> str:
    if not stat.S_ISREG(mode):
        return "it is no regular file"
    is_read_only = os.statvfs(file).f_flag & os.ST_RDONLY
    return "its file system is read-only" if is_read_only else "its owner or mode forbids it"


def _create(file: Path) -> None:
    """Create the file if it is not there; what root creates in another user's directory is that user's.

    Else a server that runs as that user could not open what `migrate` or `restore` has set up for it.
    """
    try:
        # Nor through a link: only what did not exist is given away.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    try:
        if os.geteuid() == 0:
            place = file.parent.stat()
            os.fchown(descriptor, place.st_uid, place.st_gid)
    finally:
        os.close(descriptor)
