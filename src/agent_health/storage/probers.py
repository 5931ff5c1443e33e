"""Which probers live? One row each, as long as it goes on to claim shards."""

from sqlalchemy import delete, func, select

from agent_health.storage.agents import insert_or_replace
from agent_health.storage.database import Transaction
from agent_health.storage.tables import probers


def lock_all(transaction: Transaction) -> None:
    """Let nobody else join or leave until the transaction ends; on SQLite every write does so by itself."""
    if transaction.is_postgresql:
        transaction.connection.exec_driver_sql("LOCK TABLE probers IN SHARE ROW EXCLUSIVE MODE")


def find(transaction: Transaction, holder: str) -> float | None:
    """Return when a prober joined that lives; None if it does not."""
    wanted = select(probers.c.joined_at_s).where(
        probers.c.holder == holder, probers.c.expires_at_s > transaction.now_s
    )
    return transaction.connection.scalar(wanted)


def count_others(transaction: Transaction, holder: str) -> int:
    """Return how many other probers live."""
    wanted = select(func.count()).where(
        probers.c.holder != holder, probers.c.expires_at_s > transaction.now_s
    )
    return transaction.connection.scalar(wanted) or 0


def store(transaction: Transaction, holder: str, joined_at_s: float, expires_at_s: float) -> None:
    """Note that a prober lives; the dead are forgotten."""
    transaction.connection.execute(delete(probers).where(probers.c.expires_at_s <= transaction.now_s))
    row = {"holder": holder, "joined_at_s": joined_at_s, "expires_at_s": expires_at_s}
    transaction.connection.execute(insert_or_replace(transaction, probers, "holder"), row)


def remove(transaction: Transaction, holder: str) -> None:
    """Forget a prober that leaves."""
    transaction.connection.execute(delete(probers).where(probers.c.holder == holder))


def listing(transaction: Transaction, limit: int) -> list[tuple[str, float, float]]:
    """Return the living by their names: holder, when it joined, and until when it lives."""
    wanted = (
        select(probers.c.holder, probers.c.joined_at_s, probers.c.expires_at_s)
        .where(probers.c.expires_at_s > transaction.now_s)
        .order_by(probers.c.holder)
        .limit(limit)
    )
    rows = transaction.connection.execute(wanted)
    return [(str(holder), float(joined_s), float(until_s)) for holder, joined_s, until_s in rows]
