"""Revocations since a backup, which a restore must keep.

These are grants of access, permissions to contact a host, and requests to erase: keys, webhooks, opted-out
origins and erased agents. The replaced database is read. Keys that it does not know are suspended until an
operator confirms them; webhooks that it does not know are listed. If it may lack changes itself, these are
all keys and webhooks. Everything else returns to the state of the backup.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lifesign.domain.access.permissions import (
    Role,
    StoredKey,
    is_current,
    with_earlier_end,
)
from lifesign.domain.events.event_type import EventType
from lifesign.registry.agents.erase_agent import erase_agent
from lifesign.registry.events import manage_webhooks
from lifesign.registry.keys import manage_keys
from lifesign.registry.keys.manage_keys import suspend_key
from lifesign.registry.targets.opt_out_origins import prove
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log, webhooks
from lifesign.storage.events.webhooks import StoredWebhook
from lifesign.storage.keys import key_rows
from lifesign.storage.targets import directories, opt_outs
from lifesign.storage.whole_database import replaced_rows

if TYPE_CHECKING:
    from lifesign.domain.events.event import EventDraft

MAX_WEBHOOKS = 10_000
"""Maximum of compared webhooks; a registry has 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedCredentials:
    """Revocations that were carried over, and items whose state is unknown."""

    keys: tuple[StoredKey, ...]
    """Good in the backup; ended again as they were before the restore."""
    limited_keys: tuple[StoredKey, ...]
    """Keys whose limit of workers was set or lowered since the backup."""
    successors: tuple[StoredKey, ...]
    """Successors of rotated keys: they are kept, since the backup does not contain them."""
    webhooks: tuple[str, ...]
    """Ids of webhooks that were deleted or disabled since the backup."""
    opt_outs: tuple[str, ...]
    """Origins whose owners opted out since the backup."""
    erased_agents: tuple[str, ...]
    """Agents of the backup that were erased since, and so again."""
    unknown_keys: tuple[StoredKey, ...]
    """Keys that are valid in the backup, and that may have been revoked since; keys of agents are only
    counted.
    """
    unknown_agent_keys: int
    unknown_webhooks: tuple[StoredWebhook, ...]
    """Webhooks that receive events again, and that may have been deleted since the backup."""


def carry_over_revocations(
    transaction: Transaction,
    actor: str,
    *,
    is_older: bool,
    is_foreign: bool,
    may_lack_changes: bool,
    trusts_all_keys: bool,
) -> RevokedCredentials:
    """Apply the revocations, erasures and opt-outs since the backup to the restored rows.

    Call it within `replaced_rows.set_aside`, once all rows are restored.

    `is_older`: the replaced database does not contain the backup, whose secrets of webhooks are then kept.
    `is_foreign`: it belongs to another installation, whose erasures say nothing about the backup's agents.
    `may_lack_changes`: a key that is valid in the replaced database may have been revoked since. Keys that
    may have been revoked are suspended unless all are trusted.
    """
    erased = () if is_foreign else _erase_agents(transaction, actor)
    ended, successors = _end_keys(transaction, actor)
    limited = _limit_keys(transaction, actor)
    ended_webhooks = _end_webhooks(transaction, actor, keeps_secrets=not is_older)
    opted_out = replaced_rows.opt_outs(transaction)
    for origin, token in opted_out:
        opt_outs.put(transaction, origin, token)
        prove(transaction, origin, token, actor)
    unknown, of_agents = _unknown_keys(transaction, may_lack_changes=may_lack_changes)
    if not trusts_all_keys:
        for key in (*unknown, *of_agents):
            suspend_key(transaction, key, actor)
    known = {} if may_lack_changes else replaced_rows.replaced_webhooks(transaction)
    back = [each for each in webhooks.listing(transaction, MAX_WEBHOOKS) if not each.is_disabled]
    return RevokedCredentials(
        keys=tuple(ended),
        limited_keys=tuple(limited),
        successors=tuple(successors),
        webhooks=tuple(ended_webhooks),
        opt_outs=tuple(origin for origin, _ in opted_out),
        erased_agents=erased,
        unknown_keys=tuple(unknown),
        unknown_agent_keys=len(of_agents),
        unknown_webhooks=tuple(each for each in back if each.id not in known),
    )


