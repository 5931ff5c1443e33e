"""Sessions of the dashboard.

Only the digest of a session's token is stored, as for keys: a reader of the database cannot log in with it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import delete, insert, select

from lifesign.domain.access.permissions import StoredKey
from lifesign.storage.engine.table_definitions import keys, sessions
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys.key_rows import stored_key


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """One session of a person who logged in."""

    digest: str
    """SHA-256 of the token, hexadecimal."""
    key_id: str
    created_at_s: float
    expires_at_s: float


def find(transaction: Transaction, digest: str) -> StoredSession | None:
    """Return the session with this digest, expired or not."""
    row = transaction.connection.execute(select(sessions).where(sessions.c.digest == digest)).one_or_none()
    return None if row is None else StoredSession(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name


def of_digests(transaction: Transaction, digests: Collection[str]) -> list[tuple[StoredSession, StoredKey]]:
    """Return the sessions of these digests, expired or not, each with its key; unknown ones are absent."""
    size = len(sessions.columns)
    both = select(sessions, keys).join(keys, keys.c.key_id == sessions.c.key_id)
    rows = transaction.connection.execute(both.where(sessions.c.digest.in_(digests)))
    return [
        (
            StoredSession(**dict(zip(sessions.columns.keys(), row[:size], strict=True))),
            stored_key(dict(zip(keys.columns.keys(), row[size:], strict=True))),
        )
        for row in rows
    ]


def add(transaction: Transaction, session: StoredSession, most: int) -> None:
    """Store a session; delete expired ones, and all but the last `most` of the same key."""
    transaction.connection.execute(
        insert(sessions).values(
            digest=session.digest,
            key_id=session.key_id,
            created_at_s=session.created_at_s,
            expires_at_s=session.expires_at_s,
        )
    )
    last = (
        select(sessions.c.digest)
        .where(sessions.c.key_id == session.key_id)
        .order_by(sessions.c.created_at_s.desc(), sessions.c.digest)
        .limit(most)
    )
    transaction.connection.execute(
        delete(sessions).where(sessions.c.key_id == session.key_id, sessions.c.digest.not_in(last))
    )
    transaction.connection.execute(delete(sessions).where(sessions.c.expires_at_s <= session.created_at_s))


def end(transaction: Transaction, digest: str) -> None:
    """Delete a session, if there is one."""
    transaction.connection.execute(delete(sessions).where(sessions.c.digest == digest))
