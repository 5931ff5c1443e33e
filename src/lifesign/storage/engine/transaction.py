"""Transaction functions: a database runs each one as one transaction.

A transaction function takes a `Transaction` first; all of it is committed, or nothing. On SQLite all
that wait are committed together, so that a hundred of them cost one flush to disk; each has its own
savepoint and fails alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from sqlalchemy import Connection, func, select
from sqlalchemy.engine import URL

from lifesign.domain.events.event import EventDraft
from lifesign.storage.engine.write_watch import WriteWatch

T = TypeVar("T")
Clock = Callable[[], float]
EPOCH = func.extract("epoch", func.clock_timestamp())
"""PostgreSQL's time."""
SELECT_EPOCH = select(EPOCH)


@dataclass(slots=True)
class Transaction:
    """One transaction of the database, and its time."""

    connection: Connection
    _clock: Clock | None
    _now_s: float | None = field(default=None)
    appended: list[EventDraft] = field(default_factory=list)
    """Events for the log; listeners receive them after the commit."""

    @property
    def now_s(self) -> float:
        """The database's time in seconds since the epoch, the same throughout the transaction."""
        if self._now_s is None:
            if self._clock is not None:
                self._now_s = self._clock()
            else:
                self._now_s = float(self.connection.scalar(SELECT_EPOCH))  # type: ignore[arg-type]
        return self._now_s

    def adopt_time(self, at_s: float) -> None:
        """Use a time that a statement returned as the transaction's time, unless that is already known."""
        if self._now_s is None and self._clock is None:
            self._now_s = at_s

    def after_waiting(self) -> "Transaction":
        """Return the same transaction with the current time, for decisions after a wait for a lock."""
        return Transaction(self.connection, self._clock, appended=self.appended)

    @property
    def is_postgresql(self) -> bool:
        """Whether statements may use features of PostgreSQL."""
        return self.connection.dialect.name == "postgresql"


class Database(Protocol):
    """The registry's database."""

    url: URL
    writes: WriteWatch
    """Whether changes fail at present."""

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function that only reads; it sees one consistent state."""

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function and return after the commit; any exception rolls it back.

        Raise StoreUnavailable if the database is unreachable, full or locked for too long.
        """

    async def check_files(self) -> None:
        """Raise DatabaseReplaced if a file of the database was removed, replaced or truncated."""

    async def close(self) -> None:
        """Close all connections after the functions that wait have run."""
