"""Erasure of an agent (`DELETE /api/v1/agents/{agent_id}/record`).

Deregistering keeps the record for audit; erasing removes it. The event log stays complete: the payload of
each event of the agent is replaced by its hash. The id remains as subject and actor of events, since the
hash chain covers it, and with the time of the erasure, for a restore of an older backup. Tasks and intent
states of others stay, without the agent's name. Archived events are in files: each server process with such
files erases the payloads there (`erase_archives`), and an event reports when no file contains them any
more.
"""

from collections.abc import Callable

from lifesign.domain.access.permissions import Permission
from lifesign.domain.events.agent_payloads import AgentErased
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.replay import Replay
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import ALIVE, Signal
from lifesign.domain.models.agents import Erasure
from lifesign.registry.errors import AgentNotFound
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import etag
from lifesign.registry.status_changes.agent_status import change_status
from lifesign.registry.status_changes.agent_verdicts import Change
from lifesign.registry.targets.link_decisions import end_link
from lifesign.storage.agents import agent_rows, fenced_state
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import archive_erasures, event_log
from lifesign.storage.events.archive_erasures import ArchiveErasure
from lifesign.storage.keys import key_rows
from lifesign.storage.targets import directories, target_rows
from lifesign.storage.whole_database import stored_states


def erase_agent(
    transaction: Transaction,
    agent_id: str,
    actor: str,
    check: Callable[[StoredAgent | None], None] = lambda _: None,
) -> Erasure:
    """End an agent's incarnation; remove its record, keys and target, and the payloads of its events.

    The id stays in the log as actor and subject, since the hash chain covers it. Tasks and intent states on
    which it worked stay, without its name. An agent with a key or a lease needs no record. `check` may raise
    an error once the record is locked; it gets None if there is no record. Raises AgentNotFound.
    """
    # Locked before the agent, as an import does it.
    directories.unlist(transaction, agent_id)
    end_link(transaction, agent_id)
    agent = agent_rows.find(transaction, agent_id, to_change=True)
    if agent is None and not stored_states.has_key_or_lease(transaction, agent_id):
        raise AgentNotFound(agent_id)
    check(agent)
    # Keys are locked before leases, as a request for a lease does it: one that has begun ends first. Leases
    # are locked before the log's head, which the first event takes.
    key_rows.of_agent(transaction, agent_id, to_change=True)
    stored_states.lock_leases_of(transaction, agent_id)
    if agent is not None and agent.status in ALIVE:
        change = Change(
            agent=agent,
            signals=(Signal.DEREGISTERED,),
            explanation=f"erased by {actor}",
            health=HealthStatus.UNKNOWN,
            assess_at_s=None,
        )
        change_status(transaction, [change], actor)
    stored_states.forget_holder(transaction, agent_id)
    fenced_state.forget_holder(transaction, agent_id)
    stored_states.remove_agent(transaction, agent_id)
    # If a directory still lists the agent, the next import makes it a new target without history.
    target_rows.remove(transaction, agent_id)
    events = event_log.erase_of(transaction, agent_id)
    head = event_log.lock(transaction)
    # Events that others appended about the agent meanwhile, and the keys in them.
    stored_states.remove_keys(transaction, agent_id)
    events += event_log.erase_of(transaction, agent_id)
    if head.archived_states is not None and agent_id in head.archived_states:
        replay = Replay.from_json(head.archived_states)
        replay.forget(agent_id)
        event_log.set_archived(transaction, head.archived, replay.to_json())
    ranges = ((1, head.archived.sequence),) if head.archived.sequence else ()
    erasure = ArchiveErasure(head.last.sequence + 1, agent_id, ranges, transaction.now_s)
    archive_erasures.add(transaction, erasure)
    payload = AgentErased(agent_id=agent_id, events=events)
    draft = EventDraft(type=EventType.AGENT_ERASED, actor=actor, payload=payload, agent_id=agent_id)
    event_log.append(transaction, [draft])
    return Erasure(agent_id=agent_id, events=events, archived_sequence=head.archived.sequence)


def _erase(transaction: Transaction, call: Call) -> OperationReply:
    def check(agent: StoredAgent | None) -> None:
        if agent is not None:
            call.check_version(agent.incarnation, agent.version, etag(agent), is_required=False)
        elif "if-match" in call.headers:
            raise AgentNotFound(call.agent_id)

    return OperationReply(content=erase_agent(transaction, call.agent_id, call.actor, check))


OPERATIONS = (
    Operation(
        method="DELETE",
        path="/api/v1/agents/{agent_id}/record",
        summary=(
            "Erase an agent: only its id stays in the log, and payloads of its events are replaced by "
            "their hashes"
        ),
        action=Permission.ERASE,
        function=_erase,
        answer=Erasure,
        errors=(404, 412),
    ),
)
