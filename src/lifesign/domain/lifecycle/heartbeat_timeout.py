"""Heartbeat timeouts, and clock drift.

The time without a heartbeat is the time since the last liveness signal, without excluded spans: the
registry's own downtime, a suspension, a jump of the clock. All times are seconds since the epoch by the
registry's own clock (RFC-0016 4.5): an agent's clock is compared for drift, and decides nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.errors import InvalidValue

MAX_SPANS: Final = 32
"""Maximum number of excluded spans. Above it, two spans are joined."""
MAX_CLOCK_DIFFERENCE_S: Final = 5.0
"""Maximum difference of two clocks' progress between two sweeps that is not a jump."""
MISSED_SWEEPS: Final = 3
"""A gap of more than this many sweep periods is downtime.

With fewer, one slow sweep would count as downtime, and a slow server would excuse every timeout; with more, a
short outage of the registry would count against agents with short timeouts.
"""
COUNTED_SWEEPS: Final = 5
"""Number of the last sweeps whose shortest shows how long a sweep takes: a stall makes only some longer."""
MAX_SWEEP_S: Final = 5.0
"""A sweep that takes longer has stalled, however often this happens."""
MIN_DOWNTIME_S: Final = 1.0
"""A shorter gap between sweeps is no downtime: a busy machine is not unreachable."""
MIN_REPORTED_DOWNTIME_S: Final = 10.0
"""A shorter downtime is excluded without an event: on a busy machine there is one a minute."""
MIN_WAIT_S: Final = 0.5
"""Minimum delay of a heartbeat by the registry itself that is excused."""
DRIFT_INTERVALS: Final = 2
"""A heartbeat's own time may differ from ours by this many of its intervals (RFC-0016 4.5)."""


@dataclass(frozen=True, slots=True, order=True)
class ExcludedSpan:
    """Span of time that does not count as silence. One that ends before it begins excludes nothing."""

    begin_s: float
    end_s: float


@fast_dataclass()
class Thresholds:
    """Times of silence after which an agent is unhealthy or dead, in seconds (RFC-0016 1.1).

    The time to unhealthy is at least twice the interval, and the time to dead at least twice that (RFC-0016
    3.3); other values raise InvalidValue with the JSON name.
    """

    interval_s: float = 30.0
    """Interval of the agent's heartbeats."""
    unhealthy_after_s: float = 90.0
    """Longer silence is unhealthy; exactly this much is not."""
    dead_after_s: float = 300.0
    """Longer silence is dead; exactly this much is not."""

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < inf:
            raise InvalidValue("interval_seconds", self.interval_s, "a time above 0")
        if not 2 * self.interval_s <= self.unhealthy_after_s < inf:
            expected = f"at least twice interval_seconds, {2 * self.interval_s:g}"
            raise InvalidValue("unhealthy_after_seconds", self.unhealthy_after_s, expected)
        if not 2 * self.unhealthy_after_s <= self.dead_after_s < inf:
            expected = f"at least twice unhealthy_after_seconds, {2 * self.unhealthy_after_s:g}"
            raise InvalidValue("dead_after_seconds", self.dead_after_s, expected)


@fast_dataclass()
class ExtendedThresholds:
    """Thresholds for the silence in which shorter ones were set: in force until the next heartbeat."""

    interval_s: float
    unhealthy_after_s: float
    dead_after_s: float


def extended(
    in_force: Thresholds | ExtendedThresholds, new: Thresholds, silent_s: float
) -> ExtendedThresholds | None:
    """Return the thresholds for a silence of so far `silent_s` after a change; None if they are the new ones.

    A new threshold counts from the change on: the silence before it was allowed. But no agent is found later
    than without the change, unless the new threshold is longer.
    """

    def longer_s(in_force_s: float, new_s: float) -> float:
        return max(new_s, min(in_force_s, silent_s + new_s))

    longer = ExtendedThresholds(
        longer_s(in_force.interval_s, new.interval_s),
        longer_s(in_force.unhealthy_after_s, new.unhealthy_after_s),
        longer_s(in_force.dead_after_s, new.dead_after_s),
    )
    unchanged = ExtendedThresholds(new.interval_s, new.unhealthy_after_s, new.dead_after_s)
    return None if longer == unchanged else longer


