"""Processing of heartbeats (RFC-0016 4).

Waiting heartbeats are processed together. One statement fetches the facts about all their agents, each agent
is assessed, one statement stores the heartbeats that count, and all are answered after the commit. A
heartbeat that changes more than time and load is processed further by itself, in the same transaction.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic_core import to_json
from ulid import ULID

from lifesign.domain.access.permissions import Permission, Principal, Role, StoredKey, is_valid, require
from lifesign.domain.events.agent_payloads import DriftWarning, TasksMismatch
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.lifecycle.heartbeat_timeout import drift_s, is_drifting
from lifesign.domain.lifecycle.status_table import ALIVE, Status, status_after
from lifesign.domain.models.agents import RENEW_LEASES, Heartbeat, HeartbeatReply, PendingCommand
from lifesign.domain.models.base import moment
from lifesign.errors import LifesignError
from lifesign.registry.agents.drain_agent import with_drain
from lifesign.registry.errors import AgentGone, AgentNotFound, UnknownKey
from lifesign.registry.status_changes.agent_status import change_status
from lifesign.registry.status_changes.agent_verdicts import (
    Change,
    VerdictContext,
    assess_agent,
    change_of,
    unchanged,
)
from lifesign.registry.status_changes.monitor_row import verdict_context
from lifesign.storage.agents import agent_rows, commands, heartbeats
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.agents.heartbeats import HeartbeatCaller, HeartbeatFacts, StoredHeartbeat
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows
from lifesign.storage.tasks import leases

MAX_TASKS_NAMED = 100
"""Maximum number of tasks in one warning, on either side."""
MAX_TASKS_LISTED = 5
"""Maximum of tasks in a reply to the agent: the agent requests the full list."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One heartbeat, read and validated."""

    agent_id: str
    digest: bytes
    """Digest of the key of the request."""
    incarnation: int | None
    """Incarnation that the agent states; None if it states none."""
    heartbeat: Heartbeat
    sent_after_s: float | None = None
    """When it was sent at the earliest, by `time.monotonic`: it may have waited for us. None: just now."""

    def waited_s(self, now_s: float) -> float:
        """Return for how long, at most, the heartbeat has waited until this process read it."""
        return 0.0 if self.sent_after_s is None else max(0.0, now_s - self.sent_after_s)


# One reply serves all heartbeats of a group with the same answer.
Answer = bytes | LifesignError


def receive_heartbeats(transaction: Transaction, arrivals: Sequence[Arrival]) -> list[Answer]:
    """Store heartbeats; return for each the reply's JSON, or why it is refused."""
    callers = [HeartbeatCaller(arrival.agent_id, arrival.digest.hex()) for arrival in arrivals]
    known = heartbeats.facts_of(transaction, callers)
    # Not before: the wait for the agents' locks must not count as their silence.
    now_s, monotonic_s = transaction.now_s, time.monotonic()
    ordinary_reply = reply_json(now_s, Status.ACTIVE, ())
    answers: list[Answer] = []
    counted: dict[int, StoredHeartbeat] = {}
    eventful: list[tuple[int, HeartbeatFacts, StoredHeartbeat]] = []
    for position, arrival in enumerate(arrivals):
        facts = known.get(position)
        refusal = _refusal(transaction, arrival, facts, now_s)
        if refusal is not None or facts is None:
            answers.append(refusal or AgentNotFound(arrival.agent_id))
            continue
        send_heartbeat = _stored_heartbeat(arrival.heartbeat, facts, now_s, arrival.waited_s(monotonic_s))
        # Two heartbeats of one agent in one group: the later one counts, with members that only the earlier
        # one has.
        counted[facts.number] = _merged(counted.get(facts.number), send_heartbeat)
        answers.append(ordinary_reply)
        if _is_eventful(arrival.heartbeat, facts, send_heartbeat):
            eventful.append((position, facts, send_heartbeat))
    heartbeats.store(transaction, list(counted.values()))
    for position, facts, send_heartbeat in eventful:
        answers[position] = _follow_up(transaction, arrivals[position], facts, send_heartbeat)
    return answers


