"""The monitor's API: whether silence is believed, and how an operator ends a suspension."""

from agent_health import monitor_health
from agent_health.access import Action
from agent_health.agent_record import moment
from agent_health.monitor_health import (
    Monitor,
    MonitorPolicy,
    Monitors,
    MonitorState,
    baseline_exits,
    exit_limit,
)
from agent_health.monitor_record import MonitorRecord, Release, ShownSpan, TrackRecord
from agent_health.registry.monitor_row import (
    ExcusedTime,
    excused_in,
    monitor_turned,
    monitors_in,
    with_look,
)
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.silence import Span
from agent_health.storage import event_log, registry_row
from agent_health.storage.database import Transaction
from agent_health.storage.registry_row import RegistryRow

PATH = "/api/v1/monitor"
_WORST_FIRST = (MonitorState.HELD, MonitorState.RECOVERING, MonitorState.NORMAL)


def show_monitor(transaction: Transaction, call: Call) -> Reply:
    """Return whether silence is believed, and what speaks against it."""
    row = registry_row.find(transaction)
    now_s = transaction.now_s
    monitors = monitor_health.new_monitors(now_s) if row is None else monitors_in(row, now_s)
    return Reply(content=_shown(monitors, row, call.policies.mass_exit))


def release_hold(transaction: Transaction, call: Call) -> Reply:
    """Believe silence again, on one track or on both; nothing happens where it is not suspended."""
    asked = call.query_as(Release)
    row = registry_row.lock(transaction)
    now_s = transaction.after_waiting().now_s
    for track in monitor_health.Track:
        if asked.track in {None, track}:
            look = monitor_health.release(monitors_in(row, now_s).of(track), now_s, call.policies.mass_exit)
            row = with_look(row, track, look, now_s)
            event_log.append(transaction, monitor_turned(look, track, call.actor))
    registry_row.store(transaction, row)
    return Reply(content=_shown(monitors_in(row, now_s), row, call.policies.mass_exit))


def _shown(monitors: Monitors, row: RegistryRow | None, policy: MonitorPolicy) -> MonitorRecord:
    excused = ExcusedTime() if row is None else excused_in(row)
    spans = [*excused.spans, *(Span(hold.begin_s, hold.end_s) for hold in excused.holds)]
    tracks = {track: monitors.of(track) for track in monitor_health.Track}
    worst = min(tracks.values(), key=lambda monitor: (_WORST_FIRST.index(monitor.state), monitor.since_s))
    return MonitorRecord(
        state=worst.state,
        since=moment(worst.since_s),
        tracks={track: _track(monitor, policy) for track, monitor in tracks.items()},
        excused=[ShownSpan(begin=moment(span.begin_s), end=moment(span.end_s)) for span in sorted(spans)],
        swept_at=None if row is None or row.swept_at_s is None else moment(row.swept_at_s),
    )


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
        summary="Show whether silence is believed, and of which agents nothing is known",
        action=Action.READ_MONITOR,
        deed=show_monitor,
        is_write=False,
        answer=MonitorRecord,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/release",
        summary="End the suspension of verdicts by silence",
        action=Action.RELEASE_HOLD,
        deed=release_hold,
        query=Release,
        answer=MonitorRecord,
    ),
)
