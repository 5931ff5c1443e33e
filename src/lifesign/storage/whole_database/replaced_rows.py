"""Keys, webhooks, opt-outs and erasures of a database that a backup replaces.

They are copied into tables that exist until the restore ends, for a comparison with the restored ones,
however many there are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, TableClause, column, select, table, text

from lifesign.domain.access.permissions import StoredKey
from lifesign.storage.engine import table_definitions
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import webhooks
from lifesign.storage.keys.key_rows import stored_key

_KEYS = table("replaced_keys", *(column(each.name, each.type) for each in table_definitions.keys.columns))
_WEBHOOKS = table(
    "replaced_webhooks",
    *(
        column(each.name, each.type)
        for each in table_definitions.webhooks.columns
        if each.name in {"id", "is_disabled", *webhooks.SECRETS}
    ),
)
_OPT_OUTS = table("replaced_opt_outs", column("origin"), column("token"))
_ERASURES = table("replaced_erasures", column("sequence"), column("agent_id"), column("erased_at_s"))
_DELETIONS = table("replaced_deletions", column("payload"))
_OWNERS = table("replaced_owners", column("name"), column("owner"))
_SOURCES: dict[TableClause, str] = {
    _KEYS: "SELECT * FROM keys",
    _WEBHOOKS: f"SELECT {', '.join(_WEBHOOKS.c.keys())} FROM webhooks",  # noqa: S608 - constants only
    _OPT_OUTS: "SELECT origin, token FROM opt_outs WHERE proven_at_s IS NOT NULL",
    # Events may have been archived; the rows of erasures stay.
    _ERASURES: "SELECT sequence, agent_id, erased_at_s FROM archive_erasures",
    _DELETIONS: "SELECT payload FROM events WHERE type = 'webhook.deleted'",
    _OWNERS: "SELECT name, owner FROM directories WHERE owner IS NOT NULL",
}
_INDEX = "CREATE INDEX replaced_digests ON replaced_keys (digest)"


@contextmanager
def set_aside(transaction: Transaction) -> Iterator[None]:
    """Keep a copy of the database's present content, which a restore replaces, until the block ends."""
    # PostgreSQL cannot itself drop a table that a cursor of the same transaction has read.
    until = "ON COMMIT DROP" if transaction.is_postgresql else ""
    for kept, source in _SOURCES.items():
        transaction.connection.execute(text(f"CREATE TEMPORARY TABLE {kept.name} {until} AS {source}"))
    transaction.connection.execute(text(_INDEX))
    yield
    for kept in () if transaction.is_postgresql else _SOURCES:
        transaction.connection.execute(text(f"DROP TABLE {kept.name}"))


def ended_keys(transaction: Transaction) -> list[tuple[StoredKey, StoredKey]]:
    """Return restored keys that had an end in the replaced database, each with its state there."""
    has_end = _KEYS.c.expires_at_s.is_not(None) | _KEYS.c.revoked_at_s.is_not(None)
    both = table_definitions.keys.join(_KEYS, table_definitions.keys.c.digest == _KEYS.c.digest)
    size = len(table_definitions.keys.columns)
    rows = transaction.connection.execute(
        select(*table_definitions.keys.columns, *(each.label(f"before_{each.name}") for each in _KEYS.c))
        .select_from(both)
        .where(has_end)
        .order_by(table_definitions.keys.c.key_id)
    )
    names = table_definitions.keys.columns.keys()

    def key(columns: Sequence[Any]) -> StoredKey:
        return stored_key(dict(zip(names, columns, strict=True)))

    return [(key(row[:size]), key(row[size:])) for row in rows]


def successors(transaction: Transaction) -> dict[str, StoredKey]:
    """Return keys of the replaced database that replaced others, and that the backup lacks, by their ids."""
    is_back = (
        select(table_definitions.keys.c.key_id)
        .where(table_definitions.keys.c.digest == _KEYS.c.digest)
        .exists()
    )
    replaced = _KEYS.alias()
    wanted = select(_KEYS).where(
        _KEYS.c.key_id.in_(select(replaced.c.successor_id).where(replaced.c.successor_id.is_not(None))),
        ~is_back,
    )
    found = [stored_key(dict(row._mapping)) for row in transaction.connection.execute(wanted)]  # noqa: SLF001
    return {key.key_id: key for key in found}


