"""Evidence watch: counts network classes that fell silent together, and living agents with old evidence.

A count reads all targets that are expected to answer, so that a sweep makes it only now and then, outside of
its transactions. Probers learn of silent classes with the next answer that they get.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from agent_health import mass_silence
from agent_health.agent_record import moment
from agent_health.event import EventDraft, EventType, EvidenceTurned
from agent_health.evidence_age import UnknownReason
from agent_health.mass_silence import ClassCounts, silence_after
from agent_health.monitor_watch import EvidenceTurn, Watched, is_due, watched_after
from agent_health.registry.change_status import MONITOR
from agent_health.registry.hand_out_witnesses import silence_in, silence_json
from agent_health.registry.policies import Policies
from agent_health.storage import event_log, liveness, old_evidence, registry_row
from agent_health.storage.database import Transaction
from agent_health.storage.registry_row import RegistryRow

_WATCHED: TypeAdapter[Watched] = TypeAdapter(Watched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one count found."""

    classes: Mapping[str, ClassCounts]
    old_evidence: Mapping[UnknownReason, int]


def watched_in(row: RegistryRow) -> Watched:
    """Return what a row holds of old evidence."""
    return _WATCHED.validate_json(row.watched) if row.watched else Watched()


def is_watch_due(row: RegistryRow, now_s: float, policies: Policies) -> bool:
    """Whether it is time to count again."""
    return is_due(watched_in(row).counted_at_s, now_s, policies.watch_seconds)


def count_evidence(transaction: Transaction, policies: Policies) -> Counted:
    """Count; changes nothing."""
    classes: Mapping[str, ClassCounts] = {}
    if liveness.is_any_silent(transaction, mass_silence.MIN_ADDRESSES):
        classes = liveness.counts(transaction, transaction.now_s - policies.mass_silence.expected_seconds)
    return Counted(classes=classes, old_evidence=old_evidence.count(transaction))


def note_evidence(transaction: Transaction, counted: Counted, policies: Policies) -> None:
    """Store a count and log what it turned, unless another process has just counted."""
    row = registry_row.lock(transaction)
    now_s = transaction.after_waiting().now_s
    if not is_watch_due(row, now_s, policies):
        return
    silence = silence_after(silence_in(row), counted.classes, now_s, policies.mass_silence)
    before = watched_in(row)
    watched, turn = watched_after(before, counted.old_evidence, now_s, policies.evidence_lost_seconds)
    if turn is not None:
        event_log.append(transaction, [_turned(turn, before, watched)])
    watched_json = _WATCHED.dump_json(watched).decode()
    registry_row.store(transaction, replace(row, mass_silence=silence_json(silence), watched=watched_json))


def _turned(turn: EvidenceTurn, before: Watched, watched: Watched) -> EventDraft:
    is_lost = turn is EvidenceTurn.LOST
    since_s = (watched if is_lost else before).since_s
    assert since_s is not None  # noqa: S101 - there were such agents, or are
    payload = EvidenceTurned(
        agents=watched.agents,
        no_prober=watched.reasons.get(UnknownReason.NO_PROBER, 0),
        no_witness=watched.reasons.get(UnknownReason.NO_WITNESS, 0),
        prober_slow=watched.reasons.get(UnknownReason.PROBER_SLOW, 0),
        since=moment(since_s),
    )
    kind = EventType.MONITOR_EVIDENCE_LOST if is_lost else EventType.MONITOR_EVIDENCE_RESTORED
    return EventDraft(type=kind, actor=MONITOR, payload=payload)
