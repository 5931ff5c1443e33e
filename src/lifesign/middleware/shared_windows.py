"""Shared window of several worker processes and restarts.

In the state directory, each agent (and each window length and counting profile of it) has a directory of its
own, readable by its owner only:

    board               the published document and the common time base
    worker-N.window     the counts of one worker: a header page and the block of `rolling_window`

A worker owns its window file by a lock that ends with the process, in any way. A file whose owner died counts
until its samples age out; until then the next worker to start takes it over and continues it, so that a crash
loop leaves no more files than there ever were workers at once. All memory is allocated on disk when a file is
created: a disk that fills up later changes nothing. Nothing here waits: a lock is taken at once or not at
all. POSIX only.
"""

import contextlib
import errno
import os
import re
import shutil
import struct
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from lifesign.domain.health.rolling_window import WINDOW_BYTES, count_lost, is_plausible, newest_slot_end_ns
from lifesign.filesystem.file_lock import lock_if_free, try_lock, unlock
from lifesign.filesystem.private_file import (
    allocate,
    is_at,
    map_shared,
    open_private,
    reopened,
    set_aside,
)
from lifesign.middleware.document_file import DocumentFile
from lifesign.middleware.published_document import PublishedDocument

MOST_WORKERS = 256
"""Maximum number of worker processes of one agent that share a state directory."""

_MAGIC = b"lifesign window1"
_LAYOUT_VERSION = 3
"""2: rows have a count for each `Inspection`. 3: one more `Outcome` and one more `Inspection`."""
# magic, layout version, window length (ns); then their checksum; then the start of the owner (ns), and the
# number of requests that it has not counted yet
_HEADER = struct.Struct("<16sQQ")
_STARTED = struct.Struct("<Q")
_STARTED_AT = 64
_OPEN_REQUESTS = slice(72, 80)
_MOST_OPEN_REQUESTS = 65_536
"""A larger number in a file is corrupt."""
_HEADER_BYTES = 4096
_SIZE = _HEADER_BYTES + WINDOW_BYTES
_NAME = re.compile(r"worker-(\d{1,3})\.window")
_OTHER_SHAPES_KEPT_SECONDS = 14 * 86_400
_CLAIM_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties that the workers' settings must share, so that their counts can be added up."""

    agent_id: str
    window_ns: int
    counting: str


