"""State that all server processes share in one row: suspensions and excluded downtime.

The row contains the states of `monitor_health` and `silence` as JSON.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType

from pydantic import TypeAdapter

from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.monitor_payloads import MonitorStateChanged
from lifesign.domain.lifecycle import verdict_suspension
from lifesign.domain.lifecycle.heartbeat_timeout import ExcludedSpan, add_span
from lifesign.domain.lifecycle.verdict import MAX_DAMPING
from lifesign.domain.lifecycle.verdict_suspension import (
    Assessment,
    ExcludedDowntime,
    Monitors,
    MonitorState,
    Track,
)
from lifesign.domain.models.base import MAX_DURATION_SECONDS
from lifesign.registry.status_changes.agent_verdicts import VerdictContext
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.transaction import Transaction

EXCLUDED_FOR_SECONDS = MAX_DURATION_SECONDS * MAX_DAMPING
"""Time for which excluded spans are kept: no assessed silence is longer."""
MAX_SUSPENSIONS = 32
"""Number of the latest suspensions that are kept; at most two matter for one heartbeat timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedTime:
    """Time that does not count as missed heartbeats."""

    spans: tuple[ExcludedSpan, ...] = ()
    """Spans for all agents: the registry's downtime, and jumps of its clock."""
    holds: tuple[ExcludedDowntime, ...] = ()
    """Spans for agents whose verdicts were suspended."""


_EXCLUDED: TypeAdapter[ExcludedTime] = TypeAdapter(ExcludedTime)
_CONFIRMED: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])


def verdict_context(transaction: Transaction) -> VerdictContext:
    """Return the facts for verdicts outside a sweep, by which silence makes no agent unhealthy or dead."""
    return verdict_context_in(registry_row.find(transaction))


def verdict_context_in(row: RegistryRow | None) -> VerdictContext:
    """Return the facts for verdicts outside a sweep from the registry's row.

    There, silence makes no agent unhealthy or dead: only the sweep checks first whether the monitoring is at
    fault. An agent that is found silent is due at the next sweep, since its `assess_at_s` has passed.
    """
    excluded_downtime = ExcludedTime() if row is None else excluded_time_in(row)
    return VerdictContext(
        is_suspended=True, excluded_downtime=excluded_downtime.spans, holds=excluded_downtime.holds
    )


def monitors_in(row: RegistryRow, now_s: float) -> Monitors:
    """Return the states of the monitor from the registry's row, by track; new ones before the first sweep."""
    return (
        verdict_suspension.from_json(row.monitor) if row.monitor else verdict_suspension.new_monitors(now_s)
    )


def excluded_time_in(row: RegistryRow) -> ExcludedTime:
    """Return the excluded time from the registry's row."""
    return _EXCLUDED.validate_json(row.excluded_downtime) if row.excluded_downtime else ExcludedTime()


def monitor_turned(assessment: Assessment, track: Track, actor: str) -> list[EventDraft]:
    """Return the event of an assessment that changed the state of a track; empty otherwise."""
    turned = assessment.event
    if turned is None:
        return []
    payload = MonitorStateChanged(
        track=track,
        previous=turned.previous,
        cause=turned.cause,
        exits=turned.exits,
        limit=turned.limit,
        unwitnessed=turned.unwitnessed,
    )
    return [EventDraft(type=_TURNS[turned.state], actor=actor, payload=payload)]


_TURNS = MappingProxyType(
    {
        MonitorState.SUSPENDED: EventType.MONITOR_SUSPENDED,
        MonitorState.RESUMING: EventType.MONITOR_RESUMING,
        MonitorState.NORMAL: EventType.MONITOR_NORMAL,
    }
)


def with_monitors(row: RegistryRow, monitors: Monitors) -> RegistryRow:
    """Return the row with these states of the monitor."""
    return replace(row, monitor=verdict_suspension.to_json(monitors))


def with_assessment(row: RegistryRow, track: Track, assessment: Assessment, now_s: float) -> RegistryRow:
    """Return the row after an assessment of one track.

    The time of an ended suspension is excluded for heartbeats.

    For probes nothing has to be excluded: only measured failures count as silence.
    """
    row = with_monitors(row, monitors_in(row, now_s).with_track(track, assessment.monitor))
    return (
        with_excluded_downtime(row, assessment.excluded_downtime, now_s) if track is Track.HEARTBEAT else row
    )


def with_span(row: RegistryRow, span: ExcludedSpan, now_s: float) -> RegistryRow:
    """Return the row with one more period that does not count as missed heartbeats of any agent."""
    excluded_downtime = excluded_time_in(row)
    spans = add_span(excluded_downtime.spans, span, now_s, EXCLUDED_FOR_SECONDS)
    return _with_excluded(row, replace(excluded_downtime, spans=spans))


def with_excluded_downtime(row: RegistryRow, excluded: ExcludedDowntime | None, now_s: float) -> RegistryRow:
    """Return the row with the excluded time of an ended suspension; unchanged if it is None."""
    if excluded is None:
        return row
    excluded_downtime = excluded_time_in(row)
    recent_holds = [known for known in excluded_downtime.holds if known.end_s >= now_s - EXCLUDED_FOR_SECONDS]
    return _with_excluded(row, replace(excluded_downtime, holds=(*recent_holds, excluded)[-MAX_SUSPENSIONS:]))


def without_future(row: RegistryRow, now_s: float) -> RegistryRow:
    """Return the row without excluded time in the future: the clock was set back, and will pass it again."""
    excluded_downtime = excluded_time_in(row)
    spans = tuple(
        ExcludedSpan(span.begin_s, min(span.end_s, now_s))
        for span in excluded_downtime.spans
        if span.begin_s < now_s
    )
    holds = tuple(
        replace(excluded, end_s=min(excluded.end_s, now_s))
        for excluded in excluded_downtime.holds
        if excluded.begin_s < now_s
    )
    return _with_excluded(row, ExcludedTime(spans=spans, holds=holds))


def _with_excluded(row: RegistryRow, excluded_downtime: ExcludedTime) -> RegistryRow:
    return replace(row, excluded_downtime=_EXCLUDED.dump_json(excluded_downtime).decode())


def confirmed_in(row: RegistryRow) -> dict[str, float]:
    """Return from the registry's row the network classes with a confirmed outage, each with the time."""
    return _CONFIRMED.validate_json(row.confirmed) if row.confirmed else {}


def confirmed_json(confirmed: dict[str, float]) -> str:
    """Return confirmed network classes as JSON for the registry's row."""
    return _CONFIRMED.dump_json(confirmed).decode()


def with_moved_confirmations(row: RegistryRow, by_s: float, now_s: float) -> RegistryRow:
    """Return the row with the future times of confirmations moved by `by_s`, which is negative."""
    if row.confirmed is None:
        return row
    moved = {name: at_s + by_s if at_s > now_s else at_s for name, at_s in confirmed_in(row).items()}
    return replace(row, confirmed=confirmed_json(moved))
