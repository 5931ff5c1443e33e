"""The disk space of evidence, and the order of its removal.

All processes that share a directory count what they write in one small file, under a lock that is held for
microseconds. A process that is killed meanwhile leaves a wrong count, which the next sweep sets right.
"""

import contextlib
import errno
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lifesign.filesystem.file_lock import open_lock_file, try_lock, unlock

BLOCK_BYTES: Final = 4096
"""Minimum size of a file on disk; sizes are counted in such blocks."""
HIGH_WATER_RATIO: Final = 0.95
"""Share of the quota at which the oldest files are removed, before the quota is reached."""
LOW_WATER_RATIO: Final = 0.85
"""Share of the quota to which they are removed, so that not every body needs a scan of all files."""
AGE_STEP_S: Final = 60
"""The oldest go first, to the minute: no list of all files is made, which may be millions."""
MAX_LEFTOVER_S: Final = 3600
"""A file that was begun so long ago belongs to a process that was killed."""
LOCK_TRIES: Final = 20
LOCK_PAUSE_S: Final = 0.0005
"""Time to wait for the lock.

If it takes longer, a process has stopped: a wrong count is better than a delayed probe.
"""

_DIRECTORY: Final = re.compile("[0-9a-f]{2}")
_COMPLETE_NAME: Final = re.compile(r"[0-9a-f]{62}\.gz")
_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{32}")
_TALLY: Final = ".tally"
_TALLY_BYTES: Final = 8
_MAX_TALLY: Final = 2**63
"""A damaged count that is larger is corrected by the next sweep, like any other."""
_SWEEP: Final = ".sweep"


@dataclass(frozen=True, slots=True)
class Swept:
    """Number of files and bytes that `sweep` removed, and of those that are left."""

    removed: int
    """Files."""
    removed_bytes: int
    """Removed bytes on disk."""
    left_bytes: int
    """Remaining bytes on disk."""


class _File(NamedTuple):
    """A file of ours."""

    path: str
    step: int
    """The minute in which it was seen last."""
    size: int
    """Size on disk, in bytes."""
    is_complete: bool

    def remove(self) -> bool:
        with contextlib.suppress(OSError):
            Path(self.path).unlink()
            return True
        return False


def _file(entry: os.DirEntry[str]) -> _File | None:
    """Return the evidence file of a name, or None if it is not ours or was removed."""
    is_complete = _COMPLETE_NAME.fullmatch(entry.name) is not None
    if not is_complete and _UNFINISHED.fullmatch(entry.name) is None:
        return None
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return _File(entry.path, int(found.st_mtime // AGE_STEP_S), bytes_on_disk(found.st_size), is_complete)


def bytes_on_disk(size: int) -> int:
    """Return how many bytes a file of `size` bytes takes on disk."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class EvidenceQuota:
    """Limits the disk space of a directory of evidence, and removes old files."""

    def __init__(self, directory: Path, *, max_bytes: int, keep_s: float) -> None:
        """Open the count of a directory that is there. Raises OSError."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._is_stopped = False
        self._tally_fd = open_lock_file(directory / _TALLY)
        self.is_short = False
        """Whether the oldest files should be removed now."""

    def stop(self) -> None:
        """End a running sweep early."""
        self._is_stopped = True

    def close(self) -> None:
        """Close the file that counts the used space. Nothing can be stored after this."""
        if self._tally_fd >= 0:
            os.close(self._tally_fd)
        self._tally_fd = -1

    def take(self, size: int) -> bool:
        """Add `size` bytes to the counted space and return True; False if the limit does not permit it.

        Raises OSError.
        """
        total = self._add(size)
        self.is_short = total > self._max_bytes * HIGH_WATER_RATIO
        if total <= self._max_bytes:
            return True
        self._add(-size)
        return False

    def give_back(self, size: int) -> None:
        """Reduce the counted space by `size` bytes, which `take` has added."""
        with contextlib.suppress(OSError):
            self._add(-size)

    def used_bytes(self) -> int:
        """Return how many bytes of disk space are counted as used. Raises OSError."""
        return self._add(0)

    def sweep(self, now_s: float) -> Swept | None:
        """Remove files that are too old, and then the oldest ones until the limit is kept.

        None if another process does it. Raises OSError.
        """
        lock_fd = open_lock_file(self._directory / _SWEEP)
        try:
            return self._sweep(now_s) if try_lock(lock_fd) else None
        finally:
            os.close(lock_fd)

    def _sweep(self, now_s: float) -> Swept:
        counted = self.used_bytes()
        sizes: Counter[int] = Counter()
        for file in self._files():
            if file.is_complete:
                sizes[file.step] += file.size
            elif file.step < (now_s - MAX_LEFTOVER_S) / AGE_STEP_S:
                file.remove()
        first, going = _eviction_plan(sizes, self._max_bytes, (now_s - self._keep_s) / AGE_STEP_S)
        removed = removed_bytes = 0
        for file in self._files():
            is_going = file.step < first or (file.step == first and going > 0)
            if file.is_complete and is_going and file.remove():
                going -= file.size if file.step == first else 0
                removed, removed_bytes = removed + 1, removed_bytes + file.size
        left = sizes.total() - removed_bytes
        if not self._is_stopped:
            # Until the next sweep, bytes that were written meanwhile may count twice, and the one file that
            # each other process was writing at the beginning may not count.
            self.is_short = self._add(left - counted) > self._max_bytes * HIGH_WATER_RATIO
        return Swept(removed, removed_bytes, left)

    def _files(self) -> Iterator["_File"]:
        for directory in self._directory.iterdir():
            if _DIRECTORY.fullmatch(directory.name) is None or not directory.is_dir():
                continue
            with os.scandir(directory) as entries:
                for entry in entries:
                    if self._is_stopped:
                        return
                    file = _file(entry)
                    if file is not None:
                        yield file

    def _add(self, size: int) -> int:
        """Add to the common count of all processes, and return it."""
        if self._tally_fd < 0:
            raise OSError(errno.EBADF, "it is closed")
        with _locked(self._tally_fd):
            counted = int.from_bytes(os.pread(self._tally_fd, _TALLY_BYTES, 0), "little")
            total = min(max(0, counted + size), _MAX_TALLY)
            if size:
                os.pwrite(self._tally_fd, total.to_bytes(_TALLY_BYTES, "little"), 0)
        return total


def _eviction_plan(sizes: Mapping[int, int], max_bytes: int, too_old_step: float) -> tuple[int, float]:
    """Return the first minute that may stay, and the bytes of it to remove, with all before it."""
    first = int(too_old_step)
    total = sum(size for step, size in sizes.items() if step >= first)
    if total <= max_bytes * HIGH_WATER_RATIO:
        return first, 0
    going = total - max_bytes * LOW_WATER_RATIO
    steps = iter(sorted(step for step in sizes if step >= first))
    step = next(steps)
    while going > sizes[step]:
        going -= sizes[step]
        step = next(steps)
    return step, going


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Hold a file's lock; after `LOCK_TRIES` without it."""
    is_held = False
    for _ in range(LOCK_TRIES):
        if try_lock(fd):
            is_held = True
            break
        time.sleep(LOCK_PAUSE_S)
    try:
        yield
    finally:
        if is_held:
            unlock(fd)
