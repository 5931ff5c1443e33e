"""Use of an SQLite file by other processes.

A process that has opened a file with a write-ahead log holds a lock as long as its connection is open, and
the log cannot be removed meanwhile: SQLite itself knows this, also of killed processes.
"""

import errno
import fcntl
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from lifesign.storage.engine.database_faults import PRIMARY_CODE
from lifesign.storage.engine.sqlite_file import BUSY_SECONDS
from lifesign.storage.errors import DatabaseInUse, StoreUnavailable

WAIT_SECONDS = 1.0
"""Time to wait for a command that is ending and has the file open for a moment."""
RETRY_SECONDS = 0.05
WRITE_LOCK_BYTE = 120
"""Byte of the index of a write-ahead log that a writer locks (sqlite.org/walformat.html)."""

_IN_USE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def check_unused(file: Path) -> None:
    """Raise DatabaseInUse if another process has the file open, StoreUnavailable if it is damaged.

    Takes up to WAIT_SECONDS. Other processes may open the file afterwards.
    """
    give_up_s = time.monotonic() + WAIT_SECONDS
    while _is_used(file):
        if time.monotonic() >= give_up_s:
            raise DatabaseInUse(str(file))
        time.sleep(RETRY_SECONDS)


def _is_used(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
            # Only the last process with the file open may remove the log; the next one begins a new log.
            connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & PRIMARY_CODE in _IN_USE:
            return True
        raise StoreUnavailable(f"the database does not answer ({error})") from error
    return False


def check_unlocked(file: Path) -> None:
    """Return once no process is writing to the file; StoreUnavailable if one is for too long.

    SQLite does not open the file, which might change it. This process must not have the file open.
    """
    index = file.resolve().with_name(f"{file.resolve().name}-shm")
    try:
        opened = os.open(index, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # No process uses it.
        return
    try:
        give_up_s = time.monotonic() + BUSY_SECONDS
        while not _has_locked(opened):
            if time.monotonic() >= give_up_s:
                raise StoreUnavailable("the database does not answer (another process holds it locked)")
            time.sleep(RETRY_SECONDS)
    finally:
        # This releases the lock.
        os.close(opened)


def _has_locked(index: int) -> bool:
    try:
        fcntl.lockf(index, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, WRITE_LOCK_BYTE)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EAGAIN}:
            raise
        return False
    return True
