"""Keys without events of their own in a log that contains them all the same.

As after an archival: the states with which the log begins contain them.
"""

from lifesign.domain.access.permissions import StoredKey
from lifesign.domain.events.key_state import state_of
from lifesign.registry.events.archive_events import replay_from
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows


def add_without_event(transaction: Transaction, *keys: StoredKey) -> None:
    """Store keys without an event."""
    for key in keys:
        key_rows.add(transaction, key)
    head = event_log.lock(transaction)
    begun = replay_from(head)
    begun.keys |= {key.key_id: state_of(key) for key in keys}
    event_log.set_archived(transaction, head.archived, begun.to_json())
