"""The file of an SQLite database: who may read and write it, and how it is opened."""

import logging
import os
import sqlite3
import stat
import time
from pathlib import Path

from sqlalchemy.engine import URL

from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import foreign_owner
from lifesign.filesystem.private_file import create_private
from lifesign.storage.engine.database_faults import PRIMARY_CODE
from lifesign.storage.engine.ownership import TABLES_OF_SQLITE, is_foreign

_log = logging.getLogger("lifesign.registry")

BUSY_SECONDS = 10.0
"""Time that another process may hold the SQLite file before a function fails."""
_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Of the file, and of those that SQLite keeps beside it."""
BUSY_RETRY_SECONDS = 0.01
"""Interval of retries if SQLite itself does not wait."""


def sealed_url(url: URL, *, is_excluded: bool = False) -> URL | None:
    """Return the URI options for reading an SQLite file without changes; None if it may be changed.

    It may not if `is_excluded`, or if this user may read it and not write. Without a log beside it no process
    uses it, and it is read as it is: SQLite could not create the files through which readers and writers
    cooperate. Raise InvalidValue if it cannot be read, or its log, which contains the latest changes, cannot;
    also if it does not exist and cannot be created.
    """
    file = Path(str(url.database or "")).absolute()
    if not file.is_file():
        if is_excluded:
            raise InvalidValue(
                "database", url.database or str(url), "a regular file instead of a directory or a device"
            )
        return None
    if not os.access(file, os.R_OK, effective_ids=True):
        raise InvalidValue("database", str(file), "a file that can be read (its owner or mode forbids it)")
    places = (file, file.resolve().parent)
    if not is_excluded and all(os.access(place, os.W_OK, effective_ids=True) for place in places):
        return None
    log = file.resolve().with_name(f"{file.resolve().name}-wal")
    index = log.with_name(f"{file.resolve().name}-shm")
    if not log.exists() or not (index.exists() or log.stat().st_size):
        return url.set(database=file.as_uri(), query={"uri": "true", "mode": "ro", "immutable": "1"})
    for beside in (log, index):
        if not os.access(beside, os.R_OK, effective_ids=True):
            why = (
                "its owner or mode forbids it"
                if beside.exists()
                else "only a user who can write to the directory can create it"
            )
            expected = f"a file whose latest changes can be read too, in {beside.name} beside it ({why})"
            raise InvalidValue("database", str(file), expected)
    return url.set(database=file.as_uri(), query={"uri": "true", "mode": "ro", "readonly_shm": "1"})


def is_foreign_file(connection: sqlite3.Connection) -> bool:
    """Return whether another program created the tables of this file."""
    return is_foreign(frozenset(name for (name,) in connection.execute(TABLES_OF_SQLITE)))


def enter_wal_mode(connection: sqlite3.Connection) -> None:
    """Set a database file to write-ahead logging; servers that start at the same time wait.

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


def make_private(file: Path, *, may_create: bool) -> None:
    """Create the file if `may_create`, readable by its owner only: it contains digests of keys.

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
        _log.warning("%s contains secrets, and other users can read it (mode %o): chmod 600 it", file, shown)


def check_writable(file: Path) -> int:
    """Return the mode (permissions) of a file; InvalidValue unless this user may read and write it."""
    try:
        found = file.stat()
    except OSError as error:
        raise _unwritable(file, error.strerror) from None
    mode = found.st_mode
    if not stat.S_ISREG(mode) or not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
        raise _unwritable(file, _obstacle(file, mode))
    if found.st_nlink > 1:
        # SQLite keeps a log beside each name: two processes would overwrite each other's changes.
        expected = f"a file with one name (it has {found.st_nlink} hard links: remove or copy the others)"
        raise InvalidValue("database", str(file), expected)
    _check_owner(file)
    return mode


def _check_owner(file: Path) -> None:
    """Refuse a file that another user may have created in a shared directory, to read and change it."""
    actual = file.resolve()
    for place in (file, *(actual.with_name(actual.name + suffix) for suffix in _SUFFIXES)):
        try:
            owner = foreign_owner(place, place.lstat())
        except FileNotFoundError:
            continue
        if owner is not None:
            expected = f"a file of this user ({place} belongs to user {owner}: remove it, or chown it)"
            raise InvalidValue("database", str(file), expected)


def _unwritable(file: Path, why: str | None) -> InvalidValue:
    return InvalidValue("database", str(file), f"a file that can be written ({why})")


def _obstacle(file: Path, mode: int) -> str:
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    is_read_only = os.statvfs(file).f_flag & os.ST_RDONLY
    return "its file system is read-only" if is_read_only else "its owner or mode forbids it"


def _create(file: Path) -> None:
    """Create the file if it is not there; what root creates in another user's directory is that user's.

    Else a server that runs as that user could not open what `migrate` or `restore` has set up for it.
    """
    try:
        # Nor through a link: only what did not exist is given away.
        descriptor = create_private(file)
    except FileExistsError:
        return
    try:
        if os.geteuid() == 0:
            place = file.parent.stat()
            os.fchown(descriptor, place.st_uid, place.st_gid)
    finally:
        os.close(descriptor)
