"""Time of the last request from any agent to a server process: a witness for missed heartbeats.

Each process notes its own requests in memory, and stores the time with its sweeps. So every process that
assesses agents knows whether the inbound network works. The same holds for heartbeats that a process could
not store, and for connections that it refused because too many were open: heartbeats may have been among
them.
"""

from collections.abc import Callable, Iterable, Sequence

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.lifecycle.verdict_suspension import Companion, MonitorPolicy, is_unwitnessed
from lifesign.storage.agents import heartbeats, last_requests
from lifesign.storage.agents.heartbeats import OverdueHeartbeat
from lifesign.storage.agents.last_requests import LastRequests
from lifesign.storage.engine.transaction import Transaction

LATE_SECONDS = 5.0
"""A heartbeat that is overdue for less may just be late: its agent has not fallen silent."""


class HeardAgents:
    """When this process last got an authenticated request of any agent, and last refused a heartbeat."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._heard_s: float | None = None
        self._refused_s: float | None = None
        self._sent_s: tuple[float | None, float | None] = None, None
        self._stored_s: tuple[float | None, float | None] = None, None

    def note(self) -> None:
        """Record that an agent, or a caller in its name, sent a request with a valid key just now."""
        self._heard_s = self._monotonic_s()

    def note_refusal(self) -> None:
        """Record that this process just refused a heartbeat, or a connection that may have brought one."""
        self._refused_s = self._monotonic_s()

    def store(self, transaction: Transaction, process: str) -> None:
        """Store both times by the database's clock, if one has changed since they were last stored.

        Call `note_commit` after the commit: a transaction that failed has stored nothing.
        """
        latest_s = self._heard_s, self._refused_s
        if latest_s == self._stored_s:
            return
        ahead_s = transaction.now_s - self._monotonic_s()
        heard_at_s, refused_at_s = (
            None if at_s is None else min(at_s + ahead_s, transaction.now_s) for at_s in latest_s
        )
        last_requests.store(transaction, process, LastRequests(heard_at_s, refused_at_s))
        self._sent_s = latest_s

    def note_commit(self) -> None:
        """Record that the transaction of the last `store` was committed."""
        self._stored_s = self._sent_s


@fast_dataclass()
class MissedHeartbeat:
    """An agent that would become unhealthy or dead by missed heartbeats."""

    agent: int
    last_liveness_s: float
    missed_s: float
    """When the first heartbeat that it missed was due."""


def unwitnessed(
    transaction: Transaction, missed: Iterable[MissedHeartbeat], policy: MonitorPolicy
) -> Sequence[MissedHeartbeat]:
    """Return the agents whose missed heartbeats are not confirmed by a later request of any agent."""
    heard_at_s, refused_at_s = last_requests.last(transaction)
    silent_s = transaction.now_s - LATE_SECONDS
    # Companions are read only for those that would be unwitnessed if they had one.
    anybody = Companion(due_s=transaction.now_s, missed_s=silent_s)
    alone = [each for each in missed if is_unwitnessed(each.missed_s, heard_at_s, anybody, refused_at_s)]
    if not alone:
        return ()
    # Two of each are enough: one of them is another agent than the one in question.
    overdue = heartbeats.latest_overdue(transaction, policy.proven_seconds, silent_s, 2)
    return [
        each
        for each in alone
        if is_unwitnessed(each.missed_s, heard_at_s, _companion(overdue, each.agent, silent_s), refused_at_s)
    ]


def _companion(overdue: Iterable[OverdueHeartbeat], agent: int, silent_s: float) -> Companion | None:
    others = [each for each in overdue if each.agent != agent]
    if not others:
        return None
    silent = (each.missed_s for each in others if each.missed_s <= silent_s)
    return Companion(due_s=max(each.due_s for each in others), missed_s=max(silent, default=None))
