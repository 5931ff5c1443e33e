"""Files that only their owner may read (mode 0600), and the replacement of whole files."""

import contextlib
import errno
import logging
import mmap
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Final

_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{16}")
"""End of the name of an unfinished file."""
_MOUNT: Final = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)
"""A line of `/proc/self/fdinfo/FD` (Linux)."""

_log = logging.getLogger("lifesign")


def open_private(path: Path, *, create: bool) -> int | None:
    """Open a regular file that only this user owns, for reading and writing; return its descriptor.

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
            set_aside(path, f"cannot be opened as a private file ({error.strerror})")
            return None
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(fd)
        set_aside(path, "is not a regular file of this user that only this user can read")
        return None
    return fd


def _is_regular(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return True


def set_aside(path: Path, why: str) -> None:
    """Rename a file that is not trusted, so that it can be inspected; only the last such file is kept."""
    _log.warning(
        "lifesign: %s %s; the file is renamed to *.set-aside, and its samples are not counted", path, why
    )
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + ".set-aside"))


def allocate(fd: int, size: int) -> None:
    """Reserve `size` bytes of an open file on disk, so that later writes cannot fail for lack of space.

    Raises OSError (ENOSPC and kin) where there is no room.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    present = os.fstat(fd).st_size
    if present < size:
        os.pwrite(fd, bytes(size - present), present)


def map_shared(fd: int, size: int, *, writable: bool) -> memoryview:
    """Map an open file into memory, shared with other processes. Writes survive the process."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # The mapping ends with the last view of it: closing it by hand would pull it from under them.
    return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, protection))


@contextlib.contextmanager
def reopened(path: Path, fd: int) -> Iterator[int]:
    """Open the file of `fd` again, for a mapping, until the block ends; OSError if it is not at `path`.

    A mapping keeps a copy of its descriptor as long as any process, also a forked child, has a view of it. A
    copy of `fd` would keep its lock; this descriptor has none.
    """
    again_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not os.path.samestat(os.fstat(again_fd), os.fstat(fd)):
            raise OSError(errno.ESTALE, "was replaced", str(path))
        yield again_fd
    finally:
        os.close(again_fd)


def is_at(fd: int, path: Path) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def create_private(path: Path | str, *, dir_fd: int | None = None) -> int:
    """Create a file with mode 0600 and return its descriptor, open for reading and writing.

    Raises FileExistsError if anything has that name, a symbolic link too; OSError if it cannot be created.
    """
    return _create(path, 0o600, dir_fd)


def _create(path: Path | str, mode: int, dir_fd: int | None = None) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode, dir_fd=dir_fd)


def replacing_private(path: Path) -> AbstractContextManager[IO[bytes]]:
    """Write a new file with mode 0600 that replaces `path`; see `replacing`."""
    return replacing(path, mode=0o600)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a new file that replaces `path` at the end of the block, completely and synced to disk.

    The umask reduces `mode`. A symbolic link at `path` is replaced, not followed. If the block raises, or the
    process is killed, the existing file is unchanged. The unfinished file is called `.NAME.<16 hex digits>`.
    OSError if it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(_create(unfinished, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def replacement_remedy(path: Path) -> str | None:
    """Return what to do before `path`, which may be missing, can be replaced; None if no obstacle is known.

    A file that is a mount point of its own can be written, but not replaced. Only Linux shows this.
    """
    mount = _mount_of(path, is_link_followed=False)
    if mount is not None and mount != _mount_of(path.parent):
        return f"mount the directory {path.parent} instead of the file alone"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"make the directory {path.parent} writable for user {os.geteuid()}"
    return None


def _mount_of(path: Path, *, is_link_followed: bool = True) -> str | None:
    """Return the number of the mount on which a path is; None if it is missing, or the number is unknown."""
    if not hasattr(os, "O_PATH"):
        return None
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if is_link_followed else os.O_NOFOLLOW))
    except OSError:
        return None
    try:
        found = _MOUNT.search(Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii"))
    except OSError:
        return None
    finally:
        os.close(fd)
    return None if found is None else found[1]


def remove_unfinished(path: Path) -> None:
    """Remove the files that killed processes left beside a private file; none may be writing it now."""
    for file in path.parent.iterdir():
        if file.name.startswith(f".{path.name}.") and _UNFINISHED.fullmatch(file.name, len(path.name) + 1):
            file.unlink(missing_ok=True)


def write_private(path: Path, line: str) -> None:
    """Replace a private file by one that contains a line of text; see `replacing_private`."""
    with replacing_private(path) as file:
        file.write(f"{line}\n".encode())


def sync_directory(directory: Path) -> None:
    """Write the names of a directory's files to disk, so that they survive a power failure."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
