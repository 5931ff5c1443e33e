"""Creation, rotation and revocation of keys.

The functions without a `Call` also serve the command line: the first admin key cannot be created over HTTP. A
key is shown once, to the caller that creates it; only its digest is stored.
"""

import secrets
from dataclasses import replace
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError
from ulid import ULID

from lifesign.domain.access.permissions import (
    KEY_BYTES,
    Permission,
    Role,
    StoredKey,
    digest_of,
    fingerprint_of,
    is_current,
    is_last_admin,
    key_of,
    rotated_lifetime_s,
)
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import KeyChanged
from lifesign.domain.health.document import INTEGRAL_FLOAT, Time
from lifesign.domain.models.base import Body, Name, OwnAgentId, moment
from lifesign.domain.targets.target import SHARDS
from lifesign.registry.errors import KeyEnded, KeyNotFound, LastAdminKey
from lifesign.registry.keys.key_leases import end_leases_of
from lifesign.registry.request_handling.cursors import Cursor, cursor_at, text_in
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows
from lifesign.storage.targets import directories

MAX_LIFETIME_SECONDS = 3_660 * 86_400
"""Ten years; for longer, create a key without an end."""
MAX_OVERLAP_SECONDS = 30 * 86_400
OVERLAP_SECONDS = 3_600
"""Default time for which a rotated key is valid beside its successor."""
MAX_PAGE = 1_000

_LISTED = "keys"

# Roles whose keys may, or must, belong to an agent.
_OF_AN_AGENT = frozenset({Role.AGENT, Role.COORDINATOR})

MaxWorkers = Annotated[int, Field(ge=1, le=SHARDS, strict=True), INTEGRAL_FLOAT]
Lifetime = Annotated[float, Field(ge=1, le=MAX_LIFETIME_SECONDS, strict=True)]


class NewKey(Body):
    """A key that is to be created."""

    role: Role
    name: Name
    """Name for people: owner and purpose."""
    agent_id: OwnAgentId | None = None
    """Agent that the key belongs to; required for `agent`, possible for `coordinator`."""
    expires_in_seconds: Lifetime | None = None
    """None: the key is valid until it is revoked."""
    max_workers: MaxWorkers | None = None
    """Maximum number of workers that may probe with a prober's key at a time; None: `prober_workers` of the
    server.
    """

    @model_validator(mode="after")
    def _check_role_fields(self) -> Self:
        if self.max_workers is not None and self.role is not Role.PROBER:
            raise PydanticCustomError(
                "max_workers_unexpected", "expected max_workers only for keys of probers"
            )
        if self.role is Role.AGENT and self.agent_id is None:
            raise PydanticCustomError(
                "agent_id_missing", "expected the agent_id of the agent to which the key belongs"
            )
        if self.agent_id is not None and self.role not in _OF_AN_AGENT:
            raise PydanticCustomError(
                "agent_id_unexpected", "expected agent_id only for keys of agents and coordinators"
            )
        return self


class KeyLimits(Body):
    """New limits of a key."""

    max_workers: MaxWorkers | None
    """Maximum for new workers. Workers that probe with the key already continue."""


class KeyRotation(Body):
    """Body of a key rotation."""

    overlap_seconds: Annotated[float, Field(ge=0, le=MAX_OVERLAP_SECONDS, strict=True)] = OVERLAP_SECONDS
    """Time for which the old key stays valid, unless it expires before."""
    expires_in_seconds: Lifetime | None = None
    """Lifetime of the new key; None: the lifetime of the old one."""


class KeyListing(Body):
    """The query of `GET /api/v1/keys`."""

    role: Role | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | None = None
    """`cursor` of the previous page."""


class KeyRecord(BaseModel):
    """Facts about a key, without the key itself."""

    key_id: str
    name: str
    role: Role
    agent_id: str | None
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    max_workers: int | None = None
    """Maximum number of workers that may probe with it at a time; absent: `prober_workers` of the server."""
    is_valid: bool
    """Whether the key was valid at the time of the answer."""
    is_suspended: bool
    """Whether the key is refused because a restore did not know its state, until it is confirmed."""


