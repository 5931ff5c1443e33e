"""Exclusive locks of files (flock), which the kernel releases when their process ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def open_lock_file(path: Path) -> int:
    """Open a file that exists to be locked, and return its descriptor; it is created with mode 0600.

    OSError if it cannot be created, or is a symbolic link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def try_lock(fd: int) -> bool:
    """Acquire the exclusive lock of an open file without waiting. It ends with the process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Give the lock back."""
    fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def lock_if_free(fd: int) -> Iterator[bool]:
    """Hold the lock if it is free; True if it was."""
    is_held = try_lock(fd)
    try:
        yield is_held
    finally:
        if is_held:
            unlock(fd)
