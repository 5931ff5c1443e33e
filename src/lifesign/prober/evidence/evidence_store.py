"""Store of evidence: the bytes behind each finding.

Each body is a compressed file named by its SHA-256 and readable for its owner only: `ab/cdef….gz`, for
`zcat`. A file appears whole and is never written again; finding its bytes again renews its age. Any number of
processes share a directory. Files are not synced: damage by a power cut is found by the name when a file is
read. A body that cannot be stored causes a warning and None, never a failure of the probe.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from typing import Final

from lifesign.domain.a2a.agent_card import MAX_CARD_BYTES
from lifesign.errors import InvalidValue
from lifesign.filesystem.private_file import create_private
from lifesign.prober.definition.models import EvidenceSettings
from lifesign.prober.evidence.evidence_quota import EvidenceQuota, Swept, bytes_on_disk

MAX_BODY_BYTES: Final = MAX_CARD_BYTES
"""No larger body is read from a peer."""
TOUCH_AFTER_S: Final = 3600
"""Age from which a file's time is renewed when its bytes are found again."""
REMEMBERED_S: Final = 300
"""Time for which a file is assumed to exist without a check."""
MAX_REMEMBERED: Final = 20_000
SWEEP_EVERY_S: Final = 6 * 3600
SWEEP_PAUSE_S: Final = 10
"""Minimum time between two sweeps, however little space is left."""
WARN_EVERY_S: Final = 60

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_FAST: Final = 1
# zlib parameters for gzip: reading, and writing with a window of 4 KiB. Most bodies are smaller, and the
# default window takes 60 µs to clear.
_GZIP: Final = 16 + 15
_SMALL_GZIP: Final = 16 + 12
_LITTLE_MEMORY: Final = 4

_log = logging.getLogger("lifesign")


