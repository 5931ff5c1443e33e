"""The state of the database, as its marker outside records it."""

from sqlalchemy import select

from lifesign.domain.events.chain import GENESIS, Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker, DatabaseState
from lifesign.domain.tasks.lease import COUNTERS_PER_EPOCH
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.table_definitions import event_log as event_log_table
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

# Without the states of archived events, which may be long.
_HEAD = select(event_log_table.c.sequence, event_log_table.c.hash).where(event_log_table.c.id == 1)


def find(transaction: Transaction, marker: DatabaseMarker | None) -> DatabaseState:
    """Return the database's state, compared with a marker that was read before the transaction began."""
    row = registry_row.find(transaction)
    head = transaction.connection.execute(_HEAD).one_or_none()
    return DatabaseState(
        installation_id=None if row is None else row.installation_id,
        epoch=0 if row is None else row.token_floor // COUNTERS_PER_EPOCH,
        head=GENESIS if head is None else Checkpoint(*head),
        has_marked_event=marker is None or event_log.contains(transaction, marker.head),
    )