def restored_keys(transaction: Transaction, *, are_known_included: bool) -> Iterator[StoredKey]:
    """Return the restored keys: all of them, or those that the replaced database did not have."""
    was_there = select(_KEYS.c.key_id).where(_KEYS.c.digest == table_definitions.keys.c.digest).exists()
    wanted = select(table_definitions.keys).order_by(table_definitions.keys.c.key_id)
    if not are_known_included:
        wanted = wanted.where(~was_there)
    for row in transaction.connection.execute(wanted, execution_options={"yield_per": 1_000}):
        yield stored_key(dict(row._mapping))  # noqa: SLF001 - its public name


def limited_keys(transaction: Transaction) -> list[StoredKey]:
    """Return restored keys with a lower limit in the replaced database, each with that limit."""
    there = table_definitions.keys
    is_lower = there.c.max_workers.is_(None) | (_KEYS.c.max_workers < there.c.max_workers)
    wanted = (
        select(*there.columns, _KEYS.c.max_workers.label("limit"))
        .select_from(there.join(_KEYS, there.c.digest == _KEYS.c.digest))
        .where(_KEYS.c.max_workers.is_not(None), is_lower)
        .order_by(there.c.key_id)
    )
    found: list[StoredKey] = []
    for row in transaction.connection.execute(wanted):
        columns = dict(row._mapping)  # noqa: SLF001 - its public name
        columns["max_workers"] = columns.pop("limit")
        found.append(stored_key(columns))
    return found


def erased_agents(transaction: Transaction) -> list[str]:
    """Return restored agents that the replaced database had erased after their record or a key began."""
    there, own_keys = table_definitions.agents, table_definitions.keys
    recorded = select(there.c.agent_id).where(
        there.c.agent_id == _ERASURES.c.agent_id, there.c.registered_at_s <= _ERASURES.c.erased_at_s
    )
    keyed = select(own_keys.c.agent_id).where(
        own_keys.c.agent_id == _ERASURES.c.agent_id, own_keys.c.created_at_s <= _ERASURES.c.erased_at_s
    )
    wanted = select(_ERASURES.c.agent_id).distinct().where(recorded.exists() | keyed.exists(), _is_new())
    return list(transaction.connection.scalars(wanted.order_by(_ERASURES.c.agent_id)))


def _is_new() -> ColumnElement[bool]:
    """Return whether the backup lacks an erasure; the clock may have been ahead at one that it has."""
    there = table_definitions.archive_erasures
    known = select(there.c.sequence).where(
        there.c.sequence == _ERASURES.c.sequence, there.c.agent_id == _ERASURES.c.agent_id
    )
    return ~known.exists()


def deleted_webhooks(transaction: Transaction) -> Iterator[str]:
    """Return the payloads (JSON) of the replaced database's events about deleted webhooks."""
    yield from transaction.connection.scalars(select(_DELETIONS.c.payload))


def owned_directories(transaction: Transaction) -> dict[str, str]:
    """Return the names of the replaced database's directories, each with the id of the key that owned it."""
    return {row.name: row.owner for row in transaction.connection.execute(select(_OWNERS))}


@dataclass(frozen=True, slots=True)
class ReplacedWebhook:
    """Members of a webhook of the replaced database that a restore keeps."""

    is_disabled: bool
    secrets: dict[str, Any]
    """Secrets by the names of their columns."""


def replaced_webhooks(transaction: Transaction) -> dict[str, ReplacedWebhook]:
    """Return the webhooks of the replaced database, by their ids."""
    return {
        row.id: ReplacedWebhook(
            bool(row.is_disabled), {name: getattr(row, name) for name in webhooks.SECRETS}
        )
        for row in transaction.connection.execute(select(_WEBHOOKS))
    }


def opt_outs(transaction: Transaction) -> list[tuple[str, str]]:
    """Return origins with a proven opt-out in the replaced database only; each with its token."""
    is_back = (
        select(table_definitions.opt_outs.c.origin)
        .where(
            table_definitions.opt_outs.c.origin == _OPT_OUTS.c.origin,
            table_definitions.opt_outs.c.proven_at_s.is_not(None),
        )
        .exists()
    )
    wanted = select(_OPT_OUTS.c.origin, _OPT_OUTS.c.token).where(~is_back).order_by(_OPT_OUTS.c.origin)
    return [(row.origin, row.token) for row in transaction.connection.execute(wanted)]
