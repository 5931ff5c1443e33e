"""Election of the worker process that sends the heartbeats of an agent, with the sum of all loads.

The workers share a directory that only their user may read:

    crew      locked, shared, by every living worker: a worker with an exclusive lock is the only one
    lead      locked by the leader; when it dies, in any way, the next worker gets the lock
    life      the agent's incarnation, for the next leader; after a drain, 0 and the workers of that time;
              -1 if the registry has ended the incarnation
    load-*    one file per worker, locked by it and mapped: its current load
    new-*     a load file before it is locked: one without a lock belongs to a dead worker

All locks end with their process: a forked child closes its copies. Only `join` waits, for a moment. POSIX
only.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from weakref import WeakSet

from lifesign.filesystem.file_lock import try_lock
from lifesign.filesystem.private_file import allocate, is_at, map_shared, open_private, reopened

MAX_WORKERS: Final = 256
"""Maximum number of workers whose loads are added up."""
PATIENCE_SECONDS: Final = 1.0
"""Time to wait for another worker that checks whether it is the only one."""
HAS_LEFT: Final = 0
"""Value in place of an incarnation: the agent was drained, and a worker of that time is still alive."""
IS_LOST: Final = -1
"""Value in place of an incarnation: the registry has ended it, perhaps for another process."""

_LOAD_BYTES = 8
_MAX_LIFE_BYTES = 64 * MAX_WORKERS


class BeatElection:
    """Elects one of an agent's worker processes to send the heartbeats.

    Each worker has an object of this class.
    """

    def __init__(self, directory: Path, crew_fd: int) -> None:
        self._directory = directory
        self._crew_fd = crew_fd
        self._lead_fd: int | None = None
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._own = directory / f"load-{name}"
        new = directory / f"new-{name}"
        self._own_fd = _opened(new)
        try:
            try_lock(self._own_fd)
            allocate(self._own_fd, _LOAD_BYTES)
            with reopened(new, self._own_fd) as mapped_fd:
                self._load = map_shared(mapped_fd, _LOAD_BYTES, writable=True).cast("Q")
            new.rename(self._own)
        except OSError:
            new.unlink(missing_ok=True)
            os.close(self._own_fd)
            raise
        _elections.add(self)

    @classmethod
    def join(cls, directory: Path) -> Self:
        """Add this process to the agent's workers. If none is alive, files of dead workers are removed."""
        # One directory after the other: parents that are created implicitly get the mode of the umask.
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        _refuse_unless_private(directory)
        fd = _opened(directory / "crew")
        try:
            if try_lock(fd):
                # All earlier workers are dead, so their incarnation is over as well, as far as we know.
                (directory / "life").unlink(missing_ok=True)
                for new in directory.glob("new-*"):
                    new.unlink(missing_ok=True)
            _share(fd, directory)
            return cls(directory, fd)
        except OSError:
            os.close(fd)
            raise

    def is_in_place(self) -> bool:
        """Return whether no other program has removed this worker's files."""
        files = [(self._own_fd, self._own), (self._crew_fd, self._directory / "crew")]
        if self._lead_fd is not None:
            files.append((self._lead_fd, self._directory / "lead"))
        return all(is_at(fd, path) for fd, path in files)

    def lead(self) -> bool:
        """Try to become the leader, which sends the heartbeats; return whether this worker is the leader."""
        if self._lead_fd is None:
            fd = _opened(self._directory / "lead")
            if not try_lock(fd):
                os.close(fd)
                return False
            self._lead_fd = fd
        return True

    def give_lead(self) -> None:
        """Release the lead, so that another worker gets it."""
        if self._lead_fd is not None:
            os.close(self._lead_fd)
            self._lead_fd = None

    def set_load(self, count: int) -> None:
        """Set this worker's load: the number of requests in progress."""
        self._load[0] = count

    def total_load(self) -> int:
        """Return the sum of the loads of all living workers."""
        return int(self._load[0]) + sum(self._other_loads().values())

    def is_alone(self) -> bool:
        """Return whether no other worker is alive."""
        return not self._other_loads()

    @property
    def name(self) -> str:
        """Name of this worker, different from those of all others."""
        return self._own.name

    def workers(self) -> frozenset[str]:
        """Return the names of all living workers, with this one."""
        return frozenset({self.name, *self._other_loads()})

    def incarnation(self) -> int | None:
        """Return the incarnation that a worker registered; None before that.

        After a drain, HAS_LEFT until all workers of that time have ended, then None. IS_LOST if the registry
        has ended the incarnation.
        """
        try:
            with (self._directory / "life").open("rb") as file:
                number, *drained = file.read(_MAX_LIFE_BYTES).decode().split()
            incarnation = int(number)
        except (FileNotFoundError, ValueError):
            return None
        return None if incarnation == HAS_LEFT and self.workers().isdisjoint(drained) else incarnation

    def note_incarnation(self, incarnation: int | None) -> None:
        """Store the incarnation for the next leader; only called by the leader."""
        if incarnation is None:
            (self._directory / "life").unlink(missing_ok=True)
        else:
            self._write_life(str(incarnation))

    def note_drain(self, workers: Collection[str]) -> None:
        """Store that the agent was drained when these workers were alive; only called by the leader."""
        self._write_life(" ".join([str(HAS_LEFT), *workers]))

    def leave(self) -> bool:
        """Stop being one of the workers; return whether this was the last one."""
        with suppress(OSError):
            self._own.unlink(missing_ok=True)
        os.close(self._own_fd)
        # A failed attempt also loses the shared lock, so that one of them gets the exclusive one.
        is_last = try_lock(self._crew_fd)
        os.close(self._crew_fd)
        self.give_lead()
        _elections.discard(self)
        return is_last

    def close_in_child(self) -> None:
        """Close a forked child's copies of the locks, which would outlive a worker that is killed."""
        os.close(self._own_fd)
        os.close(self._crew_fd)
        self.give_lead()

    def _write_life(self, text: str) -> None:
        new = self._directory / "life.new"
        new.write_text(text)
        new.replace(self._directory / "life")

    def _other_loads(self) -> dict[str, int]:
        """Return the load of each other living worker by the worker's name."""
        paths = sorted(self._directory.glob("load-*"))[:MAX_WORKERS]
        loads = {path.name: _load_in(path) for path in paths if path != self._own}
        return {name: load for name, load in loads.items() if load is not None}


