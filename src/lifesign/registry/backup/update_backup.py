"""Upgrade of a backup of an older version.

Its rows are loaded into an empty SQLite file with the tables of that version. That file is migrated like any
database, and backed up again.
"""

from functools import partial
from pathlib import Path

from lifesign.registry.backup.create_backup import write_as_of
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import BackupFailed, InvalidBackup, RowRefused, StoreUnavailable
from lifesign.storage.whole_database import all_rows, backup_file
from lifesign.storage.whole_database.backup_file import BackupHeader

DATABASE = "older.db"
BACKUP = "updated.gz"
"""Name of the file in the given directory."""


def check(file: Path) -> BackupHeader:
    """Read all of a backup and return its header; InvalidBackup, also if a newer version wrote it."""
    header = backup_file.check(file)
    if header.revision not in schema_version.known_revisions():
        why = (
            f"its tables have revision {header.revision}, this version supports at most "
            f"{schema_version.newest_revision()}: install the newer version"
        )
        raise InvalidBackup(str(file), why)
    return header


async def updated(file: Path, directory: Path) -> Path:
    """Return the same backup in the format of this version, written into the empty `directory`.

    The directory needs room for the database and its backup. InvalidBackup; StoreUnavailable without enough.
    """
    database = open_database(f"sqlite:///{directory / DATABASE}")
    current = directory / BACKUP
    try:
        created_at_s = await database.write(partial(_load, file=file))
        await database.read(partial(write_as_of, file=current, created_at_s=created_at_s))
    except RowRefused as error:
        raise InvalidBackup(str(file), str(error)) from error
    except (StoreUnavailable, BackupFailed) as error:
        raise StoreUnavailable(f"{file} cannot be migrated in {directory}: {error}") from error
    finally:
        await database.close()
    return current


def _load(transaction: Transaction, file: Path) -> float:
    """Load the rows into tables of their version, upgrade these, and return when the backup was made."""
    with backup_file.reading(file) as (header, batches):
        schema_version.upgrade_connection(transaction.connection, header.revision)
        for batch in batches:
            all_rows.add_older(transaction, batch)
    schema_version.upgrade(transaction)
    return header.created_at_s
