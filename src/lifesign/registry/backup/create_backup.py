"""Backup of a registry into a file, and its restore.

A restored database has missed all time since the backup. No agent may die because of that time, and nothing
that was granted before or since the backup may be assumed to be valid.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lifesign.domain.access.permissions import Role, is_current
from lifesign.domain.events.chain import GENESIS, Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker, mismatch
from lifesign.domain.tasks.lease import COUNTERS_PER_EPOCH
from lifesign.errors import LifesignError
from lifesign.registry.backup.carry_over_revocations import RevokedCredentials, carry_over_revocations
from lifesign.registry.keys.manage_keys import NewKey, create_key
from lifesign.registry.leases.raise_epoch import raise_epoch
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine import registry_row, schema_version
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.table_definitions import event_log as event_log_table
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import DatabaseNotEmpty, InvalidBackup, RowRefused
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows
from lifesign.storage.whole_database import all_rows, backup_file, marker_state, replaced_rows
from lifesign.storage.whole_database.backup_file import BackupHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Result of a restore."""

    header: BackupHeader
    agents: int
    epoch: int
    """Epoch of the fencing tokens from now on."""
    may_lack_changes: bool
    """Whether changes since the backup may be unknown: the replaced database was empty, or not the newest."""
    withdrawn: RevokedCredentials
    admin_key: str | None
    """A new admin key if no other one is valid."""


def back_up(transaction: Transaction, file: Path) -> dict[str, int]:
    """Write a snapshot of all tables except sessions into a file; return the number of rows of each.

    To be run by `Database.read`: that one moment is the transaction's. BackupFailed; SchemaOutdated or
    SchemaUnknown if the database is not of this version.
    """
    return write_as_of(transaction, file, transaction.now_s)


def write_as_of(transaction: Transaction, file: Path, created_at_s: float) -> dict[str, int]:
    """Write a backup like `back_up`, with this time as its creation, in seconds since the epoch."""
    schema_version.check(transaction)
    header = BackupHeader(revision=schema_version.newest_revision(), created_at_s=created_at_s)
    with backup_file.writing(file, header) as writer:
        for table in all_rows.KEPT:
            writer.begin_table(table.name, table.columns.keys())
            for row in all_rows.read(transaction, table):
                writer.add_row(row)
        return writer.counts


def restore(
    transaction: Transaction,
    file: Path,
    *,
    is_forced: bool,
    actor: str,
    marker: DatabaseMarker | None = None,
    trusts_all_keys: bool = False,
) -> Restored:
    """Restore a backup into an empty database or, if forced, in place of the present content.

    All leases end, and all new fencing tokens are higher than all old ones, including those granted since the
    backup. All sessions end, and revocations since the backup are applied again. Keys that the replaced
    database does not know may have been revoked: unless all are trusted, they are suspended, and if no admin
    key is left, a new one is created. This concerns all keys if the replaced database is not the one of
    `marker`, or if its log does not contain the backup's last event. Read the marker before the transaction.
    Raise InvalidBackup or DatabaseNotEmpty.
    """
    header, head = _checked(file)
    if header.revision != schema_version.newest_revision():
        newest = schema_version.newest_revision()
        why = f"its tables have revision {header.revision}, those of this version {newest}"
        raise InvalidBackup(str(file), why)
    schema_version.upgrade(transaction)
    all_rows.lock_all(transaction)
    found = registry_row.find(transaction)
    is_older = not event_log.contains(transaction, head)
    is_other = marker is not None and mismatch(marker, marker_state.find(transaction, marker)) is not None
    names = all_rows.filled(transaction)
    if names and not is_forced:
        raise DatabaseNotEmpty(names)
    with replaced_rows.set_aside(transaction):
        all_rows.remove_all(transaction)
        counts = _replace_database(transaction, file)
        with _refusing_invalid_rows(file):
            _note_sleep(transaction, header)
            is_foreign = is_older and _is_of_another_installation(transaction, found)
            _keep_installation(transaction, found)
            above = [] if found is None else [found.token_floor]
            above += [] if marker is None else [marker.epoch * COUNTERS_PER_EPOCH]
            epoch = raise_epoch(transaction, actor, "restored from a backup", above=above)
            withdrawn = carry_over_revocations(
                transaction,
                actor,
                is_older=is_older,
                is_foreign=is_foreign,
                may_lack_changes=is_older or is_other,
                trusts_all_keys=trusts_all_keys,
            )
            admin_key = _admin_key(transaction, actor) if counts.get("keys") else None
    return Restored(
        header=header,
        agents=agent_rows.count(transaction),
        epoch=epoch,
        may_lack_changes=is_older or is_other,
        withdrawn=withdrawn,
        admin_key=admin_key,
    )


def _checked(file: Path) -> tuple[BackupHeader, Checkpoint]:
    """Read a complete backup; return its header and the last event of its log. InvalidBackup."""
    head = GENESIS
    with backup_file.reading(file) as (header, batches), _refusing_invalid_rows(file):
        for batch in batches:
            if batch.table == event_log_table.name:
                row = dict(zip(batch.columns, batch.rows[0], strict=True))
                head = Checkpoint(int(row["sequence"]), str(row["hash"]))
    return header, head


@contextmanager
def _refusing_invalid_rows(file: Path) -> Iterator[None]:
    """Turn an error in code that reads restored rows into InvalidBackup: SQLite takes values of any type."""
    try:
        yield
    except LifesignError:
        raise
    except all_rows.INVALID_ROW as error:
        raise InvalidBackup(str(file), f"a row has an invalid value ({type(error).__name__})") from error


def _admin_key(transaction: Transaction, actor: str) -> str | None:
    """Return a new admin key if no caller could manage keys otherwise."""
    admins = key_rows.lock_unrevoked(transaction, Role.ADMIN)
    if any(is_current(admin, transaction.now_s) for admin in admins):
        return None
    return create_key(transaction, NewKey(role=Role.ADMIN, name="restore"), actor)[1]


def _replace_database(transaction: Transaction, file: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    try:
        # Its sum is compared once more: the file may have been changed since it was checked.
        with backup_file.reading(file) as (_, batches):
            for batch in batches:
                all_rows.add(transaction, batch)
                counts[batch.table] = counts.get(batch.table, 0) + len(batch.rows)
    except RowRefused as error:
        raise InvalidBackup(str(file), str(error)) from error
    all_rows.count_on(transaction)
    return counts


def _is_of_another_installation(transaction: Transaction, found: RegistryRow | None) -> bool:
    """Return whether the replaced database and the restored one have different installation ids."""
    row = registry_row.find(transaction)
    ids = {each.installation_id for each in (found, row) if each is not None}
    return len(ids - {None}) > 1


def _keep_installation(transaction: Transaction, found: RegistryRow | None) -> None:
    """Keep the installation id of the database: markers on other hosts contain it.

    An empty database takes over the id of the backup.
    """
    if found is not None and found.installation_id is not None:
        row = registry_row.lock(transaction)
        registry_row.store(transaction, replace(row, installation_id=found.installation_id))


def _note_sleep(transaction: Transaction, header: BackupHeader) -> None:
    """Mark the time since the backup as time without a sweep, which the next sweep excludes."""
    row = registry_row.lock(transaction)
    swept_at_s = header.created_at_s if row.swept_at_s is None else row.swept_at_s
    registry_row.store(transaction, replace(row, swept_at_s=swept_at_s, sweeper=None, sweeper_until_s=None))