_elections: Final = WeakSet[BeatElection]()
"""Those of this process."""


def _close_in_child() -> None:
    for election in _elections:
        election.close_in_child()
    _elections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def default_directory(registry: str, agent_id: str) -> Path:
    """Return the default directory in which the workers of an agent find each other."""
    name = hashlib.sha256(f"{registry}\n{agent_id}".encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"lifesign-{os.geteuid()}" / name


def _load_in(path: Path) -> int | None:
    """Return the load of a living worker; the file of a dead one is removed."""
    fd = open_private(path, create=False)
    if fd is None:
        return None
    try:
        if try_lock(fd):
            if is_at(fd, path):
                path.unlink(missing_ok=True)
            return None
        return int.from_bytes(os.pread(fd, _LOAD_BYTES, 0), "little")
    finally:
        os.close(fd)


def _share(fd: int, directory: Path) -> None:
    """Hold the crew's lock together with all others."""
    deadline_s = time.monotonic() + PATIENCE_SECONDS
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline_s:
            raise OSError(errno.EAGAIN, "another worker does not release the lock", str(directory))
        time.sleep(0.002)


def _opened(path: Path) -> int:
    fd = open_private(path, create=True)
    # A file of another owner was renamed: the second attempt creates the file.
    fd = open_private(path, create=True) if fd is None else fd
    if fd is None:
        raise OSError(errno.EACCES, "cannot be created as a private file", str(path))
    return fd


def _refuse_unless_private(directory: Path) -> None:
    """Refuse a directory in which other users could create these files, or which they could replace."""
    for place, theirs in ((directory, 0o022), (directory.parent, 0o002)):
        found = place.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid in {os.geteuid(), 0}
        others_write = found.st_mode & theirs and not found.st_mode & stat.S_ISVTX
        if not is_ours or others_write:
            raise OSError(errno.EACCES, "is not a directory that only this user can write to", str(place))
