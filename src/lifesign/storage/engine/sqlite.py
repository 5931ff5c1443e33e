"""SQLite: one writer thread that commits in groups, some reader threads."""

import asyncio
import errno
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, event
from sqlalchemy import create_engine as create_sync_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from lifesign.domain.events.event import EventDraft
from lifesign.storage.engine.database_faults import translated
from lifesign.storage.engine.open_files import FILE_TRUNCATED, OpenFiles
from lifesign.storage.engine.sqlite_file import BUSY_SECONDS, enter_wal_mode, is_foreign_file, make_private
from lifesign.storage.engine.transaction import Clock, T, Transaction
from lifesign.storage.engine.write_ahead_log import TRUNCATED, FileShrunk
from lifesign.storage.engine.write_watch import WriteWatch
from lifesign.storage.errors import DatabaseReplaced, StoreUnavailable

_log = logging.getLogger("lifesign.registry")

MAX_WAITING = 20_000
"""Maximum of functions that wait for the SQLite writer; more are refused at once."""
MAX_GROUP = 1_000
"""Maximum of functions that one SQLite transaction commits together."""
READER_THREADS = 2
ROOM_BYTES = 262_144
"""Free space on the disk from which changes to SQLite count as possible again: more than one change takes."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(slots=True)
class _Waiting:
    """A function that waits for the writer, and who waits for it."""

    function: Callable[[Transaction], Any]
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result or exception of a function."""

    value: Any = None
    error: BaseException | None = None
    appended: Sequence[EventDraft] = ()