class CreatedKey(KeyRecord):
    """A new key, shown this once."""

    key: str


class KeyList(BaseModel):
    """One page of keys, the oldest first."""

    keys: list[KeyRecord]
    total: int
    cursor: str | None
    """Cursor of the next page; absent on the last one."""


def create_key(transaction: Transaction, new: NewKey, actor: str) -> tuple[StoredKey, str]:
    """Store a new key; return its stored form, and the key itself."""
    stored, key = _add(
        transaction, new.role, new.name, new.agent_id, new.expires_in_seconds, max_workers=new.max_workers
    )
    event_log.append(transaction, [changed(EventType.KEY_CREATED, stored, actor)])
    return stored, key


def create_first_admin_key(transaction: Transaction, actor: str) -> str | None:
    """Return a new admin key, or None if there is one already or ever was.

    Two concurrent processes must be serialised by `schema.lock`.
    """
    if key_rows.count(transaction, Role.ADMIN):
        return None
    return create_key(transaction, NewKey(role=Role.ADMIN, name="first admin"), actor)[1]


def rotate_key(
    transaction: Transaction, key_id: str, rotation: KeyRotation, actor: str
) -> tuple[StoredKey, str]:
    """Give a key a successor and an expiry; return the successor's stored form, and the key itself.

    KeyNotFound; KeyEnded if it is no longer valid.
    """
    old = _existing(transaction, key_id)
    now_s = transaction.now_s
    if not is_current(old, now_s):
        raise KeyEnded(key_id)
    lifetime_s = rotation.expires_in_seconds or rotated_lifetime_s(old)
    overlap_ends_s = now_s + rotation.overlap_seconds
    ends_s = overlap_ends_s if old.expires_at_s is None else min(old.expires_at_s, overlap_ends_s)
    rotated = replace(old, expires_at_s=ends_s)
    drafts = [changed(EventType.KEY_ROTATED, rotated, actor)]
    if ends_s <= now_s:
        # It stays ended, also if the clock is set back later.
        rotated = replace(rotated, revoked_at_s=now_s)
        drafts.append(changed(EventType.KEY_REVOKED, rotated, actor))
    key_rows.end(transaction, key_id, expires_at_s=ends_s, revoked_at_s=rotated.revoked_at_s)
    new, key = _add(transaction, old.role, old.name, old.agent_id, lifetime_s, max_workers=old.max_workers)
    key_rows.set_successor(transaction, key_id, new.key_id)
    drafts.append(changed(EventType.KEY_CREATED, new, actor))
    # The log is locked last, as imports and requests for leases do it.
    directories.hand_over(transaction, key_id, new.key_id)
    if rotated.revoked_at_s is None:
        event_log.append(transaction, drafts)
    else:
        end_leases_of(transaction, [key_id], actor, before=drafts)
    return new, key


def revoke_key(
    transaction: Transaction, key_id: str, actor: str, *, may_leave_no_admin: bool = False
) -> None:
    """Revoke a key, and end the leases of the key and its workers. Raises KeyNotFound.

    A repeated request changes nothing. LastAdminKey if no caller could manage keys then, unless that is
    allowed.
    """
    key = _existing(transaction, key_id)
    if key.revoked_at_s is not None and not key.is_suspended:
        return
    now_s = transaction.now_s
    is_needed = key.role is Role.ADMIN and is_current(key, now_s) and not may_leave_no_admin
    if is_needed and is_last_admin(key_id, key_rows.lock_unrevoked(transaction, Role.ADMIN), now_s):
        raise LastAdminKey(key_id)
    key_rows.end(transaction, key_id, expires_at_s=key.expires_at_s, revoked_at_s=now_s)
    end_leases_of(transaction, [key_id], actor, before=[changed(EventType.KEY_REVOKED, key, actor)])


