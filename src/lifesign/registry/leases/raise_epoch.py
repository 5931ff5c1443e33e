"""Raising the epoch of fencing tokens, so that all older tokens are invalid."""

import secrets
from collections.abc import Iterable
from dataclasses import replace
from math import inf

from lifesign.domain.errors import TokensExhausted
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.lease_payloads import EpochRaised
from lifesign.domain.events.payload_fields import MAX_LOGGED_EPOCH
from lifesign.domain.tasks.lease import COUNTERS_PER_EPOCH, COUNTERS_PER_MS, EndReason, ended, raised_floor
from lifesign.registry.status_changes import lease_events
from lifesign.registry.status_changes.task_status import lose_tasks
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import leases

CHUNK = 2_000
"""Number of leases in memory at once."""


def raise_epoch(transaction: Transaction, actor: str, reason: str, *, above: Iterable[int] = ()) -> int:
    """End all leases, raise all new tokens above all old ones, and return the new epoch.

    `above` has the floors of tokens that were in use elsewhere. TokensExhausted after the highest epoch.
    """
    row = registry_row.lock(transaction, to_raise_epoch=True)
    floor = raised_floor([row.token_floor, *above], transaction.now_s, secrets.randbelow(COUNTERS_PER_MS))
    previous_epoch, epoch = row.token_floor // COUNTERS_PER_EPOCH, floor // COUNTERS_PER_EPOCH
    if epoch > MAX_LOGGED_EPOCH:
        raise TokensExhausted(previous_epoch)
    registry_row.store(transaction, replace(row, token_floor=floor))
    # No lease can be acquired now, since the row is locked: at the end there is none.
    while running := leases.expired(transaction, inf, CHUNK):
        over = [ended(claim, EndReason.EPOCH_RAISED, transaction.now_s) for claim in running]
        leases.store(transaction, over)
        moved = lose_tasks(transaction, over, actor)
        drafts = [*lease_events.leases_ended(over, actor)]
        event_log.append(transaction, drafts + [draft for several in moved.values() for draft in several])
    payload = EpochRaised(previous_epoch=previous_epoch, new_epoch=epoch, reason=reason)
    event_log.append(transaction, [EventDraft(type=EventType.EPOCH_RAISED, actor=actor, payload=payload)])
    return epoch
