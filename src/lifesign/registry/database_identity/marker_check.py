"""Identification of the database by its marker: at the start of a server, and when a database is adopted."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL

from lifesign.domain.events.chain import Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker, DatabaseState, Mismatch, mismatch
from lifesign.domain.tasks.lease import COUNTERS_PER_EPOCH
from lifesign.registry.database_identity.marker_file import MarkerFile, found_marker
from lifesign.registry.errors import DatabaseMismatch, InvalidMarker
from lifesign.registry.leases.raise_epoch import raise_epoch
from lifesign.storage.engine import registry_row, schema_version
from lifesign.storage.engine.ownership import table_names
from lifesign.storage.engine.sqlite_path import absolute_file
from lifesign.storage.engine.table_definitions import registry
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.whole_database import marker_state

ADOPTED = "adopted"
"""The reason in the event that raises the epoch."""


@dataclass(frozen=True, slots=True)
class KnownIdentity:
    """Facts that a host knows about a database. Read them before the transaction that compares them.

    Other processes write markers too: a marker that is read later may name events that the transaction cannot
    see.
    """

    file: Path
    marker: DatabaseMarker | None
    damage: str = ""
    """Reason why there is no marker although there is a file."""

    @classmethod
    def read(cls, file: MarkerFile) -> "KnownIdentity":
        """Read the marker file; InvalidValue if this user cannot, NewerMarker if this version cannot."""
        try:
            return cls(file.path, found_marker(file))
        except InvalidMarker as error:
            return cls(file.path, None, error.why)

    @property
    def is_new(self) -> bool:
        """Whether this host has never served the database."""
        return self.marker is None and not self.damage


def check_present(known: KnownIdentity, url: URL) -> None:
    """Raise DatabaseMismatch if a known SQLite file is absent: opening it would create an empty one."""
    file = absolute_file(url)
    if not known.is_new and file is not None and not file.exists():
        raise _refused(known, Mismatch.EMPTY, f"{file} is absent")


def check_filled(transaction: Transaction, known: KnownIdentity) -> None:
    """Raise DatabaseMismatch if a known database has no tables: setting it up would hide the loss."""
    if not known.is_new and schema_version.revision(transaction) is None:
        raise _refused(known, Mismatch.EMPTY, "this host served it when it was not")


def check_tables(transaction: Transaction, known: KnownIdentity) -> None:
    """Raise DatabaseMismatch if a known database that was set up once has lost its tables."""
    if not known.is_new and registry.name not in table_names(transaction.connection):
        raise _refused(known, Mismatch.EMPTY, "this host served it when it was not")


def check_known(transaction: Transaction, known: KnownIdentity) -> None:
    """Raise DatabaseMismatch if the database is not the known one. Its schema must be current."""
    if (refusal := _difference(transaction, known)) is not None:
        raise refusal


def is_uncomparable(transaction: Transaction, known: KnownIdentity) -> bool:
    """Return whether the marker's event was archived: a copy that has continued looks the same then.

    With a higher epoch it does not matter: all old tokens are invalid.
    """
    marker = known.marker
    if marker is None or event_log.archived_sequence(transaction) <= marker.head.sequence:
        return False
    return marker_state.find(transaction, None).epoch == marker.epoch


def current_marker(transaction: Transaction) -> DatabaseMarker:
    """Return a marker of the present database; a database without an installation id gets one."""
    state = marker_state.find(transaction, None)
    if state.installation_id is None:
        registry_row.set_installation(transaction)
        state = marker_state.find(transaction, None)
    assert state.installation_id is not None  # noqa: S101 - it was set just now
    return DatabaseMarker(installation_id=state.installation_id, epoch=state.epoch, head=state.head)


def adopt(
    transaction: Transaction, known: KnownIdentity, actor: str, *, is_forced: bool = False
) -> int | None:
    """Accept a database that is not the known one, and return its raised epoch; None for the known one.

    Without a marker any database that has tables may be an old copy. An empty one is set up if there is a
    marker. All new fencing tokens are above those of the known database. `is_forced`: adopt the known one
    too. Raises SchemaOutdated.
    """
    if known.is_new and registry.name not in table_names(transaction.connection):
        return None
    is_empty = schema_version.set_up_or_check(transaction)
    is_known = not (known.is_new or is_empty or known.damage)
    if is_known and not is_forced and _difference(transaction, known) is None:
        return None
    epoch = 0 if known.marker is None else known.marker.epoch
    return raise_epoch(transaction, actor, ADOPTED, above=[epoch * COUNTERS_PER_EPOCH])


def _difference(transaction: Transaction, known: KnownIdentity) -> DatabaseMismatch | None:
    if known.marker is None:
        return None
    state = marker_state.find(transaction, known.marker)
    found = mismatch(known.marker, state)
    return None if found is None else _refused(known, found, _in_words(found, known.marker, state))


def _refused(known: KnownIdentity, found: Mismatch, what: str) -> DatabaseMismatch:
    return DatabaseMismatch(found.value, what, str(known.file))


def _in_words(found: Mismatch, marker: DatabaseMarker, state: DatabaseState) -> str:
    match found:
        case Mismatch.FOREIGN:
            return f"{state.installation_id or 'it has no installation id'}, not {marker.installation_id}"
        case Mismatch.BEHIND:
            missing = _log_position(marker.head, marker.epoch)
            return f"it ends at {_log_position(state.head, state.epoch)}, and {missing} was committed"
        case _:
            return f"its event {marker.head.sequence} differs from the one that was committed"


def _log_position(head: Checkpoint, epoch: int) -> str:
    return f"event {head.sequence} of epoch {epoch}"
