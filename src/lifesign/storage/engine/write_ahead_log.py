"""The write-ahead log of an open SQLite database, and whether it was truncated in place.

SQLite does not notice that. It writes the next commit behind a gap, where no later process reads it. At the
next checkpoint it copies the gap into the database file. SQLite itself shortens a log only after it has moved
the log into the database file.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lifesign.storage.engine.database_faults import check_writable
from lifesign.storage.errors import DatabaseReplaced

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
"""Sizes in a write-ahead log (sqlite.org/fileformat2.html, section 4.1)."""
MAGIC: Final = frozenset({b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"})
"""First bytes of a write-ahead log."""
TRUNCATED: Final = "the database's wal file was truncated"


class FileShrunk(DatabaseReplaced):
    """A file is shorter than before. SQLite, in this process or another one, may have shortened it."""


class LogShrunk(FileShrunk):
    """The log is shorter than expected. Another process may have moved it into the database file."""

    def __init__(self) -> None:
        super().__init__(TRUNCATED)


class WriteAheadLog:
    """State of SQLite's write-ahead log as this process found it after its last commit."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._is_known = False
        """Whether this process has read the log."""
        self._size = 0
        self._header = b""
        """Has a new salt each time SQLite starts the log again."""

    def check_known(self) -> None:
        """Raise LogShrunk if this process has not read the log: its size may be too small already."""
        if not self._is_known:
            raise LogShrunk

    def check_size(self, size: int) -> None:
        """Raise LogShrunk if the log of this size is shorter than after the last commit."""
        if size < self._size:
            raise LogShrunk

    def check_before_commit(self) -> None:
        """Raise LogShrunk if the log is shorter than after the last commit, or than when first read.

        Within a transaction no other process may shorten the log.
        """
        try:
            # Not Path.stat, which takes twice as long.
            size = os.stat(self.file).st_size  # noqa: PTH116
        except OSError:
            # Either there is none yet, or the check of the paths reports its loss.
            return
        self.check_size(size)

    def note_commit(self, *, has_changed: bool) -> None:
        """Remember the log after a commit.

        Raises LogShrunk, or DatabaseReplaced if the log begins with a gap.
        """
        with suppress(OSError):
            size, header = self._read()
            if size < self._size or (has_changed and not size):
                raise LogShrunk
            self._remember(size, header)

    def confirm(self, connection: sqlite3.Connection) -> None:
        """Raise DatabaseReplaced if the log lacks anything that is not in the database file.

        StoreUnavailable if that cannot be found out, such as on a full disk. Call it outside of a
        transaction. If SQLite needs nothing of the log, SQLite starts it again.
        """
        with suppress(FileNotFoundError):
            size, header = self._read()
            if size < self._size and len(header) == HEADER_BYTES and header == self._header:
                # A checkpoint would copy the rest of it, and the database file would be a mixture.
                raise DatabaseReplaced(TRUNCATED)
        try:
            [(page_bytes,)] = connection.execute("PRAGMA page_size")
            # PASSIVE waits for no reader, and returns the number of frames that SQLite knows.
            is_whole = any(self._is_whole(connection, mode, page_bytes) for mode in ("PASSIVE", "TRUNCATE"))
        except sqlite3.Error as error:
            check_writable(error)
            # SQLite reads the frames that it has not moved yet, and does not find them.
            is_whole = False
        if not is_whole:
            raise DatabaseReplaced(TRUNCATED)

    def _is_whole(self, connection: sqlite3.Connection, mode: str, page_bytes: int) -> bool:
        [(_, frames, _)] = connection.execute(f"PRAGMA wal_checkpoint({mode})")
        try:
            size, header = self._read()
        except FileNotFoundError:
            size, header = 0, b""
        if not _is_empty(frames) and size < HEADER_BYTES + frames * (FRAME_HEADER_BYTES + page_bytes):
            return False
        self._remember(size, header)
        return True

    def _remember(self, size: int, header: bytes) -> None:
        if size and header[:4] not in MAGIC:
            raise DatabaseReplaced(TRUNCATED)
        self._is_known, self._size, self._header = True, size, header

    def _read(self) -> tuple[int, bytes]:
        """Return size and header. SQLite holds no lock on this file that closing it would release."""
        opened = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.fstat(opened).st_size, os.pread(opened, HEADER_BYTES, 0)
        finally:
            os.close(opened)


def _is_empty(frames: Any) -> bool:
    # -1 in other journal modes.
    return int(frames) <= 0
