"""The state of the database, as its marker outside records it."""

from sqlalchemy import select

from agent_health.database_marker import DatabaseMarker, DatabaseState
from agent_health.event_chain import GENESIS, Checkpoint
from agent_health.lease import COUNTERS_PER_EPOCH
from agent_health.storage import event_log, registry_row
from agent_health.storage.database import Transaction
from agent_health.storage.tables import event_log as event_log_table

# Without the states of what was archived, which may be long.
_HEAD = select(event_log_table.c.sequence, event_log_table.c.hash).where(event_log_table.c.id == 1)


def find(transaction: Transaction, marker: DatabaseMarker | None) -> DatabaseState:
    """Return the state, compared with a marker that was read before the transaction began."""
    row = registry_row.find(transaction)
    head = transaction.connection.execute(_HEAD).one_or_none()
    return DatabaseState(
        installation_id=None if row is None else row.installation_id,
        epoch=0 if row is None else row.token_floor // COUNTERS_PER_EPOCH,
        head=GENESIS if head is None else Checkpoint(*head),
        has_marked_event=marker is None or event_log.leads_over(transaction, marker.head),
    )
