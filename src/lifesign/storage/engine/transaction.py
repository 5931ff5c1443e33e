"""One transaction, and the time at which it happens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection, func, select

from lifesign.domain.events.event import EventDraft

T = TypeVar("T")
Clock = Callable[[], float]
Listener = Callable[[Sequence[EventDraft]], None]
"""Receives the events that one transaction has appended to the log; it must not raise."""
EPOCH = func.extract("epoch", func.clock_timestamp())
"""PostgreSQL's time."""
SELECT_EPOCH = select(EPOCH)


@dataclass(slots=True)
class Transaction:
    """One transaction, and the time at which it happens."""

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

    def take_time(self, at_s: float) -> None:
        """Use the time that a statement returned as well, unless it is known already."""
        if self._now_s is None and self._clock is None:
            self._now_s = at_s

    def after_waiting(self) -> "Transaction":
        """Return the same transaction at the present time: decisions after a wait for a lock use that."""
        return Transaction(self.connection, self._clock, appended=self.appended)

    @property
    def is_postgresql(self) -> bool:
        """Whether statements may use features of PostgreSQL."""
        return self.connection.dialect.name == "postgresql"
