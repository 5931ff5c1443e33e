"""The monitor's API: the state of the verdict suspension, and decisions of an operator.

An operator can end a suspension, and confirm that agents may be down where no witness proves it.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from lifesign.domain.access.permissions import Permission
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.monitor_payloads import OutageConfirmed
from lifesign.domain.lifecycle import verdict_suspension
from lifesign.domain.lifecycle.heartbeat_timeout import ExcludedSpan
from lifesign.domain.lifecycle.monitoring_alerts import DisallowedTargets, EvidenceWatchState
from lifesign.domain.lifecycle.verdict_suspension import (
    Monitor,
    MonitorPolicy,
    Monitors,
    MonitorState,
    baseline_exits,
    exit_limit,
)
from lifesign.domain.models.base import moment
from lifesign.domain.models.monitor import (
    Confirmation,
    Confirmed,
    DisallowedTargetsShown,
    LostEvidence,
    MonitorRecord,
    MonitorRelease,
    ShownSpan,
    TrackRecord,
)
from lifesign.domain.targets.target import SHARDS
from lifesign.registry.errors import NetworkClassNotFound, TargetGone, TargetNotFound
from lifesign.registry.probing.evidence_watch import watched_in
from lifesign.registry.probing.prober_credentials import CredentialFacts, all_missing, shown_faults
from lifesign.registry.probing.reachability_witnesses import mass_silence_in
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.status_changes.monitor_row import (
    ExcludedTime,
    confirmed_in,
    confirmed_json,
    excluded_time_in,
    monitor_turned,
    monitors_in,
    with_assessment,
)
from lifesign.registry.status_changes.sweep_gap import give_drains_suspended_time
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.probing import liveness, probers
from lifesign.storage.targets import target_rows

PATH = "/api/v1/monitor"
MAX_CONFIRMED_CLASSES = 100
"""Number of the latest confirmed classes that are kept: every answer to a prober contains them."""
_WORST_FIRST = (MonitorState.SUSPENDED, MonitorState.RESUMING, MonitorState.NORMAL)


def show_monitor(transaction: Transaction, call: Call) -> OperationReply:
    """Return whether verdicts are suspended, and the reasons."""
    row = registry_row.find(transaction)
    now_s = transaction.now_s
    monitors = verdict_suspension.new_monitors(now_s) if row is None else monitors_in(row, now_s)
    return OperationReply(content=_shown(transaction, monitors, row, call.policies.mass_exit))


def release_suspension(transaction: Transaction, call: Call) -> OperationReply:
    """End the suspension of one track or of both; nothing changes if there is none."""
    body = call.query_as(MonitorRelease)
    row = registry_row.lock(transaction)
    now_s = transaction.after_waiting().now_s
    for track in verdict_suspension.Track:
        if body.track in {None, track}:
            look = verdict_suspension.release(
                monitors_in(row, now_s).of(track), now_s, call.policies.mass_exit
            )
            row = with_assessment(row, track, look, now_s)
            give_drains_suspended_time(transaction, track, look)
            event_log.append(transaction, monitor_turned(look, track, call.actor))
    registry_row.store(transaction, row)
    shown = _shown(transaction, monitors_in(row, now_s), row, call.policies.mass_exit)
    return OperationReply(content=shown)


def confirm_outage(transaction: Transaction, call: Call) -> OperationReply:
    """Confirm an outage: failures of a network class or a target count without a witness from now on.

    The confirmation concerns only targets that have given no liveness signal since. If a target answers
    later, the confirmation no longer concerns it, so you need not revert it. A repeated confirmation replaces
    the time. NetworkClassNotFound, TargetNotFound, TargetGone.
    """
    body = call.body_as(Confirmation)
    if body.network_class is not None:
        now_s = _confirm_class(transaction, body.network_class)
    else:
        now_s = _confirm_target(transaction, body.agent_id or "")
    payload = OutageConfirmed(network_class=body.network_class, agent_id=body.agent_id)
    draft = EventDraft(
        type=EventType.MONITOR_CONFIRMED, actor=call.actor, payload=payload, agent_id=body.agent_id
    )
    event_log.append(transaction, [draft])
    answer = Confirmed(network_class=body.network_class, agent_id=body.agent_id, confirmed_at=moment(now_s))
    return OperationReply(content=answer)


def _confirm_class(transaction: Transaction, name: str) -> float:
    existing = liveness.classes(transaction)
    if name not in existing:
        raise NetworkClassNotFound(name, existing)
    row = registry_row.lock(transaction)
    now_s = transaction.after_waiting().now_s
    confirmed = {**confirmed_in(row), name: now_s}
    latest = sorted(confirmed, key=lambda each: (-confirmed[each], each))[:MAX_CONFIRMED_CLASSES]
    text = confirmed_json({each: confirmed[each] for each in sorted(latest)})
    registry_row.store(transaction, replace(row, confirmed=text))
    return now_s


def _confirm_target(transaction: Transaction, subject_id: str) -> float:
    """Confirm a target, or all targets that an agent is probed at."""
    known = target_rows.find(transaction, subject_id)
    if known is None and not target_rows.of_agent(transaction, subject_id):
        raise TargetNotFound(subject_id)
    version = target_rows.next_version(transaction)
    numbers = target_rows.of_agent(transaction, subject_id)
    if not numbers:
        target = target_rows.find(transaction, subject_id)
        if target is None or target.gone_reason is None:
            raise TargetNotFound(subject_id)
        raise TargetGone(subject_id, target.gone_reason)
    now_s = transaction.after_waiting().now_s
    target_rows.confirm(transaction, numbers, now_s, version)
    return now_s


def _lost_evidence(watched: EvidenceWatchState) -> LostEvidence | None:
    if watched.since_s is None:
        return None
    return LostEvidence(
        agents=watched.agents,
        reasons=dict(watched.reasons),
        since=moment(watched.since_s),
        is_reported=watched.is_reported,
    )


def _shown(
    transaction: Transaction, monitors: Monitors, row: RegistryRow | None, policy: MonitorPolicy
) -> MonitorRecord:
    watched = EvidenceWatchState() if row is None else watched_in(row)
    credentials = CredentialFacts(
        living=probers.running(transaction, SHARDS),
        ended=probers.ended(transaction),
        watched=watched.credentials,
        now_s=transaction.now_s,
    )
    excluded_downtime = ExcludedTime() if row is None else excluded_time_in(row)
    spans = [
        *excluded_downtime.spans,
        *(ExcludedSpan(hold.begin_s, hold.end_s) for hold in excluded_downtime.holds),
    ]
    tracks = {track: monitors.of(track) for track in verdict_suspension.Track}
    worst = min(tracks.values(), key=lambda monitor: (_WORST_FIRST.index(monitor.state), monitor.since_s))
    return MonitorRecord(
        state=worst.state,
        since=moment(worst.since_s),
        tracks={track: _track(monitor, policy) for track, monitor in tracks.items()},
        silent_classes={} if row is None else _moments(mass_silence_in(row).classes),
        confirmed_classes={} if row is None else _moments(confirmed_in(row)),
        lost_evidence=_lost_evidence(watched),
        disallowed_targets=[_disallowed(each) for each in watched.unreached],
        credential_faults=shown_faults(watched.credentials),
        missing_credentials=all_missing(credentials),
        excluded_downtime=[
            ShownSpan(begin=moment(span.begin_s), end=moment(span.end_s)) for span in sorted(spans)
        ],
        swept_at=None if row is None or row.swept_at_s is None else moment(row.swept_at_s),
    )


def _disallowed(each: DisallowedTargets) -> DisallowedTargetsShown:
    return DisallowedTargetsShown(
        holder=each.holder, network_class=each.network_class, targets=each.targets, reached_by=each.reached_by
    )


def _moments(times_s: Mapping[str, float]) -> dict[str, datetime]:
    return {name: moment(at_s) for name, at_s in sorted(times_s.items())}


def _track(monitor: Monitor, policy: MonitorPolicy) -> TrackRecord:
    return TrackRecord(
        state=monitor.state,
        since=moment(monitor.since_s),
        exits=monitor.exits_this_cadence,
        limit=exit_limit(monitor, policy),
        baseline=baseline_exits(monitor),
        unwitnessed=monitor.unwitnessed,
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="Show the state of the monitor: suspensions, and agents without evidence",
        action=Permission.READ_MONITOR,
        function=show_monitor,
        is_write=False,
        answer=MonitorRecord,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/release",
        summary="End the suspension of verdicts",
        action=Permission.RELEASE_SUSPENSION,
        function=release_suspension,
        query=MonitorRelease,
        answer=MonitorRecord,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/confirm",
        summary="Confirm that a network class or an agent may be down: its failures need no witness",
        action=Permission.CONFIRM_OUTAGE,
        function=confirm_outage,
        body=Confirmation,
        example={"network_class": "10.1.0.0/16"},
        answer=Confirmed,
        errors=(404, 410),
    ),
)
