"""Rows of webhooks, and claims of server processes on them.

A claim is a time until which only one process delivers. It is also the proof of that: results of a process
whose claim has passed to another one are not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, delete, func, insert, or_, select, update

from lifesign.storage.engine.table_definitions import event_log, webhooks
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWebhook:
    """The stored record of a webhook; the members are its columns."""

    id: str
    url: str
    types: tuple[str, ...]
    """Empty: all."""
    agent_id: str | None
    """Agent of the events; None: any."""
    secret: str
    created_by: str
    created_at_s: float
    delivered_sequence: int
    """Up to here nothing that is wanted is missing."""
    failures: int
    failing_since_s: float | None
    last_error: str | None
    next_try_at_s: float
    claimed_until_s: float | None
    is_disabled: bool
    previous_secret: str | None = None
    """Signs beside the new one after a rotation."""
    previous_secret_until_s: float | None = None
    message_id: str | None = None
    """Id of an unfinished delivery: every further attempt has the same id and events."""
    message_sequence: int | None = None
    """Sequence of the last event of that delivery."""

    @property
    def host(self) -> str:
        """Host of the URL, with its port, which may be shown: the rest of the URL may contain a secret."""
        # URLs with credentials are refused, so only the host is between these characters.
        return self.url.split("://", 1)[1].split("/", 1)[0].split("?", 1)[0].split("#", 1)[0]

    def secrets_at(self, now_s: float) -> list[str]:
        """Return the secrets that sign now, the current one first."""
        is_overlap = self.previous_secret_until_s is not None and now_s < self.previous_secret_until_s
        return [self.secret, *([self.previous_secret] if is_overlap and self.previous_secret else [])]


SECRETS = ("secret", "previous_secret", "previous_secret_until_s")
"""Columns that a rotation changes."""


def add(transaction: Transaction, webhook: StoredWebhook) -> None:
    """Store a new webhook."""
    columns = {name: getattr(webhook, name) for name in webhooks.c.keys()}  # noqa: SIM118 - no mapping
    transaction.connection.execute(insert(webhooks).values({**columns, "types": list(webhook.types)}))


def find(transaction: Transaction, webhook_id: str, *, to_change: bool = False) -> StoredWebhook | None:
    """Return a webhook."""
    wanted = select(webhooks).where(webhooks.c.id == webhook_id)
    if to_change:
        wanted = wanted.with_for_update()
    row = transaction.connection.execute(wanted).one_or_none()
    return None if row is None else _stored(row)


def listing(transaction: Transaction, limit: int) -> list[StoredWebhook]:
    """Return webhooks, the oldest first."""
    rows = transaction.connection.execute(select(webhooks).order_by(webhooks.c.id).limit(limit))
    return [_stored(row) for row in rows]


def count(transaction: Transaction) -> int:
    """Return the number of webhooks, including disabled ones."""
    return transaction.connection.scalar(select(func.count()).select_from(webhooks)) or 0


def remove(transaction: Transaction, webhook_id: str) -> StoredWebhook | None:
    """Remove a webhook and return it."""
    row = transaction.connection.execute(
        delete(webhooks).where(webhooks.c.id == webhook_id).returning(*webhooks.columns)
    ).one_or_none()
    return None if row is None else _stored(row)


def disable(transaction: Transaction, webhook_id: str) -> None:
    """Disable a webhook: nothing is delivered to it any more."""
    transaction.connection.execute(
        update(webhooks).where(webhooks.c.id == webhook_id).values(is_disabled=True)
    )


def set_secrets(transaction: Transaction, webhook: StoredWebhook) -> None:
    """Store a webhook's secrets as they are given."""
    changed = {name: getattr(webhook, name) for name in SECRETS}
    transaction.connection.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(changed))


def slowest(transaction: Transaction) -> int | None:
    """Return the sequence number up to which every enabled webhook got its events; None without any."""
    reached = select(func.min(webhooks.c.delivered_sequence)).where(webhooks.c.is_disabled.is_(False))
    slowest_sequence: int | None = transaction.connection.scalar(reached)
    return slowest_sequence


def has_due(transaction: Transaction) -> bool:
    """Return whether any webhook may have undelivered events that no process is delivering."""
    return bool(transaction.connection.execute(_due(transaction).limit(1)).all())


def claim(transaction: Transaction, until_s: float, limit: int) -> list[StoredWebhook]:
    """Return webhooks with undelivered events; until `until_s`, only the caller delivers to them."""
    wanted = _due(transaction).order_by(webhooks.c.next_try_at_s).limit(limit)
    rows = transaction.connection.execute(wanted.with_for_update(skip_locked=True, of=webhooks)).all()
    ids = [row.id for row in rows]
    if not ids:
        return []
    claimed = (
        update(webhooks)
        .where(webhooks.c.id.in_(ids))
        .values(claimed_until_s=until_s)
        .returning(*webhooks.columns)
    )
    return [_stored(row) for row in transaction.connection.execute(claimed)]


def settle(transaction: Transaction, webhook: StoredWebhook, **columns: Any) -> bool:
    """Store the result of a delivery; return False and store nothing if another process has the claim."""
    changed = transaction.connection.execute(
        update(webhooks)
        .where(webhooks.c.id == webhook.id, webhooks.c.claimed_until_s == webhook.claimed_until_s)
        .values(**columns)
    )
    return changed.rowcount == 1


def _due(transaction: Transaction) -> Any:
    now_s = transaction.now_s
    last_sequence = select(event_log.c.sequence).where(event_log.c.id == 1).scalar_subquery()
    return select(webhooks.c.id).where(
        webhooks.c.is_disabled.is_(False),
        webhooks.c.next_try_at_s <= now_s,
        or_(webhooks.c.claimed_until_s.is_(None), webhooks.c.claimed_until_s <= now_s),
        webhooks.c.delivered_sequence < last_sequence,
    )


def _stored(row: Row[Any]) -> StoredWebhook:
    members = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name for it
    types: Sequence[str] = members["types"]
    return StoredWebhook(**{**members, "types": tuple(types)})
