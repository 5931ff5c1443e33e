"""The other worker processes of an agent, as one of them sees them.

A fault of the lock directory is logged once, and never raised: the app is served, and its agent stays linked,
whatever happens to the directory.
"""

import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from lifesign.agent.beat_election import HAS_LEFT, IS_LOST, BeatElection

_log = logging.getLogger("lifesign.agent")


class WorkerGroup:
    """One worker's part in the election of the worker that sends the heartbeats of an agent."""

    def __init__(self, directory: Path, agent_id: str) -> None:
        self._directory = directory
        self._agent_id = agent_id
        self._election: BeatElection | None = None
        """None before `join` and after `leave`, and if the directory cannot be used."""
        self._load = 0
        self._last_fault: int | None = None
        """errno of the last fault, which is logged once: its text may name another file each time."""
        self.incarnation: int | None = None
        """Incarnation for the next leader, as this worker has read or stored it.

        None if there is none; IS_LOST if the registry has ended it.
        """
        self._has_reported_drain = False

    def join(self) -> None:
        """Join the other workers. If the directory cannot be used, this worker leads itself."""
        self.incarnation, self._last_fault, self._has_reported_drain = None, None, False
        try:
            self._election = BeatElection.join(self._directory)
        except OSError as error:
            _log.error(
                "agent %s: this worker process cannot find the others (%s), so it sends its own heartbeats",
                self._agent_id,
                error,
            )
            return
        self._election.set_load(self._load)

    def set_load(self, count: int) -> None:
        """Set this worker's load: the number of requests in progress."""
        self._load = count
        if self._election is not None:
            self._election.set_load(count)

    def total_load(self) -> int:
        """Return the sum of the loads of all workers; this worker's load if the others cannot be read."""
        with suppress(OSError):
            if self._election is not None:
                return self._election.total_load()
        return self._load

    def can_lead(self) -> bool:
        """Try to become the leader.

        False also if the directory cannot be used now, and after a drain until all workers of that time have
        ended.
        """
        if self._election is None:
            return True
        try:
            # The leader checks its files more often: after a removal, it has the first try.
            if self._is_restored():
                return False
            is_leader, self.incarnation = self._election.lead(), self._election.incarnation()
        except OSError as error:
            self._report(error)
            return False
        self._last_fault = None
        is_drained = self.incarnation == HAS_LEFT
        if is_drained and not self._has_reported_drain:
            _log.warning(
                (
                    "agent %s: the agent was drained, and this worker process does not register it again "
                    "until all worker processes of that time have ended; hint: restart the server"
                ),
                self._agent_id,
            )
        self._has_reported_drain = is_drained
        return is_leader and not is_drained

    def keep_lead(self) -> bool:
        """Create the leader's files again if they were removed.

        Return False if another worker leads since then, for example because this process was stopped for a
        time. A fault of the directory does not end the lead.
        """
        if self._election is None:
            return True
        try:
            is_restored = self._is_restored()
            is_leader = self._election.lead()
        except OSError as error:
            self._report(error)
            return True
        self._last_fault = None
        if is_restored and is_leader:
            self.note_incarnation(self.incarnation)
        return is_leader

    def give_lead(self) -> None:
        """Release the lead, so that another worker gets it."""
        if self._election is not None:
            self._election.give_lead()

    def is_alone(self) -> bool:
        """Return whether no other worker is alive; False if the directory cannot be read."""
        try:
            return self._election is None or self._election.is_alone()
        except OSError:
            return False

    def names(self) -> frozenset[str]:
        """Return the names of all living workers; only that of this one if the directory cannot be read."""
        if self._election is None:
            return frozenset()
        try:
            return self._election.workers()
        except OSError:
            return frozenset({self._election.name})

    def note_incarnation(self, incarnation: int | None) -> None:
        """Store the incarnation for the next leader; only called by the leader."""
        self.incarnation = incarnation
        try:
            if self._election is not None:
                self._election.note_incarnation(incarnation)
        except OSError as error:
            self._report_unstored(error)

    def note_drain(self, workers: Collection[str]) -> None:
        """Store that the agent was drained when these workers were alive; only called by the leader."""
        try:
            if self._election is not None:
                self._election.note_drain(workers)
        except OSError as error:
            self._report_unstored(error)

    def leave(self, own: int | None = None) -> int | None:
        """Leave the group; return the incarnation that this worker has to end, as the last one.

        None if there is no such incarnation. `own` is the incarnation of this worker, which counts if the
        stored one cannot be read.
        """
        election, self._election = self._election, None
        if election is None:
            return None
        with suppress(OSError):
            own = election.incarnation()
        return own if election.leave() and own not in {HAS_LEFT, IS_LOST} else None

    def _is_restored(self) -> bool:
        """Join again if this worker's files were removed; return whether they were."""
        if self._election is None or self._election.is_in_place():
            return False
        former, self._election = self._election, BeatElection.join(self._directory)
        self._election.set_load(self._load)
        former.leave()
        _log.warning(
            "agent %s: files of its workers in %s were removed, and are created again",
            self._agent_id,
            self._directory,
        )
        return True

    def _report_unstored(self, error: OSError) -> None:
        _log.error(
            "agent %s: other worker processes cannot take over the heartbeats: %s", self._agent_id, error
        )

    def _report(self, error: OSError) -> None:
        if error.errno != self._last_fault:
            self._last_fault = error.errno
            _log.error(
                "agent %s: this worker process cannot use its lock directory (%s), and tries again",
                self._agent_id,
                error,
            )
