"""How is a file opened that only its owner may read, and that no other process may swap for its own?"""

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("lifesign")


def open_private(path: Path, *, create: bool) -> int | None:
    """Open a regular file of ours for reading and writing, and return its descriptor.

    None if it is not there. With `create` it is made (mode 0600). Whatever is not a regular file
    of our own user with that mode is set aside with a warning and counts as not there.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A symbolic link (ELOOP), a directory (EISDIR), another user's file (EACCES).
        if not _is_regular(path) or isinstance(error, PermissionError):
            set_aside(path, f"cannot be opened as a file of ours ({error.strerror})")
            return None
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(fd)
        set_aside(path, "is not a regular file of ours that only we may read")
        return None
    return fd


def _is_regular(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return True


def set_aside(path: Path, why: str) -> None:
    """Rename a file that is not to be trusted, so that it can be looked at; the last such one is kept."""
    _log.warning("lifesign: %s %s; it is set aside and its samples are not counted", path, why)
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + ".set-aside"))


def allocate(fd: int, size: int) -> None:
    """Reserve `size` bytes on disk, so that a write through a mapping can never fail.

    Raises OSError (ENOSPC and kin) where there is no room.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    present = os.fstat(fd).st_size
    if present < size:
        os.pwrite(fd, bytes(size - present), present)


def map_shared(fd: int, size: int, *, writable: bool) -> memoryview:
    """Map the file; what one process writes, all see, and a killed process has written it."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # The mapping ends with the last view of it: closing it by hand would pull it from under them.
    return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, protection))


@contextlib.contextmanager
def opened_again(path: Path, fd: int) -> Iterator[int]:
    """Open the file of `fd` once more, for a mapping. Raises OSError if it no longer stands at `path`.

    A mapping keeps a copy of its descriptor for as long as anybody, a forked child too, has a view
    of it. A copy of `fd` would keep its lock; this opening has none.
    """
    again_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not os.path.samestat(os.fstat(again_fd), os.fstat(fd)):
            raise OSError(errno.ESTALE, "was replaced", str(path))
        yield again_fd
    finally:
        os.close(again_fd)


def is_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one that stands at `path` now."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def try_lock(fd: int) -> bool:
    """Take the exclusive lock of an open file at once, or not at all. It ends with the process."""
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
