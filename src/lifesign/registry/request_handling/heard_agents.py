"""Time of the last request from any agent to a server process: a witness for missed heartbeats.

Each process notes its own requests in memory, and stores the time with its sweeps. So every process that
assesses agents knows whether the inbound network works.
"""

from collections.abc import Callable, Iterable, Sequence

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.lifecycle.verdict_suspension import MonitorPolicy, is_unwitnessed
from lifesign.storage.agents import heartbeats, last_requests
from lifesign.storage.engine.transaction import Transaction


class HeardAgents:
    """When this process last got an authenticated request of any agent."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._heard_s: float | None = None
        self._stored_s: float | None = None

    def note(self) -> None:
        """Record that an agent, or a caller in its name, sent a request with a valid key just now."""
        self._heard_s = self._monotonic_s()

    def store(self, transaction: Transaction, process: str) -> None:
        """Store the last request by the database's clock, if there was one since the last time."""
        heard_s = self._heard_s
        if heard_s is None or heard_s == self._stored_s:
            return
        ago_s = max(0.0, self._monotonic_s() - heard_s)
        last_requests.store(transaction, process, transaction.now_s - ago_s)
        self._stored_s = heard_s


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
    """Return those whose missed heartbeats are not confirmed by a request of any agent."""
    heard_at_s = last_requests.last_at_s(transaction)
    alone = [each for each in missed if heard_at_s is None or heard_at_s < each.missed_s]
    if not alone:
        return ()
    # Two are enough: one of them is another agent than the one in question.
    due = heartbeats.latest_due(transaction, policy.proven_seconds, 2)
    return [
        each
        for each in alone
        if is_unwitnessed(
            each.missed_s,
            heard_at_s,
            max((due_s for agent, due_s in due if agent != each.agent), default=None),
        )
    ]