def suspend_key(transaction: Transaction, key: StoredKey, actor: str) -> StoredKey:
    """Refuse a valid key until it is confirmed."""
    key = replace(key, revoked_at_s=transaction.now_s, is_suspended=True)
    key_rows.end(
        transaction,
        key.key_id,
        expires_at_s=key.expires_at_s,
        revoked_at_s=key.revoked_at_s,
        is_suspended=True,
    )
    event_log.append(transaction, [changed(EventType.KEY_SUSPENDED, key, actor)])
    return key


def confirm_key(transaction: Transaction, key_id: str, actor: str) -> StoredKey:
    """Accept a suspended key again; a valid key stays valid.

    KeyNotFound; KeyEnded if it was revoked or has expired.
    """
    key = _existing(transaction, key_id)
    if key.is_suspended:
        key = replace(key, revoked_at_s=None, is_suspended=False)
        if is_current(key, transaction.now_s):
            key_rows.end(transaction, key_id, expires_at_s=key.expires_at_s, revoked_at_s=None)
            event_log.append(transaction, [changed(EventType.KEY_CONFIRMED, key, actor)])
    if not is_current(key, transaction.now_s):
        raise KeyEnded(key_id)
    return key


def limit_key(transaction: Transaction, key_id: str, limits: KeyLimits, actor: str) -> StoredKey:
    """Change the limits of a prober's key; a repeated request changes nothing.

    KeyNotFound; KeyEnded if it is no longer valid; InvalidRequest for a key of another role.
    """
    key = _existing(transaction, key_id)
    if not is_current(key, transaction.now_s):
        raise KeyEnded(key_id)
    if key.role is not Role.PROBER:
        expected = f"expected a key of a prober, not of role {key.role}"
        raise InvalidRequest([Finding("max_workers_unexpected", "/max_workers", expected)])
    if key.max_workers != limits.max_workers:
        key = replace(key, max_workers=limits.max_workers)
        key_rows.limit_workers(transaction, key_id, limits.max_workers)
        event_log.append(transaction, [changed(EventType.KEY_LIMITED, key, actor)])
    return key


def key_record(key: StoredKey, now_s: float) -> KeyRecord:
    """Return the public facts about a key."""
    return KeyRecord(
        key_id=key.key_id,
        name=key.name,
        role=key.role,
        agent_id=key.agent_id,
        created_at=moment(key.created_at_s),
        expires_at=None if key.expires_at_s is None else moment(key.expires_at_s),
        revoked_at=None if key.revoked_at_s is None else moment(key.revoked_at_s),
        max_workers=key.max_workers,
        is_valid=is_current(key, now_s),
        is_suspended=key.is_suspended,
    )


def _existing(transaction: Transaction, key_id: str) -> StoredKey:
    """Return a key that is about to be changed."""
    found = key_rows.find_by_id(transaction, key_id)
    if found is not None and found.role is Role.ADMIN:
        # All admin keys, in one order: of two admins that revoke each other at once, one must see the other's
        # change.
        key_rows.lock_unrevoked(transaction, Role.ADMIN)
    found = key_rows.find_by_id(transaction, key_id, to_change=True)
    if found is None:
        raise KeyNotFound(key_id)
    return found


def _add(
    transaction: Transaction,
    role: Role,
    name: str,
    agent_id: str | None,
    lifetime_s: float | None,
    *,
    max_workers: int | None = None,
) -> tuple[StoredKey, str]:
    """Store a new key without an event; return its stored form, and the key itself."""
    key = key_of(secrets.token_bytes(KEY_BYTES))
    now_s = transaction.now_s
    stored = StoredKey(
        key_id=f"key_{str(ULID()).lower()}",
        name=name,
        role=role,
        agent_id=agent_id,
        digest=digest_of(key),
        created_at_s=now_s,
        expires_at_s=None if lifetime_s is None else now_s + lifetime_s,
        max_workers=max_workers,
    )
    key_rows.add(transaction, stored)
    return stored, key