class SqliteDatabase:
    """An SQLite database in a file or in memory: one writer thread, several reader threads."""

    def __init__(
        self, url: URL, *, clock: Clock | None = None, sealed: URL | None = None, must_exist: bool = False
    ) -> None:
        self.url = url
        self.writes = WriteWatch()
        self._clock = clock or time.time
        self._is_sealed = sealed is not None
        self._opened_url = sealed or url
        self._has_told_loss = False
        """Whether it was logged since the files were last found in their places."""
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        is_memory = url.database in {None, "", ":memory:"}
        self._directory: Path | None = None
        self._files: OpenFiles | None = None
        if not is_memory and not self._is_sealed:
            file = Path(str(url.database))
            make_private(file, may_create=not must_exist)
            if must_exist:
                # It may vanish before SQLite opens it, which would create an empty one.
                existing = {**url.query, "uri": "true", "mode": "rw"}
                self._opened_url = url.set(database=file.absolute().as_uri(), query=existing)
            # SQLite's own path of the log, also for a symbolic link.
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

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function that only reads; it sees one consistent state."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run_alone, function)

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function and return once it is committed, together with others that wait."""
        self.writes.refuse_mismatch()
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable("too many changes are waiting for the database")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(function, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await done

    async def check_files(self) -> None:
        """Raise DatabaseReplaced if a file of the database was removed, replaced or truncated."""
        if self._files is None:
            return
        try:
            self._files.check()
        except FileShrunk:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._check_files)

    async def close(self) -> None:
        """Close all connections after the functions that wait have run."""
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
                functions = [waiting.function for waiting in group]
                outcomes, has_changed = await loop.run_in_executor(self._writer, self._run_group, functions)
                if isinstance(failure := outcomes[0].error, StoreUnavailable):
                    # Then all of them have failed.
                    self.writes.failed(failure)
                elif (
                    has_changed
                    and self.writes.failure is not None
                    and await loop.run_in_executor(self._writer, self._has_room)
                ):
                    # An empty transaction succeeds on a full disk too, and so does one that still fits.
                    self.writes.succeeded()
                for waiting, outcome in zip(group, outcomes, strict=True):
                    if outcome.appended:
                        self.writes.listener(outcome.appended)
                    _resolve(waiting.done, outcome)
        finally:
            self._writing = None

    def _run_group(self, functions: list[Callable[[Transaction], Any]]) -> tuple[list[_Outcome], bool]:
        """As `_commit_group`, unless the files are lost."""
        if self._files is None:
            return self._commit_group(functions)
        try:
            if self._files.is_lost:
                # Before anything is written: another database may have taken over the log's path.
                self._check_files()
            try:
                outcomes, has_changed = self._commit_group(functions)
            except FileShrunk:
                # Nothing was written.
                self._confirm_files()
                outcomes, has_changed = self._commit_group(functions)
            # Before any answer, a refusal too: a commit to a file without a path is lost.
            self._files.note_companions()
            self._check_files(has_changed=has_changed)
        except DatabaseReplaced as error:
            self._files.is_lost = True
            self._say_loss(error)
            return [_Outcome(error=error)] * len(functions), False
        except StoreUnavailable as error:
            # The files cannot be checked: nothing is acknowledged.
            return [_Outcome(error=error)] * len(functions), False
        self._has_told_loss = False
        return outcomes, has_changed

    def _check_files(self, *, has_changed: bool = False) -> None:
        """Raise DatabaseReplaced if the files are lost. In the writer's thread."""
        assert self._files is not None  # noqa: S101 - a database in memory has none
        try:
            self._files.check()
            if self._files.log is not None:
                self._files.log.note_commit(has_changed=has_changed)
        except FileShrunk:
            self._confirm_files()
            self._files.is_lost = False

    def _confirm_files(self) -> None:
        """Raise DatabaseReplaced if the file or its log lacks something that SQLite has written to it."""
        if self._files is None:
            return
        with translated():
            connection = self._write_engine.raw_connection()
        driver: Any = connection.driver_connection
        try:
            self._files.confirm(driver)
        finally:
            connection.close()

    def _commit_group(self, functions: list[Callable[[Transaction], Any]]) -> tuple[list[_Outcome], bool]:
        """Commit several functions at once; an exception of one of them rolls back only that one.

        Also return whether any row was written.
        """
        try:
            with translated(), self._write_engine.begin() as connection:
                if self._files is not None:
                    self._files.check_known()
                driver: Any = connection.connection.dbapi_connection
                changes = driver.total_changes
                # A single function needs no savepoint, for which SQLite would keep a copy of each page.
                run = self._run_in_savepoint if len(functions) > 1 else self._run_plainly
                outcomes = [run(connection, function) for function in functions]
                has_changed = driver.total_changes > changes
                if has_changed and self._files is not None:
                    self._files.check_before_commit()
        except FileShrunk:
            raise
        except Exception as error:  # noqa: BLE001 - it is handed to all who wait
            return [_Outcome(error=error)] * len(functions), False
        return outcomes, has_changed

    def _say_loss(self, error: DatabaseReplaced) -> None:
        """Log that the files are lost, and move the log of a lost file into it.

        SQLite would apply the log to whatever database lies at the path. The moved file becomes complete.
        Truncated files are left as they are: the rest is not the database's state at any time.
        """
        if self._has_told_loss or self._files is None:
            return
        self._has_told_loss = True
        _log.error("database file %s: %s; see docs/operating.md, section 10", self._files.file, error.why)
        if error.why in {TRUNCATED, FILE_TRUNCATED}:
            return
        with suppress(SQLAlchemyError, sqlite3.Error, StoreUnavailable):
            connection = self._write_engine.raw_connection()
            try:
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()

    def _has_room(self) -> bool:
        """Return whether the disk has ROOM_BYTES left: the log may have some space that it reuses.

        The space is allocated and freed at once, since no count of free blocks takes quotas into account.
        """
        if self._directory is None:
            return True
        try:
            with TemporaryFile(buffering=0, dir=self._directory) as file:
                return file.write(bytes(ROOM_BYTES)) == ROOM_BYTES
        except OSError as error:
            # Other errors say nothing about the disk.
            return error.errno not in _NO_ROOM

    def _run_plainly(self, connection: Connection, function: Callable[[Transaction], Any]) -> _Outcome:
        transaction = Transaction(connection, self._clock)
        return _Outcome(function(transaction), appended=transaction.appended)

    def _run_in_savepoint(self, connection: Connection, function: Callable[[Transaction], Any]) -> _Outcome:
        savepoint = connection.begin_nested()
        transaction = Transaction(connection, self._clock)
        try:
            with translated():
                value = function(transaction)
        except StoreUnavailable:
            # SQLite may have undone the whole transaction already: there is no way back to the savepoint.
            raise
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits
            savepoint.rollback()
            return _Outcome(error=error)
        savepoint.commit()
        return _Outcome(value, appended=transaction.appended)

    def _run_alone(self, function: Callable[[Transaction], T]) -> T:
        with translated(), self._read_engine.connect() as connection, connection.begin() as transaction:
            try:
                return function(Transaction(connection, self._clock))
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
            # A parameter may be a secret, and the text of an error is logged.
            hide_parameters=True,
            # An agent's record has three columns of JSON, and Python's own reader takes six times as long.
            json_deserializer=from_json,
            **({"poolclass": StaticPool} if is_memory else {}),
        )

        @event.listens_for(engine, "do_connect")
        def _check_before(*_given: object) -> None:
            # Else SQLite would create an empty file in place of one that was removed.
            if self._files is not None and self._files.is_known:
                self._files.check_paths()

        @event.listens_for(engine, "connect")
        def _set_up(connection: sqlite3.Connection, _record: object) -> None:
            if self._files is not None and self._files.is_known:
                self._files.check_paths()
            elif self._files is not None:
                self._files.note_opened()
            if not (self._is_sealed or is_foreign_file(connection)):
                enter_wal_mode(connection)
            # FULL: a commit that was answered survives a power failure, not only a crash.
            for pragma in ("synchronous=FULL", "foreign_keys=ON", "cache_size=-65536"):
                connection.execute(f"PRAGMA {pragma}")

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return engine


def _resolve(done: asyncio.Future[Any], outcome: _Outcome) -> None:
    if done.done():
        # The caller has left; the transaction is committed all the same.
        return
    if outcome.error is not None:
        done.set_exception(outcome.error)
    else:
        done.set_result(outcome.value)
