"""Changes of the published interfaces of targets: versions and events.

`domain/published_interface/version_history.py` decides which version is kept and when an event is due. Only
targets that are agents cause events.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from lifesign.domain.events.agent_payloads import InterfaceChanged, TargetInterfaceChanged
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.payload_fields import MAX_CHANGED_MEMBERS
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.published_interface.comparison import compare
from lifesign.domain.published_interface.published import Form, interface_of
from lifesign.domain.published_interface.version_history import (
    MAX_VERSIONS,
    VersionState,
    VersionStep,
    first_state,
    next_step,
    oldest_kept,
    pending_step,
)
from lifesign.registry.status_changes.agent_status import MONITOR
from lifesign.registry.targets.feed_targets import recalled
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log
from lifesign.storage.probing import interface_versions, probe_results
from lifesign.storage.probing.interface_versions import InterfaceVersion
from lifesign.storage.targets import target_rows

DUE_AT_ONCE = 200
"""Number of targets whose pending events one transaction makes."""

_log = logging.getLogger("lifesign.registry")


@dataclass(frozen=True, slots=True)
class ReadInterface:
    """An interface that a probe newly read."""

    target: int
    target_id: str
    agent_id: str | None
    """Its agent; None if it is none, or was deregistered."""
    form: Form
    changes_in_row: int
    """Readings in a row that each found another interface, including this one."""
    at_s: float


@dataclass(frozen=True, slots=True)
class _Notice:
    """An event that is to be made."""

    target: int
    target_id: str
    agent_id: str
    previous: int
    newest: int


def note_interfaces(transaction: Transaction, found: Sequence[ReadInterface]) -> list[EventDraft]:
    """Store newly read interfaces as versions; return the events that follow, to be appended later.

    Before any event is appended: the states of the targets are locked before the log. Of several interfaces
    of one target the last counts.
    """
    read = {each.target: each for each in found}
    if not read:
        return []
    known = interface_versions.states_of(transaction, [*read])
    versions: list[InterfaceVersion] = []
    firsts: dict[int, VersionState] = {}
    steps: dict[int, VersionStep] = {}
    notices: list[_Notice] = []
    for target, each in sorted(read.items()):
        interface, before = interface_of(each.form), known.get(target)
        if before is None:
            state = firsts[target] = first_state()
        elif before.digest == interface.digest:
            continue
        else:
            is_agent = each.agent_id is not None
            step = steps[target] = next_step(
                before.state, each.changes_in_row, transaction.now_s, is_agent=is_agent
            )
            state = step.state
            if step.has_become_unstable:
                _log.warning("the interface of %s is different at every reading", each.target_id)
            if step.notifies and each.agent_id is not None:
                baseline = before.state.baseline
                notices.append(_Notice(target, each.target_id, each.agent_id, baseline, state.newest))
        versions.append(
            InterfaceVersion(target, state.newest, each.at_s, None, interface.digest, interface.text)
        )
    interface_versions.add(transaction, versions)
    interface_versions.set_states(transaction, firsts, are_new=True)
    interface_versions.set_states(transaction, {target: step.state for target, step in steps.items()})
    drafts = _drafts(transaction, notices)
    interface_versions.trim(
        transaction,
        {
            target: (oldest_kept(step.state), step.state.baseline)
            for target, step in steps.items()
            if step.state.newest > MAX_VERSIONS
        },
    )
    return drafts


def _drafts(transaction: Transaction, notices: Sequence[_Notice]) -> list[EventDraft]:
    """Return the events of changed interfaces; one that equals the version of the last event causes none."""
    numbers = {notice.target: (notice.previous, notice.newest) for notice in notices}
    bodies = interface_versions.bodies_of(transaction, numbers)
    drafts: list[EventDraft] = []
    for notice in notices:
        old, new = (bodies.get((notice.target, number)) for number in (notice.previous, notice.newest))
        if old is None or new is None:
            continue
        compared = compare(from_json(old), from_json(new), MAX_CHANGED_MEMBERS)
        if compared.changes:
            payload = TargetInterfaceChanged(
                agent_id=notice.agent_id,
                target_id=notice.target_id,
                previous_version=notice.previous,
                version=notice.newest,
                breaking=compared.breaking,
                changes=[
                    InterfaceChanged(pointer=each.pointer, change=each.change, breaking=each.breaking)
                    for each in compared.changes
                ],
                omitted=compared.omitted,
            )
            drafts.append(
                EventDraft(
                    type=EventType.TARGET_INTERFACE_CHANGED,
                    actor=MONITOR,
                    payload=payload,
                    agent_id=notice.agent_id,
                )
            )
    return drafts


async def make_due_events(database: Database) -> None:
    """Create the events that were delayed because a target has one per day. Raises StoreUnavailable."""
    if await database.read(lambda transaction: interface_versions.due_targets(transaction, 1)):
        while await database.write(_make_some) == DUE_AT_ONCE:
            pass


def _make_some(transaction: Transaction) -> int:
    """Make some of the events that are due; return how many targets were examined."""
    due = interface_versions.due_targets(transaction, DUE_AT_ONCE)
    states = interface_versions.states_of(transaction, due)
    agents = _agents_of(transaction, due)
    memories = probe_results.memories_of(transaction, due)
    after: dict[int, VersionState] = {}
    notices: list[_Notice] = []
    for target, (state, _) in states.items():
        if state.due_at_s is None or state.due_at_s > transaction.now_s:
            # Another process was faster.
            continue
        target_id, agent_id = agents.get(target, ("", None))
        memory = recalled(target_id, memories.get(target))
        changes_in_row = 0 if memory is None else memory.interface_changes
        step = pending_step(state, changes_in_row, transaction.now_s, is_agent=agent_id is not None)
        after[target] = step.state
        if step.notifies and agent_id is not None:
            notices.append(_Notice(target, target_id, agent_id, state.baseline, state.newest))
    drafts = _drafts(transaction, notices)
    interface_versions.set_states(transaction, after)
    if drafts:
        event_log.append(transaction, drafts)
    return len(due)


def _agents_of(transaction: Transaction, targets: Sequence[int]) -> Mapping[int, tuple[str, str | None]]:
    """Return the id of each target, and its living agent; None: it has none."""
    ids = {target.id: target.subject_id for target in target_rows.find_many(transaction, targets)}
    subjects = probe_results.find(transaction, sorted(ids.values())) if ids else {}
    numbers = sorted(subject.agent for subject in subjects.values() if subject.agent is not None)
    living = {
        agent.id: agent.agent_id
        for agent in (agent_rows.find_many(transaction, numbers) if numbers else ())
        if agent.status != Status.DEREGISTERED
    }
    return {
        target: (subject_id, None if (agent := subjects[subject_id].agent) is None else living.get(agent))
        for target, subject_id in ids.items()
    }
