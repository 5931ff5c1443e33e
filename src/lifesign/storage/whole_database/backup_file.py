"""Backup files: writing them, and checking that they are complete.

Lines of JSON, compressed with gzip: a header, then each table's name and columns, followed by its rows, and
an end with the number of rows and a SHA-256 of all lines before it. The format is independent of the kind of
database, so that a backup of SQLite can be restored to PostgreSQL.
"""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifesign.errors import InvalidValue
from lifesign.storage.errors import BackupFailed, InvalidBackup

FORMAT = "lifesign-backup"
FORMAT_VERSION = 1
MAX_LINE_BYTES = 64 * 2**20
"""Maximum size of one row; the registry never writes longer ones."""
MAX_CREATED_AT_S = 253_402_300_799
"""End of the year 9999."""
BATCH = 1_000
"""Number of rows in memory at a time."""
COMPRESSION = 6
STANDARD_OUTPUT = "-"
"""Standard output, by the usual name."""
SQLITE_COMPANIONS = ("-wal", "-shm", "-journal")
"""Files that SQLite creates beside its file, and reads as its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHeader:
    """Header of a backup."""

    revision: str
    """Revision of the tables."""
    created_at_s: float
    """Time by the clock of the source database."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of one table."""

    table: str
    columns: tuple[str, ...]
    rows: list[list[Any]]


class BackupWriter:
    """Writes one backup; created by `writing`."""

    def __init__(self, stream: gzip.GzipFile, header: BackupHeader) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._counts: dict[str, int] = {}
        self._table = ""
        self._write({
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "revision": header.revision,
            "created_at_s": header.created_at_s,
        })  # fmt: skip

    @property
    def counts(self) -> dict[str, int]:
        """Number of written rows of each table."""
        return dict(self._counts)

    def begin_table(self, name: str, columns: Sequence[str]) -> None:
        """Begin the rows of a table."""
        self._table = name
        self._counts[name] = 0
        self._write({"table": name, "columns": list(columns)})

    def add_row(self, row: Sequence[Any]) -> None:
        """Write one row, its values in the order of the columns."""
        self._counts[self._table] += 1
        self._write(list(row))

    def finish(self) -> None:
        """Write the end of the backup, without which it is incomplete."""
        self._write({"rows": self._counts, "sha256": self._hash.hexdigest()})

    def _write(self, value: object) -> None:
        line = json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        self._hash.update(line)
        self._stream.write(line)


@contextmanager
def writing(file: Path, header: BackupHeader) -> Iterator[BackupWriter]:
    """Write a backup; the file appears only once it is complete, checked and on the disk.

    Only its owner may read it. InvalidValue if something else than a backup is in its place;
    BackupFailed if it cannot be written.
    """
    check_destination(file)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.unfinished")
    try:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as raw:
            # Neither name nor time: equal backups are equal files.
            with gzip.GzipFile("", "wb", COMPRESSION, raw, mtime=0) as stream:
                writer = BackupWriter(stream, header)
                yield writer
                writer.finish()
            raw.flush()
            os.fsync(raw.fileno())
        check(unfinished)
        unfinished.replace(file)
        _sync_directory(file.parent)
    except OSError as error:
        raise BackupFailed(str(file), error.strerror or str(error)) from error
    except InvalidBackup as error:
        raise BackupFailed(str(file), f"the backup cannot be read back: {error.why}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def check_destination(file: Path, database: Path | None = None) -> None:
    """Raise an error unless a backup may be written there: to a new file or over an older backup.

    Raise InvalidValue else: the file may be the database itself. `database` is an SQLite file, whose
    companion files must not be overwritten, whether they exist or not.
    """
    expected = "a new file, or an older backup that is to be replaced"
    if str(file) == STANDARD_OUTPUT:
        why = f"{expected}; standard output cannot be read back"
        raise InvalidValue("FILE", str(file), why)
    if database is not None:
        names = {f"{database.name}{suffix}" for suffix in ("", *SQLITE_COMPANIONS)}
        if file.name in names and _is_same(file.parent, database.parent):
            raise InvalidValue("FILE", str(file), f"{expected}; this is the database itself")
    if not file.is_symlink() and not file.exists():
        return
    if file.exists() and not file.is_file():
        # Opening a pipe would block until it has a reader.
        raise InvalidValue("FILE", str(file), f"{expected}; this is a directory or a device")
    try:
        with reading(file):
            pass
    except InvalidBackup as error:
        raise InvalidValue(
            "FILE", str(file), f"{expected}; the existing file is not one ({error.why})"
        ) from None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def check(file: Path) -> BackupHeader:
    """Read a complete backup and return its header; InvalidBackup if it is incomplete or damaged."""
    with reading(file) as (header, batches):
        for _ in batches:
            pass
    return header


@contextmanager
def reading(file: Path) -> Iterator[tuple[BackupHeader, Iterator[Batch]]]:
    """Open a backup for reading: its header, and its rows a batch at a time.

    Raise InvalidBackup, possibly at the end of the rows: the rows are valid only once all were read.
    """
    try:
        with gzip.open(file, "rb") as stream:
            reader = _Reader(file, stream)
            yield reader.header, reader.batches()
    except OSError as error:
        # Also for files that are not gzip.
        raise InvalidBackup(str(file), error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise InvalidBackup(str(file), "it is cut off or damaged") from error


class _Reader:
    """Reads the lines of one backup."""

    def __init__(self, file: Path, stream: gzip.GzipFile) -> None:
        self._file = file
        self._stream = stream
        self._hash = hashlib.sha256()
        self.header = self._read_header()

    def batches(self) -> Iterator[Batch]:
        """Return the rows; at their end the sum is compared."""
        counts: dict[str, int] = {}
        batch: Batch | None = None
        while True:
            digest = self._hash.hexdigest()
            match self._line():
                case list(row) if batch is not None and len(row) == len(batch.columns):
                    batch.rows.append(row)
                    counts[batch.table] += 1
                    if len(batch.rows) >= BATCH:
                        yield batch
                        batch = Batch(batch.table, batch.columns, [])
                case {"table": str(table), "columns": [*columns], **others} if (
                    not others and table not in counts and all(isinstance(name, str) for name in columns)
                ):
                    if batch is not None and batch.rows:
                        yield batch
                    counts[table] = 0
                    batch = Batch(table, tuple(columns), [])
                case {"rows": rows, "sha256": sha256, **others} if not others:
                    if batch is not None and batch.rows:
                        yield batch
                    if sha256 != digest or rows != counts or self._stream.read(1):
                        raise self._fault("its checksum is wrong: it was changed")
                    return
                case _:
                    raise self._fault("it contains unknown data")

    def _read_header(self) -> BackupHeader:
        match self._line():
            case {
                "format": "lifesign-backup",
                "version": int(version),
                "revision": str(revision),
                "created_at_s": int() | float() as created_at_s,
            }:
                if version != FORMAT_VERSION:
                    raise self._fault(f"its format is version {version}, not {FORMAT_VERSION}")
                if not 0 <= created_at_s <= MAX_CREATED_AT_S:
                    raise self._fault("its time of creation is invalid")
                return BackupHeader(revision=revision, created_at_s=created_at_s)
            case _:
                raise self._fault("it is not a backup of lifesign")

    def _line(self) -> Any:
        line = self._stream.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise self._fault("it is cut off" if len(line) < MAX_LINE_BYTES else "a row is too large")
        self._hash.update(line)
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise self._fault("a line is not JSON") from None

    def _fault(self, why: str) -> InvalidBackup:
        return InvalidBackup(str(self._file), why)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