PROBE_THRESHOLDS: Final = Thresholds(interval_s=300.0, unhealthy_after_s=900.0, dead_after_s=3600.0)
"""Thresholds for an agent that is only probed: at most every 300 s (draft 7)."""


def silent_for_s(last_s: float, now_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> float:
    """Return how long an agent has been silent, without the excluded spans.

    Also 0 if the last signal lies in the future: a clock that was set back causes no timeout. The spans may
    overlap, have any order, and reach into the future.
    """
    silent_s = now_s - last_s
    for span in _merged(excluded_downtime):
        silent_s -= max(0.0, min(span.end_s, now_s) - max(span.begin_s, last_s))
    return max(0.0, silent_s)


def deadline_s(last_s: float, threshold_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> float:
    """Return the time at which an agent that stays silent exceeds the threshold.

    `now_s > deadline_s(...)` is `silent_for_s(...) > threshold_s`, free of rounding: the strict
    rule of RFC-0016 4.5 as one moment that can be stored and compared.
    """
    moment_s = last_s + threshold_s
    for span in _merged(excluded_downtime):
        # A span that begins at exactly this moment counts: the silence does not grow during it.
        if span.end_s > last_s and span.begin_s <= moment_s:
            moment_s += span.end_s - max(span.begin_s, last_s)
    return moment_s


def add_span(
    spans: Sequence[ExcludedSpan], span: ExcludedSpan, now_s: float, keep_s: float
) -> tuple[ExcludedSpan, ...]:
    """Return the spans with one more, sorted, and overlapping ones merged: at most MAX_SPANS.

    Spans that ended more than `keep_s` ago are dropped; no threshold in use may be longer than that. Beyond
    MAX_SPANS two neighbours are joined: the later one is moved to the end of the earlier one. So no running
    time is ever excluded, and an agent whose silence began between the two loses the length of the later one.
    """
    recent_spans = [known for known in _merged([*spans, span]) if known.end_s >= now_s - keep_s]
    while len(recent_spans) > MAX_SPANS:
        at = _closest(recent_spans, now_s)
        earlier, later = recent_spans[at : at + 2]
        end_s = earlier.end_s + later.end_s - later.begin_s
        recent_spans[at : at + 2] = [ExcludedSpan(earlier.begin_s, end_s)]
    return tuple(recent_spans)


def sweep_cadence_s(period_s: float, durations_s: Sequence[float]) -> float:
    """Return the time from one sweep to the next, with the pause `period_s` between them.

    `durations_s` are those of this process's last sweeps. Before COUNTED_SWEEPS of them are known, it is the
    pause alone: a process that has just started does not know whether its first sweeps were slow or stalled.
    """
    if len(durations_s) < COUNTED_SWEEPS:
        return period_s
    return period_s + min(*durations_s[-COUNTED_SWEEPS:], MAX_SWEEP_S)


def downtime(
    last_alive_s: float, now_s: float, cadence_s: float, *, has_started: bool = False
) -> ExcludedSpan | None:
    """Return the span in which the registry made no sweep; None if it is too short to count.

    `last_alive_s` is when the last sweep was at work, `cadence_s` the time from one sweep to the next. With
    `has_started`, this is the first sweep of a process: no process may have run since the last sweep.
    """
    least_s = MIN_DOWNTIME_S if has_started else max(MIN_DOWNTIME_S, MISSED_SWEEPS * cadence_s)
    return ExcludedSpan(last_alive_s, now_s) if now_s - last_alive_s > least_s else None


def clock_jump_s(wall_elapsed_s: float, monotonic_elapsed_s: float) -> float:
    """Return how far the wall clock was set between two sweeps; 0 for at most MAX_CLOCK_DIFFERENCE_S.

    Above 0 it jumped ahead, and that much time before now is to be excluded. Below 0 it was set back: nothing
    needs to be excluded, since that causes no timeout.
    """
    jump_s = wall_elapsed_s - monotonic_elapsed_s
    return jump_s if abs(jump_s) > MAX_CLOCK_DIFFERENCE_S else 0.0


def clock_jump_since_s(
    gap_s: float, wall_elapsed_s: float | None = None, monotonic_elapsed_s: float = 0.0
) -> float:
    """Return how far the clock was set since the last sweep: ahead if above 0, back if below.

    Several processes sweep, and each compares the two clocks between its own sweeps: its result
    (`wall_elapsed_s` is None before its first sweep) may lie before the last sweep of another process, which
    has reported it. That sweep was `gap_s` ago by the clock; no jump is larger than that gap.
    """
    measured_s = 0.0 if wall_elapsed_s is None else clock_jump_s(wall_elapsed_s, monotonic_elapsed_s)
    if gap_s < -MAX_CLOCK_DIFFERENCE_S:
        # Measured by the elapsed time, which is known up to this process's last sweep, it was set back
        # further.
        return min(max(measured_s, gap_s - monotonic_elapsed_s), gap_s)
    jump_s = min(measured_s, gap_s)
    return jump_s if jump_s > MAX_CLOCK_DIFFERENCE_S else 0.0


def may_have_jumped(swept_at_s: float | None, now_s: float) -> bool:
    """Return whether the clock may have been set ahead since the last sweep: none has run for a while.

    The next sweep decides, and moves the stored times.
    """
    return swept_at_s is not None and now_s - swept_at_s > MAX_CLOCK_DIFFERENCE_S


def was_set_back(swept_at_s: float | None, now_s: float) -> bool:
    """Return whether the clock was set back since the last sweep.

    The next sweep moves the stored ends, and would move an end that is computed now, too.
    """
    return swept_at_s is not None and now_s - swept_at_s < -MAX_CLOCK_DIFFERENCE_S


def began_before_jump_s(jump_s: float, now_s: float) -> float:
    """Return the time before which a lease began that began before the clock jumped, found at `now_s`.

    It lies in the middle between the times by the former clock, which end at `now_s - jump_s`, and those by
    the new one, which begin shortly before `now_s`. After a clock was set back (`jump_s` below 0) no lease
    begins before a sweep has found it: `inf`.
    """
    return now_s - jump_s / 2 if jump_s > 0 else inf


def has_drifted(client_s: float, server_s: float, interval_s: float) -> bool:
    """Return whether an agent's clock differs from the registry's by over two intervals (RFC-0016 4.5)."""
    return abs(client_s - server_s) > DRIFT_INTERVALS * interval_s


def drift_s(client_s: float, server_s: float, waited_s: float) -> float:
    """Return by how much an agent's clock is certainly wrong, positive if ahead; 0 if it may be right.

    Its timestamp was written between `waited_s` ago and now: the request may have waited for the server.
    """
    if client_s > server_s:
        return client_s - server_s
    waited_s = waited_s if waited_s > MIN_WAIT_S else 0.0
    return min(0.0, client_s - (server_s - waited_s))


def is_drifting(
    client_s: float, server_s: float, interval_s: float, waited_s: float, *, was_drifting: bool
) -> bool:
    """Return whether to report an agent's clock as wrong, now or still.

    As before (`was_drifting`) if that depends on the delay of the request.
    """
    if has_drifted(drift_s(client_s, server_s, waited_s), 0.0, interval_s):
        return True
    return was_drifting and has_drifted(client_s, server_s, interval_s)


def _merged(spans: Iterable[ExcludedSpan]) -> list[ExcludedSpan]:
    """Return the same time as sorted spans that neither overlap nor touch."""
    joined: list[ExcludedSpan] = []
    for span in sorted(span for span in spans if span.end_s > span.begin_s):
        if joined and span.begin_s <= joined[-1].end_s:
            joined[-1] = ExcludedSpan(joined[-1].begin_s, max(joined[-1].end_s, span.end_s))
        else:
            joined.append(span)
    return joined


def _closest(spans: Sequence[ExcludedSpan], now_s: float) -> int:
    """Return the index of the earlier of two neighbours that are closest, in relation to their age.

    The running time between them is compared with the running time since the earlier one, so that the spans
    since the last signal of a working agent are joined last.
    """
    running_s, ratios = max(0.0, now_s - spans[-1].end_s), []
    for earlier, later in reversed(list(pairwise(spans))):
        between_s = later.begin_s - earlier.end_s
        running_s += between_s
        ratios.append(between_s / running_s)
    return len(ratios) - 1 - ratios.index(min(ratios))
