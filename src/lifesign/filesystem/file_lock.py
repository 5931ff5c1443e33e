"""Exclusive locks of files (flock).

The kernel releases a lock when the last process that has the open file ends. A forked child has it too.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lifesign.filesystem.changeable_path import foreign_owner


def open_lock_file(path: Path) -> int:
    """Open a file that is only used for locking, and return its descriptor. It is created if it is missing.

    OSError if it cannot be created, or is a symbolic link. Also if another user may have created it in a
    shared directory: that user could hold the lock forever.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if (owner := foreign_owner(path, os.fstat(fd))) is not None:
            raise PermissionError(errno.EPERM, f"{path} belongs to user {owner}")
    except OSError:
        os.close(fd)
        raise
    return fd


def try_lock(fd: int) -> bool:
    """Try to lock an open file exclusively, without waiting; return whether that succeeded."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Release the lock of an open file."""
    fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def lock_if_free(fd: int) -> Iterator[bool]:
    """Lock an open file until the block ends, if its lock is free; yields whether it is locked."""
    is_held = try_lock(fd)
    try:
        yield is_held
    finally:
        if is_held:
            unlock(fd)
