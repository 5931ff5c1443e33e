"""Rows of keys."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, null, select, update

from lifesign.domain.access.permissions import Role, StoredKey
from lifesign.storage.engine.table_definitions import keys
from lifesign.storage.engine.transaction import EPOCH, Transaction

# The validity is checked next, for which PostgreSQL also returns the time.
_OF_DIGEST = {
    is_postgresql: select(keys, EPOCH if is_postgresql else null()).where(
        keys.c.digest == bindparam("digest")
    )
    for is_postgresql in (False, True)
}


_ADD = insert(keys)


def find(transaction: Transaction, digest: bytes) -> StoredKey | None:
    """Return the key of this digest, valid or not."""
    wanted = _OF_DIGEST[transaction.is_postgresql]
    row = transaction.connection.execute(wanted, {"digest": digest.hex()}).one_or_none()
    if row is None:
        return None
    *columns, at_s = row
    if at_s is not None:
        transaction.adopt_time(float(at_s))
    return stored_key(dict(zip(keys.c.keys(), columns, strict=True)))


def of_digests(transaction: Transaction, digests: Collection[str]) -> list[StoredKey]:
    """Return the keys of these hexadecimal digests, valid or not; unknown ones are absent."""
    wanted = select(keys).where(keys.c.digest.in_(digests))
    return [_stored(row) for row in transaction.connection.execute(wanted)]


def find_by_id(transaction: Transaction, key_id: str, *, to_change: bool = False) -> StoredKey | None:
    """Return the key of this id, valid or not; `to_change` keeps others from changing it meanwhile."""
    wanted = select(keys).where(keys.c.key_id == key_id)
    row = transaction.connection.execute(wanted.with_for_update() if to_change else wanted).one_or_none()
    return None if row is None else _stored(row)


def names_of(transaction: Transaction, key_ids: Collection[str]) -> dict[str, str]:
    """Return the names of keys, valid or not, by their ids; unknown ones are absent."""
    if not key_ids:
        return {}
    wanted = select(keys.c.key_id, keys.c.name).where(keys.c.key_id.in_(key_ids))
    return {row.key_id: row.name for row in transaction.connection.execute(wanted)}


def all_keys(
    transaction: Transaction, *, role: Role | None = None, after: str = "", limit: int = 1_000
) -> list[StoredKey]:
    """Return the keys whose ids follow `after`, in the order of their ids, which is that of creation."""
    wanted = select(keys).where(keys.c.key_id > after).order_by(keys.c.key_id).limit(limit)
    if role is not None:
        wanted = wanted.where(keys.c.role == role.value)
    return [_stored(row) for row in transaction.connection.execute(wanted)]


def count(transaction: Transaction, role: Role | None = None) -> int:
    """Return the number of keys, valid or not."""
    wanted = select(func.count()).select_from(keys)
    if role is not None:
        wanted = wanted.where(keys.c.role == role.value)
    return transaction.connection.scalar(wanted) or 0


def lock_unrevoked(transaction: Transaction, role: Role) -> list[StoredKey]:
    """Return and lock the keys of a role that are not revoked."""
    wanted = select(keys).where(keys.c.role == role.value, keys.c.revoked_at_s.is_(None))
    rows = transaction.connection.execute(wanted.order_by(keys.c.key_id).with_for_update())
    return [_stored(row) for row in rows]


def ended_since(transaction: Transaction, since_s: float, limit: int) -> list[str]:
    """Return the ids of keys that were revoked or expired since a time; the newest keys first."""
    now_s = transaction.now_s
    has_ended = keys.c.revoked_at_s.between(since_s, now_s) | keys.c.expires_at_s.between(since_s, now_s)
    wanted = select(keys.c.key_id).where(has_ended).order_by(keys.c.key_id.desc()).limit(limit)
    return list(transaction.connection.scalars(wanted))


def limit_workers(transaction: Transaction, key_id: str, max_workers: int | None) -> None:
    """Store how many workers may probe with a key at the same time; None: the server's default."""
    changed = update(keys).where(keys.c.key_id == key_id)
    transaction.connection.execute(changed.values(max_workers=max_workers))


def of_agent(transaction: Transaction, agent_id: str, *, to_change: bool = False) -> list[StoredKey]:
    """Return the keys that belong to an agent; `to_change` keeps others from using or changing them."""
    wanted = select(keys).where(keys.c.agent_id == agent_id).order_by(keys.c.key_id)
    found = transaction.connection.execute(wanted.with_for_update() if to_change else wanted)
    return [_stored(row) for row in found]


def is_any_of_an_agent(transaction: Transaction) -> bool:
    """Return whether any key, valid or not, belongs to an agent."""
    wanted = select(keys.c.agent_id).where(keys.c.agent_id > "").limit(1)
    return transaction.connection.scalar(wanted) is not None


def add(transaction: Transaction, key: StoredKey) -> None:
    """Store a new key."""
    row = {
        "key_id": key.key_id,
        "name": key.name,
        "role": key.role.value,
        "agent_id": key.agent_id,
        "digest": key.digest.hex(),
        "created_at_s": key.created_at_s,
        "expires_at_s": key.expires_at_s,
        "revoked_at_s": key.revoked_at_s,
        "max_workers": key.max_workers,
        "is_suspended": key.is_suspended,
        "successor_id": key.successor_id,
    }
    transaction.connection.execute(_ADD, row)


def end(
    transaction: Transaction,
    key_id: str,
    *,
    expires_at_s: float | None,
    revoked_at_s: float | None,
    is_suspended: bool = False,
) -> None:
    """Store the end of a key: when it expires or was revoked, and whether it is suspended."""
    transaction.connection.execute(
        update(keys)
        .where(keys.c.key_id == key_id)
        .values(expires_at_s=expires_at_s, revoked_at_s=revoked_at_s, is_suspended=is_suspended)
    )


def set_successor(transaction: Transaction, key_id: str, successor_id: str | None) -> None:
    """Store which key replaced this one in a rotation."""
    transaction.connection.execute(
        update(keys).where(keys.c.key_id == key_id).values(successor_id=successor_id)
    )


def suspended(transaction: Transaction, role: Role | None = None) -> list[str]:
    """Return the ids of suspended keys that have not expired, of one role or all."""
    is_unexpired = func.coalesce(keys.c.expires_at_s, transaction.now_s + 1) > transaction.now_s
    wanted = select(keys.c.key_id).where(keys.c.is_suspended.is_(True), is_unexpired).order_by(keys.c.key_id)
    if role is not None:
        wanted = wanted.where(keys.c.role == role.value)
    return list(transaction.connection.scalars(wanted))


def stored_key(columns: Mapping[str, Any]) -> StoredKey:
    """Return the key in a row, which is given by the names of its columns."""
    members = {"digest": bytes.fromhex(columns["digest"]), "role": Role(columns["role"])}
    return StoredKey(**{**columns, **members})


def _stored(row: Row[Any]) -> StoredKey:
    return stored_key(dict(row._mapping))  # noqa: SLF001 - SQLAlchemy's public name for it
