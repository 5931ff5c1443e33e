"""File of observations, one JSON line each.

Any number of processes append to one file, and its lines stay whole: all lines of a batch are written at once
or not at all, and an incomplete line of a killed process is removed before the next one is written. A file
that was renamed or removed (logrotate) is created again.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Final

from lifesign.domain.observation.results import Observation
from lifesign.errors import InvalidValue
from lifesign.filesystem.file_lock import try_lock, unlock

MAX_LINE_BYTES: Final = 131_072
"""Larger than the largest observation."""
LOCK_TRIES: Final = 200
LOCK_PAUSE_S: Final = 0.01
"""Interval at which the lock is tried again. A process that holds it for two seconds has stopped."""
# Values that assertions read may be from behind a login.
_MODE: Final = 0o600


def line_of(observation: Observation) -> bytes:
    """Return the line of an observation."""
    return observation.model_dump_json(exclude_none=True).encode() + b"\n"


class ResultsFile:
    """A file to which observations are appended as lines of JSON. Threads may share it."""

    def __init__(self, path: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Open a file, which is made if it is not there; InvalidValue if that cannot be."""
        self.path = path
        self._sleep = sleep
        self._lock = Lock()
        try:
            self._fd = _open_regular(path)
        except OSError as error:
            expected = f"a regular file to which this user can write ({error.strerror})"
            raise InvalidValue("results.jsonl", str(path), expected) from None

    def close(self) -> None:
        """Close the file. Nothing can be appended after this."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def append(self, lines: Iterable[bytes]) -> None:
        """Append lines of `line_of`, all or none; OSError if that fails now."""
        if text := b"".join(lines):
            with self._lock:
                self._reopen_if_moved()
                with self._locked():
                    _append_lines(self._fd, text)

    def _reopen_if_moved(self) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, "it is closed")
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._fd), self.path.stat()):
                return
        fd = _open_regular(self.path)
        os.close(self._fd)
        self._fd = fd

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        for _ in range(LOCK_TRIES):
            if try_lock(self._fd):
                break
            self._sleep(LOCK_PAUSE_S)
        else:
            raise OSError(errno.EWOULDBLOCK, "another process holds its lock")
        try:
            yield
        finally:
            unlock(self._fd)


def _open_regular(path: Path) -> int:
    # For reading too, to see how the last line ends.
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def _append_lines(fd: int, lines: bytes) -> None:
    """Append lines after the last complete one; if they do not fit, remove all of them. Raises OSError."""
    lines = _mended(fd) + lines
    size = os.fstat(fd).st_size
    rest = memoryview(lines)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.ftruncate(fd, size)
        raise


def _mended(fd: int) -> bytes:
    """Remove an incomplete line of a killed process; return the missing line end of a foreign last line."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return b""
    start = max(0, size - MAX_LINE_BYTES)
    tail = os.pread(fd, size - start, start)
    last = tail.rfind(b"\n") + 1
    if (last == 0 and start > 0) or not tail.startswith(b"{", last):
        return b"\n"
    os.ftruncate(fd, start + last)
    return b""