def _end_keys(transaction: Transaction, actor: str) -> tuple[list[StoredKey], list[StoredKey]]:
    """End keys as they were ended before; return these, and the successors of rotated keys."""
    newer = replaced_rows.successors(transaction)
    ended: list[StoredKey] = []
    kept: dict[str, StoredKey] = {}
    drafts: list[EventDraft] = []
    for key, before in replaced_rows.ended_keys(transaction):
        over = with_earlier_end(key, before)
        # A rotation does not change an expiry that comes before the end of the overlap.
        later = [each for each in _later_keys(before, newer) if is_current(each, transaction.now_s)]
        ids = [each.key_id for each in later]
        kept |= {
            each.key_id: replace(each, successor_id=after)
            for each, after in zip(later, [*ids[1:], None], strict=False)
        }
        if later:
            # The next restore needs to know it too.
            key_rows.set_successor(transaction, key.key_id, ids[0])
        if later or over.expires_at_s != key.expires_at_s:
            drafts.append(manage_keys.changed(EventType.KEY_ROTATED, over, actor))
        if over == key:
            continue
        _end(transaction, over)
        ended.append(over)
        if over.revoked_at_s is not None:
            end = EventType.KEY_SUSPENDED if over.is_suspended else EventType.KEY_REVOKED
            drafts.append(manage_keys.changed(end, over, actor))
    for key in kept.values():
        key_rows.add(transaction, key)
        drafts.append(manage_keys.changed(EventType.KEY_CREATED, key, actor))
    for name, owner in replaced_rows.owned_directories(transaction).items():
        if owner in kept:
            directories.give(transaction, name, owner)
    event_log.append(transaction, drafts)
    return ended, list(kept.values())


def _later_keys(key: StoredKey, newer: Mapping[str, StoredKey]) -> list[StoredKey]:
    """Return the successors of a key, and theirs, that the backup lacks: a client may have only these."""
    found: list[StoredKey] = []
    while (after := newer.get(key.successor_id or "")) is not None and after not in found:
        found.append(after)
        key = after
    return found


def _limit_keys(transaction: Transaction, actor: str) -> list[StoredKey]:
    """Limit keys as they were limited before; return these."""
    limited = replaced_rows.limited_keys(transaction)
    for key in limited:
        key_rows.limit_workers(transaction, key.key_id, key.max_workers)
    event_log.append(transaction, [manage_keys.changed(EventType.KEY_LIMITED, key, actor) for key in limited])
    return limited


def _erase_agents(transaction: Transaction, actor: str) -> tuple[str, ...]:
    """Erase the agents of the backup that were erased since; return their ids."""
    erased = replaced_rows.erased_agents(transaction)
    for agent_id in erased:
        erase_agent(transaction, agent_id, actor)
    return tuple(erased)


def _end_webhooks(transaction: Transaction, actor: str, *, keeps_secrets: bool) -> list[str]:
    """Delete or disable the webhooks that were deleted or disabled; return their ids.

    If asked to, the others keep their newer secrets: a rotation may have ended a secret that others know.
    """
    deleted = {
        json.loads(payload).get("webhook_id") for payload in replaced_rows.deleted_webhooks(transaction)
    }
    known = replaced_rows.replaced_webhooks(transaction)
    ended: list[str] = []
    drafts: list[EventDraft] = []
    for webhook in webhooks.listing(transaction, MAX_WEBHOOKS):
        before = known.get(webhook.id)
        if keeps_secrets and before is not None:
            webhooks.set_secrets(transaction, replace(webhook, **before.secrets))
        if webhook.id in deleted:
            webhooks.remove(transaction, webhook.id)
            drafts.append(manage_webhooks.changed(EventType.WEBHOOK_DELETED, webhook, actor))
        elif before is not None and before.is_disabled and not webhook.is_disabled:
            webhooks.disable(transaction, webhook.id)
            drafts.append(manage_webhooks.changed(EventType.WEBHOOK_DISABLED, webhook, actor))
        else:
            continue
        ended.append(webhook.id)
    event_log.append(transaction, drafts)
    return ended


def _unknown_keys(
    transaction: Transaction, *, may_lack_changes: bool
) -> tuple[list[StoredKey], list[StoredKey]]:
    """Return the valid keys that may have been revoked, those of agents separately."""
    keys = replaced_rows.restored_keys(transaction, are_known_included=may_lack_changes)
    found = [key for key in keys if is_current(key, transaction.now_s)]
    return (
        [key for key in found if key.role is not Role.AGENT],
        [key for key in found if key.role is Role.AGENT],
    )


def _end(transaction: Transaction, key: StoredKey) -> None:
    key_rows.end(
        transaction,
        key.key_id,
        expires_at_s=key.expires_at_s,
        revoked_at_s=key.revoked_at_s,
        is_suspended=key.is_suspended,
    )