class WindowFiles:
    """The files with the counts of all workers of one agent, as one worker uses them.

    `time.perf_counter_ns()` plus `offset_ns` is the time base that all workers, and their
    successors after a restart or a reboot, have in common. Raises OSError if the directory cannot
    be used.
    """

    def __init__(self, state_dir: Path, shape: Shape, *, monotonic_ns: int, wall_ns: int) -> None:
        agent = sha256(shape.agent_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._window_ns = shape.window_ns
        self._directory = state_dir / f"{agent}-{shape.counting}-{shape.window_ns // 1_000_000}ms"
        _make_private_directory(self._directory)
        self._peers: dict[int, _WindowFile] = {}
        self._board = DocumentFile(self._directory / "board")
        self.offset_ns = self._board.agree_on_offset(monotonic_ns, wall_ns)
        self._own = self._claim(monotonic_ns + self.offset_ns)
        self.block = self._own.block
        """The block that this worker alone writes to."""
        self.open_requests = self._own.open_requests
        _drop_other_shapes(state_dir, agent, self._directory, wall_ns / 1e9)

    def blocks(self, now_ns: int) -> list[memoryview]:
        """Return the counts of all workers. Those of dead workers are included until they are too old."""
        self._find_peers(now_ns)
        return [self.block, *(peer.block for peer in self._peers.values())]

    def is_removed(self) -> bool:
        """Return whether the file of this worker is no longer in its place. Its mapping still works."""
        try:
            return not is_at(self._own.fd, self._own.path)
        except OSError:
            return True

    def oldest_living_start_ns(self) -> int:
        """Return when the oldest living worker process started."""
        starts = (peer.started_ns for peer in self._peers.values() if peer.has_owner())
        return min((self._own.started_ns, *starts))

    def published_document(self) -> PublishedDocument | None:
        """Return the document that was published last; None if there is none, or it is damaged."""
        return self._board.read()

    def publishing(self) -> AbstractContextManager[bool]:
        """Reserve the right to publish until the block ends; yields whether it was free."""
        return lock_if_free(self._board.fd)

    def publish(self, notice: PublishedDocument) -> None:
        """Publish a document for all workers. Only within `publishing`."""
        self._board.write_offset()
        self._board.write(notice)

    def close(self) -> None:
        """Close all files. The counts stay in them."""
        for file in (*self._peers.values(), self._own):
            file.close()
        self._peers.clear()
        os.close(self._board.fd)

    def _claim(self, now_ns: int) -> "_WindowFile":
        """Take over a window file without an owner, else make one."""
        for _ in range(_CLAIM_ATTEMPTS):
            for number in sorted(self._numbers()):
                if claimed := _WindowFile.claim(self._path(number), self._window_ns, now_ns):
                    return claimed
            # Another worker may hold a dead one's lock for a moment to see whether it lives. Sleeping here
            # would stop the event loop.
            os.sched_yield()
        for number in range(MOST_WORKERS):
            if claimed := _WindowFile.claim(self._path(number), self._window_ns, now_ns, create=True):
                return claimed
        raise OSError(errno.EMFILE, f"used by more than {MOST_WORKERS} workers", str(self._directory))

    def _find_peers(self, now_ns: int) -> None:
        try:
            numbers = self._numbers()
        except FileNotFoundError:
            # The directory was removed. Mapped files still work for living workers.
            return
        for number, peer in list(self._peers.items()):
            if number not in numbers or not is_at(peer.fd, peer.path):
                self._peers.pop(number).close()
        for number in numbers - self._peers.keys():
            path = self._path(number)
            if path == self._own.path:
                continue
            if opened := _WindowFile.open_peer(path, self._window_ns, now_ns):
                self._peers[number] = opened
        for number, peer in list(self._peers.items()):
            if peer.ages_out_ns(self._window_ns) < now_ns and peer.remove_if_dead():
                self._peers.pop(number).close()

    def _numbers(self) -> set[int]:
        with os.scandir(self._directory) as entries:
            names = [_NAME.fullmatch(entry.name) for entry in entries]
        return {int(name[1]) for name in names if name and int(name[1]) < MOST_WORKERS}

    def _path(self, number: int) -> Path:
        return self._directory / f"worker-{number}.window"


@dataclass(slots=True)
class _WindowFile:
    """One worker's file, open: our own to write, or a peer's to read."""

    path: Path
    fd: int
    view: memoryview
    block: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.block = self.view[_HEADER_BYTES:]

    @classmethod
    def claim(cls, path: Path, window_ns: int, now_ns: int, *, create: bool = False) -> Self | None:
        """Become the owner of a window file; None if another process owns it, or it does not exist."""
        fd = open_private(path, create=create)
        if fd is None:
            return None
        if not try_lock(fd) or not is_at(fd, path):
            os.close(fd)
            return None
        try:
            is_new = not any(os.pread(fd, _HEADER.size, 0))
            is_complete = os.fstat(fd).st_size == _SIZE
            if is_new:
                os.ftruncate(fd, 0)
            allocate(fd, _SIZE)
        except OSError:
            # No room: leave no file behind that could not be mapped.
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        with reopened(path, fd) as mapped_fd:
            file = cls(path, fd, map_shared(mapped_fd, _SIZE, writable=True))
        if is_new:
            header = _header(window_ns)
            file.view[: len(header)] = header
        elif not is_complete or not file.is_sound(window_ns, now_ns):
            set_aside(path, "is corrupt or foreign")
            file.close()
            return None
        file.view[_STARTED_AT : _STARTED_AT + _STARTED.size] = _STARTED.pack(now_ns)
        file.count_lost_requests()
        return file

    @classmethod
    def open_peer(cls, path: Path, window_ns: int, now_ns: int) -> Self | None:
        """Open another worker's file for reading; None if it does not exist or is invalid."""
        fd = open_private(path, create=False)
        if fd is None:
            return None
        if os.fstat(fd).st_size == _SIZE:
            file = cls(path, fd, map_shared(fd, _SIZE, writable=False))
            if file.is_sound(window_ns, now_ns):
                return file
        # It is being made, or its owner will set it aside when it is next claimed.
        os.close(fd)
        return None

    @property
    def open_requests(self) -> memoryview:
        """The number of requests in progress, which would be lost if the owner was killed."""
        return self.view[_OPEN_REQUESTS].cast("Q")

    def count_lost_requests(self) -> None:
        """Count as unfinished the requests that the former owner had in progress when it was killed."""
        lost, self.open_requests[0] = self.open_requests[0], 0
        if lost <= _MOST_OPEN_REQUESTS:
            count_lost(self.block, lost)

    @property
    def started_ns(self) -> int:
        return int(_STARTED.unpack_from(self.view, _STARTED_AT)[0])

    def is_sound(self, window_ns: int, now_ns: int) -> bool:
        header = _header(window_ns)
        return self.view[: len(header)] == header and is_plausible(self.block, window_ns, now_ns)

    def ages_out_ns(self, window_ns: int) -> int:
        """Return when the newest count in this file becomes too old for both windows."""
        return newest_slot_end_ns(self.block, window_ns) + 2 * window_ns

    def has_owner(self) -> bool:
        if not try_lock(self.fd):
            return True
        unlock(self.fd)
        return False

    def remove_if_dead(self) -> bool:
        with lock_if_free(self.fd) as is_dead:
            if is_dead and is_at(self.fd, self.path):
                self.path.unlink()
        return is_dead

    def close(self) -> None:
        os.close(self.fd)


def _header(window_ns: int) -> bytes:
    fields = _HEADER.pack(_MAGIC, _LAYOUT_VERSION, window_ns)
    return fields + struct.pack("<I", zlib.crc32(fields))


def _make_private_directory(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.geteuid():
        raise OSError(errno.EACCES, "not a private directory of this user", str(path))
    if found.st_mode & 0o077:
        path.chmod(0o700)


def _drop_other_shapes(state_dir: Path, agent: str, current: Path, wall_s: float) -> None:
    """Remove what this agent counted under other settings, once no window can need it any more."""
    for directory in state_dir.glob(f"{agent}-*"):
        if directory == current or directory.is_symlink():
            continue
        with contextlib.suppress(OSError):
            newest_s = max(path.lstat().st_mtime for path in (directory, *directory.iterdir()))
            if wall_s - newest_s > _OTHER_SHAPES_KEPT_SECONDS and not _is_in_use(directory):
                shutil.rmtree(directory)


def _is_in_use(directory: Path) -> bool:
    """Return whether a living worker uses it: an idle one writes nothing for weeks."""
    for path in directory.glob("worker-*.window"):
        fd = open_private(path, create=False)
        if fd is None:
            continue
        try:
            if not try_lock(fd):
                return True
        finally:
            os.close(fd)
    return False
