"""Time without a sweep, and jumps of the clock.

Time between two sweeps beyond the cadence is not the agents' fault and is excluded; deadlines in it move.
"""

from dataclasses import dataclass, replace

from lifesign.domain.events.agent_payloads import MaintenanceChanged, StatusOverrideChanged
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.monitor_payloads import MonitorClockJump, MonitorDowntime
from lifesign.domain.lifecycle.heartbeat_timeout import (
    MIN_REPORTED_DOWNTIME_S,
    ExcludedSpan,
    began_before_jump_s,
    clock_jump_since_s,
    downtime,
)
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict_suspension import Assessment, Track
from lifesign.domain.models.base import moment
from lifesign.registry.status_changes.agent_status import MONITOR
from lifesign.registry.status_changes.monitor_row import with_moved_confirmations, with_span, without_future
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.probing import prober_result_counts
from lifesign.storage.whole_database import clock_shift
from lifesign.storage.whole_database.clock_shift import MovedEnd


@dataclass(frozen=True, slots=True)
class Reference:
    """The database's clock and this process's monotonic clock at one moment."""

    wall_s: float
    """The database's."""
    monotonic_s: float
    """This process's monotonic clock, which cannot be set."""


def gap_jump_s(gap_s: float, before: Reference | None, now: Reference) -> float:
    """Return how far the clock jumped since the last sweep of any process, `gap_s` ago by the clock."""
    if before is None:
        return clock_jump_since_s(gap_s)
    return clock_jump_since_s(
        gap_s, now.wall_s - before.wall_s, max(0.0, now.monotonic_s - before.monotonic_s)
    )


def note_gap(
    transaction: Transaction,
    row: RegistryRow,
    last_s: float,
    jump_s: float,
    cadence_s: float,
    *,
    has_started: bool,
) -> tuple[RegistryRow, list[EventDraft]]:
    """Exclude the time without a sweep; return the changed row and its events.

    A short stall is excluded like a long one, but has no event: `GET /api/v1/monitor` shows it. Nor has a gap
    that only the start of this process (`has_started`) makes suspicious: another process may have run in it.

    Draining agents get that time back. Leases, commands, maintenances and overrides get back only a jump of
    the clock. During an outage, the clocks of lease holders continued, and the holders have stopped (protocol
    6, 12).
    """
    now_s = transaction.now_s
    drafts: list[EventDraft] = []
    if jump_s > 0:
        row = with_span(row, ExcludedSpan(now_s - jump_s, now_s), now_s)
        drafts += _keep_remaining_times(transaction, jump_s, last_s)
    gap = downtime(last_s, now_s - jump_s, cadence_s, has_started=has_started)
    if gap is not None:
        row = with_span(row, gap, now_s)
        clock_shift.move_drains(transaction, gap.end_s - gap.begin_s, last_s)
        is_certain = downtime(last_s, now_s - jump_s, cadence_s) is not None
        if is_certain and gap.end_s - gap.begin_s >= MIN_REPORTED_DOWNTIME_S:
            payload = MonitorDowntime(begin=moment(gap.begin_s), end=moment(gap.end_s))
            drafts.append(EventDraft(type=EventType.MONITOR_DOWNTIME, actor=MONITOR, payload=payload))
    return row, drafts


def give_drains_suspended_time(transaction: Transaction, track: Track, assessment: Assessment) -> None:
    """Give draining agents the time of a suspension that has ended, in which they could not report."""
    suspended = assessment.excluded_downtime
    if track is Track.HEARTBEAT and suspended is not None:
        clock_shift.move_drains(transaction, suspended.end_s - suspended.begin_s, suspended.begin_s)


def move_some_agents_back(transaction: Transaction, by_s: float, *, after: int, limit: int) -> int | None:
    """Correct future times of some agents; see `clock_shift.move_agents_back`."""
    return clock_shift.move_agents_back(transaction, by_s, transaction.now_s, after=after, limit=limit)


def move_some_targets_back(transaction: Transaction, by_s: float, *, after: int, limit: int) -> int | None:
    """Correct future times of some targets' results; see `clock_shift.move_targets_back`."""
    return clock_shift.move_targets_back(transaction, by_s, transaction.now_s, after=after, limit=limit)


def note_set_back(transaction: Transaction, by_s: float) -> None:
    """Correct the remaining times after the clock was set back, and log it; call it after all agents.

    Nothing if another process has done it.
    """
    row = registry_row.lock(transaction)
    now_s = transaction.now_s
    if row.swept_at_s is None or row.swept_at_s <= now_s:
        return
    drafts = _keep_remaining_times(transaction, by_s, row.swept_at_s)
    clock_shift.move_webhooks_back(transaction, by_s, now_s)
    row = with_moved_confirmations(without_future(row, now_s), by_s, now_s)
    registry_row.store(transaction, replace(row, swept_at_s=now_s, sweeper_until_s=now_s))
    event_log.append(transaction, drafts)


def _keep_remaining_times(transaction: Transaction, jump_s: float, last_s: float) -> list[EventDraft]:
    """Move the ends that had not come at the last sweep by a jump of the clock; return its events.

    The log must have the new ends of maintenances and overrides: `lifesign events verify` compares them.
    """
    clock_shift.move_drains(transaction, jump_s, last_s)
    moved = clock_shift.move_decisions(transaction, jump_s, last_s)
    clock_shift.move_leases(transaction, jump_s, last_s, began_before_jump_s(jump_s, transaction.now_s))
    clock_shift.move_commands(transaction, jump_s, last_s)
    prober_result_counts.move(transaction, jump_s, transaction.now_s)
    payload = MonitorClockJump(jump_seconds=round(jump_s, 3))
    jump = EventDraft(type=EventType.MONITOR_CLOCK_JUMP, actor=MONITOR, payload=payload)
    direction = "forward" if jump_s > 0 else "back"
    reason = f"the clock of the database was set {direction} by {abs(jump_s):.0f} s"
    return [jump, *(_end_moved(each, reason) for each in moved)]


def _end_moved(moved: MovedEnd, reason: str) -> EventDraft:
    agent_id, until = moved.agent_id, moment(moved.until_s)
    payload: MaintenanceChanged | StatusOverrideChanged
    if moved.override_status is None:
        kind = EventType.AGENT_MAINTENANCE_CHANGED
        payload = MaintenanceChanged(agent_id=agent_id, until=until, reason=reason)
    else:
        kind, status = EventType.AGENT_OVERRIDE_CHANGED, Status(moved.override_status)
        payload = StatusOverrideChanged(agent_id=agent_id, status=status, until=until, reason=reason)
    return EventDraft(type=kind, actor=MONITOR, payload=payload, agent_id=agent_id)