class EvidenceStore:
    """Stores bodies of answers in a directory, limited in size and age. Threads may share it."""

    def __init__(
        self, directory: Path, *, max_bytes: int, keep_s: float, clock_s: Callable[[], float] = time.time
    ) -> None:
        """Open a directory, which is made if it is not there; InvalidValue if that cannot be.

        `max_bytes` on disk in all, each body for `keep_s` seconds after it was seen last.
        """
        self._directory = directory
        self._clock_s = clock_s
        self._lock = Lock()
        self._remembered: OrderedDict[str, float] = OrderedDict()
        self._sweeper: Thread | None = None
        self._swept_at_s: float | None = None
        self._warned_at_s: float | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_shared_directory(directory)
            self._quota = EvidenceQuota(directory, max_bytes=max_bytes, keep_s=keep_s)
        except OSError as error:
            expected = (
                "a directory that belongs to this user and to which no other user can write "
                f"({error.strerror})"
            )
            raise InvalidValue("evidence.directory", str(directory), expected) from None

    @classmethod
    def from_settings(cls, settings: EvidenceSettings) -> "EvidenceStore | None":
        """Open the evidence store of a definition; None if the definition has none."""
        if settings.directory is None:
            return None
        keep_s = settings.keep_days * 86_400
        return cls(settings.directory, max_bytes=settings.max_megabytes * 1_000_000, keep_s=keep_s)

    def close(self) -> None:
        """End a running sweep, and close the directory."""
        self._quota.stop()
        sweeper = self._sweeper
        if sweeper is not None:
            sweeper.join()
        with self._lock:
            self._quota.close()

    def keep(self, body: bytes) -> str | None:
        """Store a body and return its SHA-256; None if it is empty or too large, or cannot be stored now."""
        if not 0 < len(body) <= MAX_BODY_BYTES:
            return None
        digest = hashlib.sha256(body).hexdigest()
        with self._lock:
            now_s = self._clock_s()
            try:
                return digest if self._is_there(digest, now_s) or self._write(digest, body, now_s) else None
            except OSError as error:
                self._warn(error.strerror or str(error), now_s)
                return None

    def holds(self, digest: str) -> bool:
        """Return whether the body with this SHA-256 is stored. If so, its age starts again."""
        if _DIGEST.fullmatch(digest) is None:
            return False
        with self._lock, contextlib.suppress(OSError):
            return self._is_there(digest, self._clock_s())
        return False

    def read(self, digest: str) -> bytes | None:
        """Return the body with this SHA-256; None if it is not stored.

        A file with other content is removed with a warning, so that the body can be stored again.
        """
        if _DIGEST.fullmatch(digest) is None:
            return None
        path = self._path(digest)
        try:
            # A FIFO would be waited for otherwise.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as file:
                packed = file.read(2 * MAX_BODY_BYTES)
        except OSError:
            return None
        body = _unpacked(packed)
        if body is not None and hashlib.sha256(body).hexdigest() == digest:
            return body
        _log.warning(
            "lifesign: the file %s is removed: its content does not match the hash in its name", path
        )
        with self._lock, contextlib.suppress(OSError):
            self._remembered.pop(digest, None)
            path.unlink()
        return None

    def sweep(self) -> Swept | None:
        """Remove files that are too old, and the oldest above the limit; None if another process does it.

        The store also does this by itself. It reads every file name: do not call it in an event loop.
        OSError.
        """
        swept = self._quota.sweep(self._clock_s())
        with self._lock:
            self._remembered.clear()
        return swept

    def _path(self, digest: str) -> Path:
        return self._directory / digest[:2] / f"{digest[2:]}.gz"

    def _is_there(self, digest: str, now_s: float) -> bool:
        seen_at_s = self._remembered.get(digest)
        if seen_at_s is not None and 0 <= now_s - seen_at_s < REMEMBERED_S:
            return True
        path = self._path(digest)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return False
        # A file without any bytes is the result of a power failure.
        if found.st_size == 0:
            return False
        if abs(now_s - found.st_mtime) > TOUCH_AFTER_S:
            os.utime(path, (now_s, now_s), follow_symlinks=False)
        self._remember(digest, now_s)
        return True

    def _remember(self, digest: str, now_s: float) -> None:
        self._remembered[digest] = now_s
        self._remembered.move_to_end(digest)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def _write(self, digest: str, body: bytes, now_s: float) -> bool:
        packed = _packed(body)
        size = bytes_on_disk(len(packed))
        if not self._quota.take(size):
            self._warn("the space for evidence is used up", now_s)
            self._sweep_in_time(now_s)
            return False
        path = self._path(digest)
        # Beside its place: file systems spread their load by directories.
        unfinished = path.with_name(f".{os.urandom(16).hex()}")
        try:
            _write_new(unfinished, packed, now_s)
            unfinished.rename(path)
        except OSError:
            self._quota.give_back(size)
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        self._remember(digest, now_s)
        self._sweep_in_time(now_s)
        return True

    def _sweep_in_time(self, now_s: float) -> None:
        """See to it that there is room, without waiting for it."""
        ago_s = None if self._swept_at_s is None else abs(now_s - self._swept_at_s)
        is_time = ago_s is None or ago_s >= (SWEEP_PAUSE_S if self._quota.is_short else SWEEP_EVERY_S)
        if is_time and self._sweeper is None:
            self._swept_at_s = now_s
            self._sweeper = Thread(target=self._sweep_aside, name="evidence-sweep", daemon=True)
            self._sweeper.start()

    def _sweep_aside(self) -> None:
        try:
            self.sweep()
        except OSError as error:
            with self._lock:
                self._warn(error.strerror or str(error), self._clock_s())
        finally:
            self._sweeper = None

    def _warn(self, why: str, now_s: float) -> None:
        if self._warned_at_s is None or abs(now_s - self._warned_at_s) >= WARN_EVERY_S:
            self._warned_at_s = now_s
            _log.warning("lifesign: no evidence is stored in %s now: %s", self._directory, why)


def _refuse_shared_directory(directory: Path) -> None:
    found = directory.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(errno.EPERM, "others may write it")


def _write_new(path: Path, packed: bytes, now_s: float) -> None:
    try:
        fd = create_private(path)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = create_private(path)
    try:
        if os.write(fd, packed) != len(packed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.utime(fd, (now_s, now_s))
    finally:
        os.close(fd)


def _packed(body: bytes) -> bytes:
    packer = zlib.compressobj(_FAST, zlib.DEFLATED, _SMALL_GZIP, _LITTLE_MEMORY)
    return packer.compress(body) + packer.flush()


def _unpacked(packed: bytes) -> bytes | None:
    """Return the decompressed bytes; None if they are invalid, or larger than the maximum."""
    reader = zlib.decompressobj(wbits=_GZIP)
    try:
        body = reader.decompress(packed, MAX_BODY_BYTES + 1)
    except zlib.error:
        return None
    return body if reader.eof and len(body) <= MAX_BODY_BYTES else None