def _refusal(
    transaction: Transaction, arrival: Arrival, facts: HeartbeatFacts | None, now_s: float
) -> LifesignError | None:
    """Return why a heartbeat does not count, or None."""
    try:
        key = _key_in(facts, arrival.digest) if facts else key_rows.find(transaction, arrival.digest)
        if key is None or not is_valid(key, arrival.digest, now_s):
            raise UnknownKey
        require(Principal(key.key_id, key.role, key.agent_id), Permission.HEARTBEAT, arrival.agent_id)
    except LifesignError as error:
        return error
    if facts is None:
        return AgentNotFound(arrival.agent_id)
    is_former_life = arrival.incarnation is not None and arrival.incarnation != facts.incarnation
    if facts.status not in ALIVE or is_former_life:
        return AgentGone(arrival.agent_id, facts.status, facts.incarnation)
    return None


def _key_in(facts: HeartbeatFacts, digest: bytes) -> StoredKey | None:
    if facts.key_id is None or facts.key_role is None:
        return None
    return StoredKey(
        key_id=facts.key_id,
        name="",
        role=Role(facts.key_role),
        agent_id=facts.key_agent_id,
        digest=digest,
        created_at_s=0.0,
        expires_at_s=facts.key_expires_at_s,
        revoked_at_s=facts.key_revoked_at_s,
    )


def _stored_heartbeat(
    heartbeat: Heartbeat, facts: HeartbeatFacts, now_s: float, waited_s: float
) -> StoredHeartbeat:
    tasks = None if heartbeat.tasks_in_progress is None else to_json(heartbeat.tasks_in_progress).decode()
    client_s, was_drifting = heartbeat.client_timestamp.timestamp(), facts.is_drifting
    is_adrift = is_drifting(client_s, now_s, facts.interval_s, waited_s, was_drifting=was_drifting)
    return StoredHeartbeat(facts.number, now_s, heartbeat.current_load, tasks, is_adrift)


def _merged(earlier: StoredHeartbeat | None, later: StoredHeartbeat) -> StoredHeartbeat:
    if earlier is None:
        return later
    return later._replace(
        current_load=earlier.current_load if later.current_load is None else later.current_load,
        tasks=later.tasks or earlier.tasks,
    )


def _is_eventful(heartbeat: Heartbeat, facts: HeartbeatFacts, send_heartbeat: StoredHeartbeat) -> bool:
    """Return whether the heartbeat changes more than time and load, or needs a longer reply."""
    return (
        facts.status != Status.ACTIVE
        or heartbeat.status != "active"
        or facts.has_commands
        or send_heartbeat.is_drifting != facts.is_drifting
        or (
            send_heartbeat.tasks is not None and (facts.has_lost_tasks or send_heartbeat.tasks != facts.tasks)
        )
    )


def _follow_up(
    transaction: Transaction, arrival: Arrival, facts: HeartbeatFacts, send_heartbeat: StoredHeartbeat
) -> bytes:
    """Assess the agent, log unexpected values, and add pending commands to the reply."""
    heartbeat, now_s = arrival.heartbeat, transaction.now_s
    agent = agent_rows.find(transaction, arrival.agent_id, to_change=True)
    assert agent is not None  # noqa: S101 - it is locked since its facts were fetched
    waiting = [
        command for command in commands.waiting(transaction, [agent.id]) if command.expires_at_s > now_s
    ]
    mismatch = _mismatch(transaction, agent, facts, heartbeat)
    waited_s = arrival.waited_s(time.monotonic())
    drafts = (
        [_drift(agent, heartbeat, waited_s, now_s)]
        if send_heartbeat.is_drifting and not facts.is_drifting
        else []
    )
    if mismatch is not None and send_heartbeat.tasks != facts.tasks:
        drafts.append(
            EventDraft(
                type=EventType.AGENT_TASKS_MISMATCH,
                actor=agent.agent_id,
                payload=mismatch,
                agent_id=agent.agent_id,
            )
        )
    event_log.append(transaction, drafts)
    lost = leases.tasks_ever_leased(transaction, mismatch.without_lease) if mismatch is not None else []
    if send_heartbeat.tasks is not None and bool(lost) != facts.has_lost_tasks:
        heartbeats.set_lost_tasks(transaction, facts.number, has_lost_tasks=bool(lost))
    change = _change(agent, now_s, verdict_context(transaction))
    if heartbeat.status == "draining" and _status_after(agent, change) in {Status.ACTIVE, Status.UNHEALTHY}:
        timeout_s = next(
            (command.drain_timeout_s for command in waiting if command.drain_timeout_s is not None),
            agent.drain_timeout_s,
        )
        change = with_drain(change, now_s, timeout_s, "the agent reports that it drains")
    if agent.status == Status.DRAINING and heartbeat.current_load == 0:
        # It may have done all its work: the next sweep looks.
        agent_rows.set_verdict_due(transaction, {agent.id: now_s})
    if change.is_visible:
        (agent,) = change_status(transaction, [change], agent.agent_id)
    still_waiting = waiting if agent.status in {Status.ACTIVE, Status.UNHEALTHY} else ()
    pending = [
        PendingCommand(
            id=command.id,
            command=command.command,
            reason=command.reason,
            drain_timeout_seconds=command.drain_timeout_s,
        )
        for command in still_waiting
    ]
    return reply_json(now_s, Status(agent.status), [*pending, *_renewal(lost)])