def changed(event_type: EventType, key: StoredKey, actor: str) -> EventDraft:
    """Return the event about a change of a key, with the key's state after the change."""
    payload = KeyChanged(
        key_id=key.key_id,
        name=key.name,
        role=key.role.value,
        agent_id=key.agent_id,
        fingerprint=fingerprint_of(key.digest),
        expires_at=None if key.expires_at_s is None else moment(key.expires_at_s),
        max_workers=key.max_workers,
    )
    return EventDraft(type=event_type, actor=actor, payload=payload, agent_id=key.agent_id)


def _create(transaction: Transaction, call: Call) -> OperationReply:
    stored, key = create_key(transaction, call.body_as(NewKey), call.actor)
    return _created(transaction, stored, key)


def _rotate(transaction: Transaction, call: Call) -> OperationReply:
    stored, key = rotate_key(transaction, call.path["key_id"], call.body_as(KeyRotation), call.actor)
    return _created(transaction, stored, key)


def _revoke(transaction: Transaction, call: Call) -> OperationReply:
    revoke_key(transaction, call.path["key_id"], call.actor)
    return OperationReply(status=204)


def _limit(transaction: Transaction, call: Call) -> OperationReply:
    key = limit_key(transaction, call.path["key_id"], call.body_as(KeyLimits), call.actor)
    return OperationReply(content=key_record(key, transaction.now_s))


def _confirm(transaction: Transaction, call: Call) -> OperationReply:
    key = confirm_key(transaction, call.path["key_id"], call.actor)
    return OperationReply(content=key_record(key, transaction.now_s))


def _list(transaction: Transaction, call: Call) -> OperationReply:
    query = call.query_as(KeyListing)
    after = "" if query.cursor is None else text_in(query.cursor, _LISTED)
    found = key_rows.all_keys(transaction, role=query.role, after=after, limit=query.limit + 1)
    page = found[: query.limit]
    answer = KeyList(
        keys=[key_record(key, transaction.now_s) for key in page],
        total=key_rows.count(transaction, query.role),
        cursor=cursor_at(_LISTED, page[-1].key_id) if len(found) > len(page) else None,
    )
    return OperationReply(content=answer)


def _created(transaction: Transaction, stored: StoredKey, key: str) -> OperationReply:
    shown = CreatedKey(key=key, **key_record(stored, transaction.now_s).model_dump())
    return OperationReply(content=shown, status=201)


OPERATIONS = (
    Operation(
        method="POST",
        path="/api/v1/keys",
        summary="Create a key; only this answer contains it",
        action=Permission.MANAGE_KEYS,
        function=_create,
        body=NewKey,
        example={"role": "reader", "name": "dashboard"},
        answer=CreatedKey,
        status=201,
    ),
    Operation(
        method="GET",
        path="/api/v1/keys",
        summary="List keys, valid or not, without the keys themselves",
        action=Permission.MANAGE_KEYS,
        function=_list,
        is_write=False,
        query=KeyListing,
        answer=KeyList,
    ),
    Operation(
        method="POST",
        path="/api/v1/keys/{key_id}/rotate",
        summary="Replace a key by a new one; both are valid for a while",
        action=Permission.MANAGE_KEYS,
        function=_rotate,
        body=KeyRotation,
        example={"overlap_seconds": 3600},
        answer=CreatedKey,
        status=201,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path="/api/v1/keys/{key_id}/confirm",
        summary="Confirm a key that a restore has suspended",
        action=Permission.MANAGE_KEYS,
        function=_confirm,
        answer=KeyRecord,
        errors=(404, 409),
    ),
    Operation(
        method="PATCH",
        path="/api/v1/keys/{key_id}",
        summary="Change the maximum number of workers that may probe with a key at a time",
        action=Permission.MANAGE_KEYS,
        function=_limit,
        body=KeyLimits,
        example={"max_workers": 32},
        answer=KeyRecord,
        errors=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/api/v1/keys/{key_id}",
        summary="Revoke a key, unless it is the last one that may manage keys",
        action=Permission.MANAGE_KEYS,
        function=_revoke,
        status=204,
        errors=(404, 409),
    ),
)
