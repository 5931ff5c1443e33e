"""Verification of the event log and of the stored states."""

from dataclasses import dataclass

from lifesign.domain.errors import BrokenChain, ImpossibleEvent
from lifesign.domain.events.chain import Checkpoint, link_stored
from lifesign.registry.events.archive_events import replay_from
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import archive_erasures, event_log
from lifesign.storage.whole_database import stored_states


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """Result of a check of the whole log."""

    events: int
    """Number of events in the database."""
    erased: int
    """Number of events whose payload was erased, in the database or before they were archived."""
    archive_erasures: int
    """Number of erased agents of which archived files may still contain events."""
    agents: int
    """Number of agents in the log."""
    leases: int
    """Number of resources in the log."""
    tasks: int
    keys: int
    """Number of keys in the log."""
    archived: Checkpoint
    """End of the archived files and start of the database."""
    last: Checkpoint
    """The chain is valid up to here.

    A copy of this checkpoint elsewhere proves later that the log was truncated or rewritten.
    """
    fault: str | None
    """Reason why the rest was not checked; None if everything was."""
    differences: tuple[str, ...]
    """Differences between the log and the stored state, at most `replay.MAX_DIFFERENCES`; empty after a
    fault.
    """

    @property
    def is_good(self) -> bool:
        """Whether no fault was found."""
        return self.fault is None and not self.differences


def verify_log(transaction: Transaction) -> LogReport:
    """Read the whole log, a page at a time, and compare it with the stored states of the same moment.

    Run it by `Database.read`, which reads one snapshot: the registry may continue meanwhile. Memory grows
    with the agents, resources and keys, not with the events.
    """
    head = event_log.head(transaction)
    checkpoint, replay, fault = head.archived, replay_from(head), None
    try:
        first = checkpoint.sequence + 1
        for event, agent_id in event_log.between_with_agents(transaction, first, head.last.sequence):
            checkpoint = link_stored(checkpoint, event, agent_id)
            replay.apply(event)
    except (BrokenChain, ImpossibleEvent) as error:
        fault = str(error)
    if fault is None and checkpoint != head.last:
        fault = str(BrokenChain(checkpoint.sequence + 1, "the log ends before the end that its head records"))
    differences: list[str] = []
    if fault is None:
        try:
            differences = replay.differences(
                stored_states.agent_states(transaction),
                stored_states.lease_states(transaction),
                stored_states.task_states(transaction),
                stored_states.key_states(transaction),
                stored_states.link_states(transaction),
            )
        except (TypeError, ValueError) as error:
            # The content was not written by this software.
            differences = [f"the stored state cannot be read: {error}"]
    return LogReport(
        events=checkpoint.sequence - head.archived.sequence,
        erased=replay.erased_events,
        archive_erasures=archive_erasures.count(transaction),
        agents=len(replay.agents),
        leases=len(replay.leases),
        tasks=len(replay.tasks),
        keys=len(replay.keys),
        archived=head.archived,
        last=checkpoint,
        fault=fault,
        differences=tuple(differences),
    )