def _status_after(agent: StoredAgent, change: Change) -> Status:
    status = Status(agent.status)
    for signal in change.signals:
        status = status_after(status, signal)
    return status


def _change(agent: StoredAgent, now_s: float, verdict_context: VerdictContext) -> Change:
    """Return the consequences of the heartbeat; the sweep finds the end of a drain."""
    if agent.status == Status.DRAINING:
        return unchanged(agent)
    return change_of(agent, assess_agent(agent, 0, now_s, verdict_context))


def _drift(agent: StoredAgent, heartbeat: Heartbeat, waited_s: float, now_s: float) -> EventDraft:
    """Warn once when the agent's clock begins to differ; it decides nothing (RFC-0016 4.5)."""
    differs_s = drift_s(heartbeat.client_timestamp.timestamp(), now_s, waited_s)
    payload = DriftWarning(agent_id=agent.agent_id, drift_seconds=round(differs_s, 3))
    return EventDraft(
        type=EventType.AGENT_DRIFT_WARNING, actor=agent.agent_id, payload=payload, agent_id=agent.agent_id
    )


def _mismatch(
    transaction: Transaction, agent: StoredAgent, facts: HeartbeatFacts, heartbeat: Heartbeat
) -> TasksMismatch | None:
    """Return the difference between the reported tasks and the leased ones; None if there is none.

    None also if the last heartbeat reported the same tasks, and none of them had lost its lease.
    """
    if heartbeat.tasks_in_progress is None:
        return None
    if not facts.has_lost_tasks and facts.tasks == to_json(heartbeat.tasks_in_progress).decode():
        return None
    leased = leases.tasks_of(transaction, agent.agent_id)
    named = set(heartbeat.tasks_in_progress)
    if named == leased:
        return None
    return TasksMismatch(
        agent_id=agent.agent_id,
        without_lease=sorted(named - leased)[:MAX_TASKS_NAMED],
        not_in_progress=sorted(leased - named)[:MAX_TASKS_NAMED],
    )


def _renewal(lost: Sequence[str]) -> Iterator[PendingCommand]:
    """Ask an agent that reports tasks whose lease it has lost to check its leases.

    Each reply contains this until the agent no longer reports them: a reply may be lost. Tasks that never had
    a lease are not among them: some agents do not use leases.
    """
    if lost:
        named = ", ".join(lost[:MAX_TASKS_LISTED])
        yield PendingCommand(
            id=f"command_{str(ULID()).lower()}",
            command=RENEW_LEASES,
            reason=f"not leased to this agent: {named}",
        )


def reply_json(now_s: float, status: Status, pending: Sequence[PendingCommand]) -> bytes:
    """Return the answer to a heartbeat as JSON (RFC-0016 4.2)."""
    reply = HeartbeatReply(
        acknowledged=True,
        server_timestamp=moment(now_s),
        agent_status=status,
        pending_commands=list(pending),
    )
    return reply.model_dump_json(exclude_none=True).encode()
