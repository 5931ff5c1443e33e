"""The row that all server processes share.

It must be locked before a change, and before agents, leases and the log.
"""

from dataclasses import asdict, dataclass, replace
from math import inf, nextafter

from sqlalchemy import select, text, update
from ulid import ULID

from lifesign.storage.engine.table_definitions import registry
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRow:
    """The only row of the table `registry`; texts are empty until they are first written."""

    token_floor: int
    """Number above which all new fencing tokens are; 0 until the epoch is raised for the first time."""
    swept_at_s: float | None
    """When a sweep last ran, by the database's clock then."""
    monitor: str
    """JSON."""
    excluded_downtime: str
    """JSON."""
    sweeper: str | None
    """Server process that sweeps, or swept last."""
    sweeper_until_s: float | None
    installation_id: str | None = None
    """Id by which a server recognises its database; None until a server has started on it."""
    mass_silence: str | None = None
    """JSON; None, like the next two, as long as nothing was written."""
    confirmed: str | None = None
    """JSON."""
    watched: str | None = None
    """JSON."""


_COLUMNS = tuple(registry.c[name] for name in RegistryRow.__dataclass_fields__)
_ROW = select(*_COLUMNS).where(registry.c.id == 1)
# To build a statement takes longer than to run it, and each sweep locks and stores the row three times.
# `key_share` is not the strongest lock: who merely refers to the row is not kept waiting.
_LOCKED_ROW = {
    (skip_locked, key_share): _ROW.with_for_update(key_share=key_share, skip_locked=skip_locked)
    for skip_locked in (False, True)
    for key_share in (False, True)
}
_STORE = update(registry).where(registry.c.id == 1)
_BEGIN = text("""
    INSERT INTO registry (id, token_floor, monitor, excluded_downtime) VALUES (1, 0, '', '')
    ON CONFLICT (id) DO NOTHING
""")


def find(transaction: Transaction) -> RegistryRow | None:
    """Return the row without a lock; None if it was not needed yet."""
    row = transaction.connection.execute(_ROW).mappings().one_or_none()
    return None if row is None else RegistryRow(**row)


def lock(transaction: Transaction, *, to_raise_epoch: bool = False) -> RegistryRow:
    """Return the row, created if absent; no other transaction changes it until this one ends.

    `to_raise_epoch` waits for transactions that grant leases with the old epoch, and blocks further ones.
    """
    row = _locked(transaction, skip_locked=False, key_share=not to_raise_epoch)
    if row is None:
        transaction.connection.execute(_BEGIN)
        row = _locked(transaction, skip_locked=False, key_share=not to_raise_epoch)
    assert row is not None  # noqa: S101 - it was inserted, here or by another process
    return row


def lock_if_free(transaction: Transaction) -> RegistryRow | None:
    """Return the row, locked, or None at once if another transaction has it."""
    row = _locked(transaction, skip_locked=True)
    if row is None and find(transaction) is None:
        return lock(transaction)
    return row


def store(transaction: Transaction, row: RegistryRow) -> None:
    """Write the row, which the caller has locked."""
    transaction.connection.execute(_STORE, asdict(row))


def try_change(transaction: Transaction) -> None:
    """Change the row without an effect, to find out whether changes are stored.

    SQLite writes nothing for a row that does not change. A sweeper's claim may end later by a rounding error.
    """
    row = lock(transaction)
    store(transaction, replace(row, sweeper_until_s=nextafter(row.sweeper_until_s or 0.0, inf)))


def set_installation(transaction: Transaction) -> None:
    """Give the database an installation id unless it has one."""
    row = lock(transaction)
    if row.installation_id is None:
        store(transaction, replace(row, installation_id=f"ins_{str(ULID()).lower()}"))


def _locked(transaction: Transaction, *, skip_locked: bool, key_share: bool = True) -> RegistryRow | None:
    wanted = _LOCKED_ROW[skip_locked, key_share]
    row = transaction.connection.execute(wanted).mappings().one_or_none()
    return None if row is None else RegistryRow(**row)
