"""Evidence watch: counts network classes that fell silent together, and living agents with old evidence.

A count reads all targets that are expected to answer, so that a sweep makes it only at intervals, outside of
its transactions. Probers learn of silent classes with their next answer. The same job ends leases of keys
whose time is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.credentials.credential_watch import WorkerCredentialReport, credentials_after
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.monitor_payloads import LostEvidenceChanged, ProberFailures
from lifesign.domain.lifecycle import network_silence
from lifesign.domain.lifecycle.monitoring_alerts import (
    DisallowedTargets,
    EvidenceAlert,
    EvidenceWatchState,
    KeyFailuresChange,
    disallowed_targets,
    is_due,
    keys_after,
    watched_after,
)
from lifesign.domain.lifecycle.network_silence import ClassCounts, next_mass_silence
from lifesign.domain.models.base import moment
from lifesign.domain.observation.evidence_age import PROBER_FAULTS, UnknownReason
from lifesign.domain.targets.target import SHARDS
from lifesign.registry.keys.key_leases import end_leases_of, keys_with_leases
from lifesign.registry.policies import Policies
from lifesign.registry.probing.prober_credentials import credential_changed, credential_reports
from lifesign.registry.probing.reachability_witnesses import mass_silence_in, mass_silence_json
from lifesign.registry.status_changes.agent_status import MONITOR
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.probing import (
    liveness,
    old_evidence,
    prober_result_counts,
    probers,
)

_WATCHED: TypeAdapter[EvidenceWatchState] = TypeAdapter(EvidenceWatchState)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTally:
    """Result of `count_evidence`."""

    classes: Mapping[str, Mapping[str, ClassCounts]]
    """Counts of targets by the prober key that reported them, and by class."""
    old_evidence: Mapping[UnknownReason, int]
    key_sums: Mapping[str, tuple[int, int]]
    """Total of reports about living agents by prober key: answered, failed."""
    unreached: Sequence[DisallowedTargets]
    credentials: Sequence[WorkerCredentialReport]
    """Credentials as the living workers report them."""
    ended_keys: Sequence[str]
    """Keys that ended, and still hold leases."""


def watched_in(row: RegistryRow) -> EvidenceWatchState:
    """Return from the registry's row what earlier counts found about old evidence."""
    return _WATCHED.validate_json(row.watched) if row.watched else EvidenceWatchState()


def is_watch_due(row: RegistryRow, now_s: float, policies: Policies) -> bool:
    """Return whether the next `count_evidence` is due."""
    return is_due(watched_in(row).counted_at_s, now_s, policies.watch_seconds)


def count_evidence(transaction: Transaction, policies: Policies) -> EvidenceTally:
    """Count the targets that answer or are silent, and agents with old evidence; change nothing."""
    classes: Mapping[str, Mapping[str, ClassCounts]] = {}
    if liveness.is_any_silent(transaction, network_silence.MIN_ADDRESSES):
        classes = _counted_classes(transaction, policies)
    old = old_evidence.count(transaction)
    return EvidenceTally(
        classes=classes,
        old_evidence=old,
        unreached=_disallowed(transaction) if UnknownReason.NOT_ALLOWED in old else (),
        credentials=credential_reports(probers.running(transaction, SHARDS)),
        key_sums={
            key.removeprefix(KEY_ACTOR_PREFIX): (sums.answered, sums.failed)
            for key, sums in prober_result_counts.by_key(transaction).items()
        },
        ended_keys=keys_with_leases(transaction),
    )


def _counted_classes(transaction: Transaction, policies: Policies) -> Mapping[str, Mapping[str, ClassCounts]]:
    counted = liveness.counts(transaction, transaction.now_s - policies.mass_silence.expected_seconds)
    intervals_s = probers.longest_intervals_s(transaction)
    return {
        name: {key: replace(counts, interval_s=intervals_s.get(key, 0.0)) for key, counts in by_key.items()}
        for name, by_key in counted.items()
    }


def _disallowed(transaction: Transaction) -> Sequence[DisallowedTargets]:
    living = probers.running(transaction, SHARDS)
    reached = {prober.holder: prober.reached for prober in living}
    return disallowed_targets(old_evidence.count_not_allowed(transaction), reached)


def note_evidence(transaction: Transaction, counted: EvidenceTally, policies: Policies) -> None:
    """Store the result of `count_evidence` and log changes, unless another process has just done it."""
    row = registry_row.lock(transaction)
    now_s = transaction.after_waiting().now_s
    if not is_watch_due(row, now_s, policies):
        return
    silence = next_mass_silence(mass_silence_in(row), counted.classes, now_s, policies.mass_silence)
    before = watched_in(row)
    watched, turn = watched_after(before, counted.old_evidence, now_s, policies.evidence_lost_seconds)
    if turn is not None:
        event_log.append(transaction, [_turned(turn, before, watched)])
    keys, turns = keys_after(before.keys, counted.key_sums, now_s, policies.evidence_lost_seconds)
    credentials, changes = credentials_after(before.credentials, counted.credentials, now_s)
    watched = replace(watched, keys=keys, unreached=tuple(counted.unreached), credentials=credentials)
    event_log.append(transaction, [_key_turned(each) for each in turns])
    event_log.append(transaction, [credential_changed(each) for each in changes])
    if counted.ended_keys:
        end_leases_of(transaction, counted.ended_keys, MONITOR)
    watched_json = _WATCHED.dump_json(watched).decode()
    registry_row.store(
        transaction, replace(row, mass_silence=mass_silence_json(silence), watched=watched_json)
    )


def _key_turned(turn: KeyFailuresChange) -> EventDraft:
    payload = ProberFailures(key_id=turn.key, results=turn.results, failed=turn.failed)
    kind = EventType.PROBER_FAILURES_HIGH if turn.is_high else EventType.PROBER_FAILURES_NORMAL
    return EventDraft(type=kind, actor=MONITOR, payload=payload)


def _turned(turn: EvidenceAlert, before: EvidenceWatchState, watched: EvidenceWatchState) -> EventDraft:
    is_lost = turn is EvidenceAlert.LOST
    since_s = (watched if is_lost else before).since_s
    assert since_s is not None  # noqa: S101 - there were such agents, or are
    payload = LostEvidenceChanged(
        agents=watched.agents,
        since=moment(since_s),
        **{reason.value: watched.reasons.get(reason, 0) for reason in PROBER_FAULTS},
    )
    kind = EventType.MONITOR_EVIDENCE_LOST if is_lost else EventType.MONITOR_EVIDENCE_RESTORED
    return EventDraft(type=kind, actor=MONITOR, payload=payload)
