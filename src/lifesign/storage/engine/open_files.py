"""The files of an open SQLite database, and whether their paths still refer to them.

SQLite keeps its files open. If a path is removed, or another file takes its place, commits go to a file that
no later process finds. In WAL mode SQLite does not notice. Nor does it notice a file that was truncated.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from lifesign.storage.engine.write_ahead_log import FileShrunk, WriteAheadLog
from lifesign.storage.errors import DatabaseReplaced

COMPANIONS = ("-wal", "-shm")
"""Suffixes of the write-ahead log and of its index. SQLite keeps both while a connection is open."""

FILE_TRUNCATED: Final = "the database file was truncated"

FileId = tuple[int, int]
"""Device and inode. The inode is not used again while the file is open."""


class OpenFiles:
    """The database file and its companions as this process opened them.

    A check costs one `os.stat` per file. It detects a removed, renamed or replaced file, a renamed directory,
    a changed symbolic link, a truncated file and a shorter log. It does not detect other content of the same
    size in the same file (`cp` over the file).
    """

    def __init__(self, file: Path) -> None:
        self.file = file.absolute()
        """Without resolving symbolic links: a link to another file must be detected."""
        self.is_lost = False
        """Whether the last check failed."""
        self.log: WriteAheadLog | None = None
        """Known once a connection has been opened."""
        self._opened: dict[Path, FileId] = {}
        self._size = 0
        """Size of the database file at the last check that found it whole."""
        self._has_companions = False
        """Whether the companion files were looked for."""

    @property
    def is_known(self) -> bool:
        """Whether a connection has been opened."""
        return bool(self._opened)

    def note_opened(self) -> None:
        """Remember which file the first connection opened."""
        # Not before the connection exists: on an overlay file system, opening for writing changes the inode.
        self._opened[self.file] = _id_of(_stat(self.file))
        # SQLite's own path of the log, also for a symbolic link.
        self.log = WriteAheadLog(self._companion(COMPANIONS[0]))

    def note_companions(self) -> None:
        """Remember the log and its index after the first commit; they exist only in WAL mode."""
        if self._has_companions:
            return
        self._has_companions = True
        for companion in map(self._companion, COMPANIONS):
            with suppress(FileNotFoundError):
                self._opened[companion] = _id_of(_stat(companion))

    def check_paths(self) -> None:
        """Raise DatabaseReplaced unless each path refers to the file that was opened.

        It compares no sizes, so any thread may call it while another one commits.
        """
        for path in tuple(self._opened):
            self._opened_stat(path)

    def check(self) -> None:
        """Check like `check_paths`; raise FileShrunk if the database file or the log is shorter than before.

        A commit of another thread at the same time can cause a FileShrunk, which `confirm` clears up.
        """
        found = {path: self._opened_stat(path).st_size for path in tuple(self._opened)}
        self._note_size(found.get(self.file, self._size))
        if self.log is not None and self.log.file in found:
            self.log.check_size(found[self.log.file])
        self.is_lost = False

    def check_known(self) -> None:
        """Raise FileShrunk if this process has not read the log yet: the log may already be too short."""
        if self.log is not None:
            self.log.check_known()

    def check_before_commit(self) -> None:
        """Raise FileShrunk if the database file or the log is shorter than before."""
        with suppress(OSError):
            found = _stat(self.file)
            # Otherwise `check` reports the loss of the path.
            if _id_of(found) == self._opened.get(self.file):
                self._note_size(found.st_size)
        if self.log is not None:
            self.log.check_before_commit()

    def confirm(self, connection: sqlite3.Connection) -> None:
        """Raise DatabaseReplaced if the database file is lost, or if a part of it or of its log is missing.

        StoreUnavailable if that cannot be found out, such as on a full disk. SQLite itself shortens the file
        after VACUUM. Call it outside of a transaction.
        """
        size = self._opened_stat(self.file).st_size
        if size < self._size:
            # SQLite would take an empty file for a new database, and remove the log.
            if not size or not self._is_whole(connection, size):
                self.is_lost = True
                raise DatabaseReplaced(FILE_TRUNCATED)
            self._size = size
        if self.log is not None:
            self.log.confirm(connection)

    def _is_whole(self, connection: sqlite3.Connection, size: int) -> bool:
        """Return whether no page is missing: each is in the file, or in the log."""
        try:
            [(page_bytes,)] = connection.execute("PRAGMA page_size")
            [(pages,)] = connection.execute("PRAGMA page_count")
            if pages * page_bytes <= size:
                return True
            # The cache still has the missing pages.
            connection.execute("PRAGMA shrink_memory")
            [*faults] = connection.execute("PRAGMA quick_check(1)")
        except sqlite3.Error:
            return False
        return faults == [("ok",)]

    def _opened_stat(self, path: Path) -> os.stat_result:
        """Return the status of a path that still refers to the file that was opened."""
        try:
            found = _stat(path)
        except (FileNotFoundError, NotADirectoryError):
            self._lose(path, "was removed")
        except OSError as error:
            self._lose(path, f"cannot be reached ({error.strerror})")
        if _id_of(found) != self._opened[path]:
            self._lose(path, "was replaced by another file")
        return found

    def _note_size(self, size: int) -> None:
        if size < self._size:
            raise FileShrunk(FILE_TRUNCATED)
        self._size = size

    def _lose(self, path: Path, how: str) -> NoReturn:
        self.is_lost = True
        what = "the database file" if path == self.file else f"the database's {path.name[-3:]} file"
        raise DatabaseReplaced(f"{what} {how}") from None

    def _companion(self, suffix: str) -> Path:
        target = self.file.resolve()
        return target.with_name(f"{target.name}{suffix}")


def _stat(path: Path) -> os.stat_result:
    # Not Path.stat, which takes twice as long.
    return os.stat(path)  # noqa: PTH116


def _id_of(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino
