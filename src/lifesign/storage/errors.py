"""Errors of the database and of its backups."""

from collections.abc import Sequence

from lifesign.errors import LifesignError, NoAnswer


class StoreUnavailable(NoAnswer):
    """The registry's database is unreachable, full or too busy; a retry may succeed.

    A change that was in progress may have been made.
    """


class DatabaseReplaced(StoreUnavailable):
    """The running server's database was removed, replaced or set back. No change is accepted.

    Changes after that moment were not stored: the caller must repeat its requests once the server is healthy.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: no change is accepted")
        self.why = why


class SchemaOutdated(NoAnswer):
    """The database is at an older revision than this version needs; `found` is None if it is empty."""

    def __init__(self, found: str | None, expected: str) -> None:
        where = "is empty" if found is None else f"is at revision {found}"
        super().__init__(f"the database {where}, revision {expected} is needed: run lifesign migrate")
        self.found = found
        self.expected = expected


class SchemaUnknown(NoAnswer):
    """The database was written by a newer version of lifesign."""

    def __init__(self, found: str, newest: str) -> None:
        super().__init__(
            f"the database has revision {found}, and this version of lifesign supports at most "
            f"{newest}: install the newer version"
        )
        self.found = found
        self.newest = newest


class ForeignDatabase(NoAnswer):
    """The database contains tables of another program."""

    def __init__(self, tables: Sequence[str]) -> None:
        super().__init__(
            f"the database contains tables of another program: {', '.join(tables[:5])}; expected a "
            "database of lifesign, or an empty one"
        )
        self.tables = tuple(tables)


class BackupFailed(LifesignError):
    """A backup could not be written. An earlier backup in the same file was not changed."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"no backup was written to {file}: {why}")
        self.file = file
        self.why = why


class InvalidBackup(LifesignError):
    """The file is not a complete backup that this version can read; nothing was changed."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file} cannot be restored: {why}")
        self.file = file
        self.why = why


class DatabaseNotEmpty(LifesignError):
    """The restore would replace the content of the database."""

    def __init__(self, tables: Sequence[str]) -> None:
        super().__init__("the database is not empty: --force replaces everything in it")
        self.tables = tuple(tables)


class DatabaseInUse(LifesignError):
    """Another process uses the database that is to be replaced or recreated."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} is in use: stop the server and all other programs that use it first")
        self.place = place


class RowRefused(LifesignError):
    """A row of the backup cannot be restored: the database refuses it, or lacks its table."""

    def __init__(self, table: str) -> None:
        super().__init__(f"the rows of {table[:80]!r} do not fit the database")
        self.table = table[:80]
