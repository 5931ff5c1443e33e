"""Leases that an API key and its workers hold directly: they end with the key.

An agent holds leases in its own name, whichever of its keys it uses: these stay.
"""

from collections.abc import Collection, Sequence

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.events.event import EventDraft
from lifesign.domain.probing.shard_eligibility import key_of
from lifesign.domain.targets.target import SHARDS
from lifesign.domain.tasks.lease import MAX_TTL_SECONDS, EndReason
from lifesign.registry.status_changes import lease_events
from lifesign.registry.status_changes.task_status import lose_tasks
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows
from lifesign.storage.probing import probers
from lifesign.storage.tasks import leases

MAX_ENDED = 10_000
"""Maximum number of ended keys per check; each is checked for a day."""


def keys_with_leases(transaction: Transaction) -> list[str]:
    """Return the ids of keys that were revoked or expired recently and still hold a lease."""
    ended = key_rows.ended_since(transaction, transaction.now_s - MAX_TTL_SECONDS, MAX_ENDED)
    if not ended:
        return []
    holders = _holders(transaction, ended)
    return sorted({_key_id(holder) for holder in leases.holding(transaction, holders)})


def end_leases_of(
    transaction: Transaction, key_ids: Collection[str], actor: str, *, before: Sequence[EventDraft] = ()
) -> None:
    """End all leases of these keys and their workers at once; their tasks continue with other holders.

    `before`: events to log before those of the leases. The log must not be locked earlier: requests for
    leases lock it last.
    """
    # Workers claim shards in the same order, so that no deadlock is possible.
    probers.lock_all(transaction)
    holders = _holders(transaction, key_ids)
    over = leases.end_all_of(transaction, dict.fromkeys(holders, EndReason.REVOKED))
    claims = [claim for holder in sorted(over) for claim in over[holder]]
    moved = lose_tasks(transaction, claims, actor)
    drafts = [*before, *lease_events.leases_ended(claims, actor)]
    drafts += [draft for several in moved.values() for draft in several]
    event_log.append(transaction, drafts)
    probers.remove_keys(transaction, [f"{KEY_ACTOR_PREFIX}{key_id}" for key_id in key_ids])


def _holders(transaction: Transaction, key_ids: Collection[str]) -> list[str]:
    """Return the names under which these keys and their living workers hold leases."""
    names = {f"{KEY_ACTOR_PREFIX}{key_id}" for key_id in key_ids}
    workers = (worker.holder for worker in probers.running(transaction, SHARDS))
    return sorted(names.union(holder for holder in workers if key_of(holder) in names))


def _key_id(holder: str) -> str:
    return key_of(holder).removeprefix(KEY_ACTOR_PREFIX)
