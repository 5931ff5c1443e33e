"""Errors of the database and of its backups."""

from collections.abc import Sequence

from lifesign.errors import LifesignError, NoAnswer


class StoreUnavailable(NoAnswer):
    """The registry's database is unreachable, full or too busy; a retry may succeed.

    A change that was in progress may have been made.
    """


class DatabaseReplaced(StoreUnavailable):
    """The running server's database was removed, replaced or set back. No change is accepted.

    Nothing since then was stored: the caller must repeat what it asked for once the server is healthy.
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
    """A newer version of lifesign has been at the database; this one would not understand it."""

    def __init__(self, found: str, newest: str) -> None:
        super().__init__(
            f"the database is at revision {found}, this version of lifesign knows none above {newest}: "
            "install the newer version"
        )
        self.found = found
        self.newest = newest


class ForeignDatabase(NoAnswer):
    """The database has tables, and lifesign did not make them."""

    def __init__(self, tables: Sequence[str]) -> None:
        super().__init__(
            f"the database holds tables of another program: {', '.join(tables[:5])}; "
            "expected one of our own, or one without tables"
        )
        self.tables = tuple(tables)


class BackupFailed(LifesignError):
    """A backup could not be written; the file that it was to replace still exists."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"no backup was written to {file}: {why}")
        self.file = file
        self.why = why


class InvalidBackup(LifesignError):
    """A file is no backup, or not a whole one, or none that this version reads; nothing was changed."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file} cannot be restored: {why}")
        self.file = file
        self.why = why


class DatabaseNotEmpty(LifesignError):
    """Restoring would replace what the database holds."""

    def __init__(self, tables: Sequence[str]) -> None:
        super().__init__(f"the database is not empty ({', '.join(tables)}): --force replaces all of it")
        self.tables = tuple(tables)


class DatabaseInUse(LifesignError):
    """Another process has the database open that is to be replaced or recreated."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} is in use: stop the server, and whatever else has it open, first")
        self.place = place


class RowRefused(LifesignError):
    """The database does not take rows that it is to hold again, or has no such table."""

    def __init__(self, table: str) -> None:
        super().__init__(f"the rows of {table[:80]!r} do not fit the database")
        self.table = table[:80]
