"""The file that the worker processes of one agent share: their time base and the published document.

All workers map the file. It contains their common time base and the last notice, which is the published
document. The worker that holds the file's lock writes a notice into the older of two slots, with a checksum:
a reader never waits, and a writer may be killed at any point.
"""

import errno
import struct
import zlib
from pathlib import Path

from lifesign.filesystem.file_lock import lock_if_free
from lifesign.filesystem.private_file import allocate, map_shared, open_private, reopened
from lifesign.middleware.published_document import PublishedDocument

MOST_DOCUMENT_BYTES = 32_768
"""The published document must fit into this."""

_MAGIC = b"lifesign board 1"
_LAYOUT_VERSION = 1
# magic, layout version, boot id, time base offset in ns; then the checksum of these
_TIME_BASE = struct.Struct("<16sQ40sq")
# computed at, expires at (ns), last healthy (ms), length of the document; then it and the checksum
_NOTICE = struct.Struct("<QQQI")
_CHECKSUM = struct.Struct("<I")
_PLACE_BYTES = 40_960
_PLACES = (4096, 4096 + _PLACE_BYTES)
_SIZE = 4096 + 2 * _PLACE_BYTES


class DocumentFile:
    """File in which workers share the published health document. OSError if it cannot be created."""

    def __init__(self, path: Path) -> None:
        fd = open_private(path, create=True)
        # A file of another owner was renamed: the second attempt creates the file.
        fd = open_private(path, create=True) if fd is None else fd
        if fd is None:
            raise OSError(errno.EACCES, "cannot be created as a private file", str(path))
        self.fd = fd
        self._unwritten: tuple[bytes, int] | None = None
        """Boot id and offset that could not be written, because another worker held the lock."""
        allocate(fd, _SIZE)
        with reopened(path, fd) as mapped_fd:
            self._view = map_shared(mapped_fd, _SIZE, writable=True)

    def agree_on_offset(self, monotonic_ns: int, wall_ns: int) -> int:
        """Return by how many nanoseconds the workers' common time is ahead of the monotonic clock.

        The time base begins as the time since 1970, and advances evenly whatever happens to the wall clock.
        After a reboot it continues from the wall clock, never backwards. Nothing waits here: while another
        worker holds the lock, this one computes the same value. Both read the same clocks.
        """
        boot = _boot_id(monotonic_ns, wall_ns)
        if (offset := self._offset(boot)) is not None:
            return offset
        with lock_if_free(self.fd) as is_ours:
            if (offset := self._offset(boot)) is not None:
                return offset
            last = self.read()
            offset = max(wall_ns, last.computed_ns if last else 0) - monotonic_ns
            if is_ours:
                self._write_offset(boot, offset)
            else:
                self._unwritten = (boot, offset)
        return offset

    def write_offset(self) -> None:
        """Write the workers' common time base, unless that was done. Only for the worker with the lock."""
        if self._unwritten is not None:
            boot, offset = self._unwritten
            self._unwritten = None
            if self._offset(boot) is None:
                self._write_offset(boot, offset)

    def _write_offset(self, boot: bytes, offset: int) -> None:
        fields = _TIME_BASE.pack(_MAGIC, _LAYOUT_VERSION, boot, offset)
        self._view[: len(fields) + _CHECKSUM.size] = fields + _checksum(fields)

    def read(self) -> PublishedDocument | None:
        """Return the newest undamaged document in the file; None if there is none."""
        notices = [notice for place in _PLACES if (notice := self._read(place))]
        return max(notices, key=lambda notice: notice.computed_ns, default=None)

    def write(self, notice: PublishedDocument) -> None:
        """Write a document to the file. Only for the worker with the lock. ValueError if it is too long."""
        if len(notice.document) > MOST_DOCUMENT_BYTES:
            raise ValueError(
                f"the document has {len(notice.document)} bytes; the maximum is {MOST_DOCUMENT_BYTES}"
            )
        body = notice.document
        body = _NOTICE.pack(notice.computed_ns, notice.expires_ns, notice.last_healthy_ms, len(body)) + body
        place = min(_PLACES, key=self._computed_ns)
        self._view[place : place + len(body) + _CHECKSUM.size] = body + _checksum(body)

    def _offset(self, boot: bytes) -> int | None:
        fields = bytes(self._view[: _TIME_BASE.size])
        if not any(fields):
            return None
        magic, version, written_boot, offset = _TIME_BASE.unpack(fields)
        is_sound = self._view[_TIME_BASE.size : _TIME_BASE.size + _CHECKSUM.size] == _checksum(fields)
        if not is_sound or magic != _MAGIC or version != _LAYOUT_VERSION:
            return None
        return int(offset) if written_boot.rstrip(b"\0") == boot else None

    def _read(self, place: int) -> PublishedDocument | None:
        computed_ns, expires_ns, last_healthy_ms, length = _NOTICE.unpack_from(self._view, place)
        if not 0 < length <= MOST_DOCUMENT_BYTES:
            return None
        end = place + _NOTICE.size + length
        body = bytes(self._view[place:end])
        if self._view[end : end + _CHECKSUM.size] != _checksum(body):
            return None
        return PublishedDocument(computed_ns, expires_ns, last_healthy_ms, body[_NOTICE.size :])

    def _computed_ns(self, place: int) -> int:
        notice = self._read(place)
        return notice.computed_ns if notice else -1


def _checksum(body: bytes) -> bytes:
    return _CHECKSUM.pack(zlib.crc32(body))


def _boot_id(monotonic_ns: int, wall_ns: int) -> bytes:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:40]
    except OSError:
        # Not Linux: the minute of the boot. A stepped clock looks like a reboot, which is harmless.
        return str((wall_ns - monotonic_ns) // 60_000_000_000).encode()
