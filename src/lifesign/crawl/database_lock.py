"""The lock that keeps a second crawl off an SQLite file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lifesign.errors import InvalidValue
from lifesign.filesystem.file_lock import open_lock_file, try_lock
from lifesign.storage.errors import ForeignDatabase

LOCK_SUFFIX: Final = ".crawl"
"""Suffix of the lock file beside the database."""


@contextmanager
def locked_database(file: Path | None) -> Iterator[None]:
    """Lock an SQLite file against other crawls until the block ends; with None, do nothing.

    Raises InvalidValue if another crawl holds the lock.

    For a symbolic link, the lock belongs to the file that it points to. The lock file stays beside the
    database. At the end it is removed if it was created here and there is no database of ours.
    """
    if file is None:
        yield
        return
    file = file.resolve()
    lock = file.with_name(file.name + LOCK_SUFFIX)
    was_there = lock.exists()
    try:
        fd = open_lock_file(lock)
    except OSError as error:
        raise InvalidValue("database", str(file), f"a file that can be created ({error.strerror})") from None
    try:
        if not _has_locked(fd, lock):
            expected = (
                "a database that no other crawl uses: wait until that crawl ends, or name another "
                "database (--workers and --registry share one crawl's work)"
            )
            raise InvalidValue("database", str(file), expected)
        try:
            yield
        except ForeignDatabase:
            if not was_there:
                lock.unlink(missing_ok=True)
            raise
        finally:
            if not was_there and not file.exists():
                lock.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _has_locked(fd: int, lock: Path) -> bool:
    """Lock a file; False if another process holds the lock, or has removed the file."""
    try:
        return try_lock(fd) and os.path.samestat(os.fstat(fd), lock.stat())
    except FileNotFoundError:
        return False
