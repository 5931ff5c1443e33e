"""How does a test get keys without events of their own, and a log that tells of them all the same?

As after an archival: the states with which the log begins hold them.
"""

from agent_health.access import StoredKey
from agent_health.key_state import state_of
from agent_health.registry.archive_events import replay_from
from agent_health.storage import event_log, keys
from agent_health.storage.database import Transaction


def add_untold(transaction: Transaction, key: StoredKey) -> None:
    """Store a key of which no event tells."""
    keys.add(transaction, key)
    head = event_log.lock(transaction)
    begun = replay_from(head)
    begun.keys[key.key_id] = state_of(key)
    event_log.set_archived(transaction, head.archived, begun.to_json())
