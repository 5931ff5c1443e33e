"""Mass exit: suspension of verdicts while more agents fall silent at once than is believable.

If many agents fall silent at once, the monitoring is probably at fault. Then silence makes no agent unhealthy
or dead until the wave is over, an operator ends the suspension, or `max_suspension_seconds` have passed.
Agents monitored by heartbeat and by probe are counted, suspended and released separately.

Counted are the agents that silence would make unhealthy or dead now, not their share of all agents. Most
targets of a directory are dead, so a share would always look alarming (protocol, "The monitor itself may be
sick").

Missed heartbeats have witnesses too. If no agent at all was heard since an agent's first missed heartbeat was
due, although another agent's heartbeat fell due as well, the registry's own inbound side may be cut. The same
holds if no agent was heard since both had missed a heartbeat. If the registry itself refused heartbeats or
connections since then, those of the agent may have been among them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import TypeAdapter

from lifesign.errors import InvalidValue


def _within(name: str, given: float, least: float, most: float) -> None:
    if not least <= given <= most:
        raise InvalidValue(name, given, f"{least:g} to {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPolicy:
    """Rules for suspending verdicts and for resuming them; InvalidValue outside the allowed range."""

    cadence_seconds: float = 60.0
    """The time in which exits are counted together, 1 to 3600 s. A longer time detects slower waves, but
    notices later that they are over. It begins and ends at fixed moments: up to twice the limit may exit in a
    wave that crosses such a moment.
    """
    min_exits: int = 20
    """Verdicts are never suspended for so few exits per cadence; from 1. limit = max(min_exits, factor ·
    baseline). A lower number protects small fleets, which then wait `max_suspension_seconds` for each real
    crash of that many agents.
    """
    factor: float = 5.0
    """A wave is more exits in a cadence than this multiple of the baseline, from `end_factor`.

    A lower value detects smaller failures of the monitoring, and delays more verdicts.
    """
    end_factor: float = 2.0
    """A wave is over when fewer agents wait than max(min_exits, end_factor · baseline), from 1. The distance
    to `factor` prevents a suspension from beginning again just after it ended.
    """
    quiet_cadences: int = 2
    """Number of quiet cadences in a row that end a suspension, 1 to 100. Higher values suspend for longer."""
    max_suspension_seconds: float = 900.0
    """Time after which a suspension ends and the timeouts of waiting agents count, one cadence to 86400.

    This delays the detection of a real mass death, and covers a fault of the registry of that length. An
    agent is delayed by one suspension; by two, if it timed out during the first.
    """
    baseline_cadences: int = 10
    """Number of cadences over which the baseline is averaged, 1 to 100. Lower values follow growth faster."""

    proven_seconds: float = 300.0
    """Time for which an agent must have sent liveness signals to count for a suspension, 0 to 86400 s.

    Otherwise a caller that may register agents could suspend all verdicts with agents that never send
    heartbeats. A longer time makes that harder, but leaves a new fleet without protection for as long.
    """

    def __post_init__(self) -> None:
        _within("proven_seconds", self.proven_seconds, 0, 86_400)
        _within("cadence_seconds", self.cadence_seconds, 1, 3600)
        _within("min_exits", self.min_exits, 1, 10**9)
        _within("end_factor", self.end_factor, 1, 10**6)
        _within("factor", self.factor, self.end_factor, 10**6)
        _within("quiet_cadences", self.quiet_cadences, 1, 100)
        _within("max_suspension_seconds", self.max_suspension_seconds, self.cadence_seconds, 86_400)
        _within("baseline_cadences", self.baseline_cadences, 1, 100)


DEFAULT_POLICY = MonitorPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """Overdue heartbeats of other proven agents."""

    due_s: float
    """When the last of them was due."""
    missed_s: float | None
    """When the agent that fell silent last missed its first one; None if they may all just be late."""


class Track(StrEnum):
    """Kind of monitoring. Agents of one track are counted together."""

    HEARTBEAT = "heartbeat"
    """Agents with heartbeats, including those monitored by both."""
    PROBE = "probe"


class MonitorState(StrEnum):
    """Whether verdicts by silence are made, suspended, or about to resume."""

    NORMAL = "normal"
    """Silence counts."""
    SUSPENDED = "suspended"
    """Timeouts make no agent unhealthy or dead, except agents that were suspended before."""
    RESUMING = "resuming"
    """Verdicts are made again; agents that were suspended and are still silent exit."""


class MonitorChange(StrEnum):
    """Reason of a change of the monitor's state, as events name it. The list is closed."""

    MASS_EXIT = "mass_exit"
    """normal or resuming → suspended: more would leave than is believable, or nothing bears them out."""
    MASS_EXIT_OVER = "mass_exit_over"
    """suspended → resuming: few agents were silent for `quiet_cadences`, so the fault was the monitoring's.
    """
    MAX_SUSPENSION = "max_suspension"
    """suspended → resuming: the maximum time is over, so the silence counts."""
    RELEASED = "released"
    """suspended → resuming: an operator ended the suspension."""
    COHORT_PASSED = "cohort_passed"
    """resuming → normal: for `quiet_cadences` no agent of the suspension was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """State of the verdicts by silence on one track, which all server processes share."""

    since_s: float
    """When the state began."""
    cadence_began_s: float
    state: MonitorState = MonitorState.NORMAL
    exits_this_cadence: int = 0
    """Number of exits without those of the cohort; while suspended, number of waiting agents."""
    baseline: tuple[int, ...] = ()
    """Exits of the last completed normal cadences, the newest last; or those learned from a suspension."""
    quiet_cadences: int = 0
    """Completed since the wave, or the cohort, was last seen; 0 while normal."""
    is_cadence_quiet: bool = True
    cohort_before_s: float = 0.0
    """Agents with a last liveness signal before this had their suspension, and get no second one.

    0 for none.
    """
    newest_waiting_s: float = 0.0
    """Last liveness signal of the waiting agent that timed out last; 0 unless suspended."""
    newcomers: int = 0
    """Number of waiting agents that fell silent after the suspension began; 0 without a suspension."""
    unwitnessed: int = 0
    """Number of waiting agents without a witness; 0 without a suspension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitors:
    """The monitors of both tracks, stored together."""

    heartbeat: Monitor
    probe: Monitor

    def of(self, track: Track) -> Monitor:
        """Return the monitor of this track."""
        return self.heartbeat if track is Track.HEARTBEAT else self.probe

    def with_track(self, track: Track, monitor: Monitor) -> "Monitors":
        """Return the monitors with that of one track replaced."""
        return Monitors(
            heartbeat=monitor if track is Track.HEARTBEAT else self.heartbeat,
            probe=monitor if track is Track.PROBE else self.probe,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorEvent:
    """A change of the monitor's state, for the event log."""

    previous: MonitorState
    state: MonitorState
    cause: MonitorChange
    at_s: float
    exits: int
    """Agents that would have exited, or still wait, without the cohort."""
    limit: int
    """Maximum number of exits in one cadence without a suspension."""
    unwitnessed: int = 0
    """Number of exits without a witness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedDowntime:
    """A past suspension of verdicts: its time does not count as silence of the agents concerned."""

    begin_s: float
    end_s: float
    cohort_before_s: float
    """Agents with a last liveness signal before this were not suspended, and are not excused."""

    def seconds(self, last_liveness_s: float) -> float:
        """Return how many seconds since an agent's last liveness signal this suspension excludes.

        The registry's own downtime may lie in the same span: it must not be excluded twice.
        """
        if last_liveness_s < self.cohort_before_s:
            return 0.0
        return max(0.0, self.end_s - max(self.begin_s, last_liveness_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Result of `assess` for one sweep: whether verdicts are suspended, and what to store and log."""

    monitor: Monitor
    is_suspended: bool
    """Also at the assessment that ends a suspension: exits are assessed again without the excluded time."""
    cohort_before_s: float
    event: MonitorEvent | None = None
    excluded_downtime: ExcludedDowntime | None = None
    """Set once, when a suspension ends. At most two of these concern one silence."""

    def may_change(self, last_liveness_s: float) -> bool:
        """Return whether silence since `last_liveness_s` may make an agent unhealthy or dead."""
        return not self.is_suspended or last_liveness_s < self.cohort_before_s


def new_monitor(now_s: float) -> Monitor:
    """Return the monitor of a track on which nothing has happened yet."""
    return Monitor(since_s=now_s, cadence_began_s=now_s)


def new_monitors(now_s: float) -> Monitors:
    """Return the monitors of both tracks before anything has happened."""
    return Monitors(heartbeat=new_monitor(now_s), probe=new_monitor(now_s))


def is_unwitnessed(
    missed_s: float,
    heard_at_s: float | None,
    companion: Companion | None,
    refused_at_s: float | None,
) -> bool:
    """Return whether nothing confirms that an agent missed the heartbeat that was due at `missed_s`.

    `heard_at_s` is the last authenticated request of any agent, `companion` what other proven agents missed,
    `refused_at_s` the last heartbeat or connection that the registry refused; None: never. A request from
    before a companion fell silent too confirms nothing: the network may have failed for one agent after the
    other. A single agent has no companion, and is assessed by itself.
    """
    if refused_at_s is not None and refused_at_s >= missed_s:
        return True
    if companion is None or companion.due_s < missed_s:
        return False
    since_s = missed_s if companion.missed_s is None else max(missed_s, companion.missed_s)
    return heard_at_s is None or heard_at_s < since_s


def baseline_exits(monitor: Monitor) -> float:
    """Usual number of agents that fall silent per cadence; 0.0 before the first cadence is complete."""
    return sum(monitor.baseline) / len(monitor.baseline) if monitor.baseline else 0.0


def exit_limit(monitor: Monitor, policy: MonitorPolicy = DEFAULT_POLICY) -> int:
    """Return how many agents may fall silent in one cadence before verdicts are suspended."""
    return max(policy.min_exits, math.floor(policy.factor * baseline_exits(monitor)))


def is_suspicious_exit(
    monitor: Monitor, last_liveness_s: float, heard_for_s: float, policy: MonitorPolicy = DEFAULT_POLICY
) -> bool:
    """Return whether an agent that fell silent counts towards a suspension of verdicts.

    `heard_for_s` is how long it has sent liveness signals in its present status: 0 for an agent that never
    sent a heartbeat, and for its second step down, since the first one was counted. A cohort counts as a
    whole.
    """
    return heard_for_s >= policy.proven_seconds or last_liveness_s < monitor.cohort_before_s


def assess(
    monitor: Monitor,
    exits: Sequence[float],
    now_s: float,
    policy: MonitorPolicy = DEFAULT_POLICY,
    *,
    unwitnessed: Sequence[float] = (),
) -> Assessment:
    """Decide before the verdicts of a sweep whether they are suspended, as too many agents fell silent.

    `exits` has the last liveness signal (s) of each agent that silence would make unhealthy or dead now and
    that `is_suspicious_exit`, once per agent, in any order; during a suspension, of all agents that still
    wait. `unwitnessed` has those among them that no witness confirms (`is_unwitnessed`).
    """
    monitor = _rolled(_caught_up(monitor, now_s), now_s, policy)
    fresh = [sign_s for sign_s in exits if sign_s >= monitor.cohort_before_s]
    alone = [sign_s for sign_s in unwitnessed if sign_s >= monitor.cohort_before_s]
    if monitor.state is MonitorState.SUSPENDED:
        return _while_suspended(monitor, fresh, alone, now_s, policy)
    return _while_normal(monitor, fresh, alone, len(exits) - len(fresh), now_s, policy)


def release(monitor: Monitor, now_s: float, policy: MonitorPolicy = DEFAULT_POLICY) -> Assessment:
    """End a suspension at an operator's request; nothing changes if there is none."""
    if monitor.state is not MonitorState.SUSPENDED:
        return _assess(monitor, monitor, is_suspended=False)
    return _end_suspension(monitor, MonitorChange.RELEASED, now_s, policy)


def to_json(monitors: Monitors) -> str:
    """Return the monitors as the database stores them."""
    return _COLUMN.dump_json(monitors).decode()


def from_json(text: str) -> Monitors:
    """Read monitors as the database stores them; ValueError if the text is invalid."""
    return _COLUMN.validate_json(text)


_COLUMN = TypeAdapter(Monitors)


def _while_normal(  # noqa: PLR0917 - what a sweep found
    monitor: Monitor,
    fresh: Sequence[float],
    unwitnessed: Sequence[float],
    cohort_exits: int,
    now_s: float,
    policy: MonitorPolicy,
) -> Assessment:
    """Confirm the exits, unless they are a mass exit, or no witness confirms them."""
    would_leave = monitor.exits_this_cadence + len(fresh)
    if would_leave > exit_limit(monitor, policy) or unwitnessed:
        suspended = replace(_turned(monitor, MonitorState.SUSPENDED, now_s), is_cadence_quiet=False)
        many = len(unwitnessed)
        event = _event(monitor, suspended, MonitorChange.MASS_EXIT, max(would_leave, many), many, policy)
        return _assess(monitor, _with_counts(suspended, fresh, unwitnessed), is_suspended=True, event=event)
    after = replace(monitor, exits_this_cadence=would_leave)
    if monitor.state is MonitorState.NORMAL:
        return _assess(monitor, after, is_suspended=False)
    if cohort_exits:
        return _assess(monitor, replace(after, quiet_cadences=0, is_cadence_quiet=False), is_suspended=False)
    if monitor.quiet_cadences < policy.quiet_cadences:
        return _assess(monitor, after, is_suspended=False)
    normal = replace(_turned(monitor, MonitorState.NORMAL, now_s), exits_this_cadence=would_leave)
    event = _event(monitor, normal, MonitorChange.COHORT_PASSED, would_leave, 0, policy)
    return _assess(monitor, normal, is_suspended=False, event=event)


def _while_suspended(
    monitor: Monitor,
    waiting: Sequence[float],
    unwitnessed: Sequence[float],
    now_s: float,
    policy: MonitorPolicy,
) -> Assessment:
    """Continue or end the suspension."""
    monitor = _with_counts(monitor, waiting, unwitnessed)
    end_limit = max(policy.min_exits, policy.end_factor * baseline_exits(monitor))
    if len(waiting) >= end_limit or unwitnessed:
        monitor = replace(monitor, quiet_cadences=0, is_cadence_quiet=False)
    if monitor.quiet_cadences >= policy.quiet_cadences:
        return _end_suspension(monitor, MonitorChange.MASS_EXIT_OVER, now_s, policy)
    if now_s - monitor.since_s >= policy.max_suspension_seconds:
        return _end_suspension(monitor, MonitorChange.MAX_SUSPENSION, now_s, policy)
    return _assess(monitor, monitor, is_suspended=True)


def _end_suspension(
    monitor: Monitor, cause: MonitorChange, now_s: float, policy: MonitorPolicy
) -> Assessment:
    """End the suspension: timeouts count again, and agents that wait now get no second suspension."""
    excluded_downtime = ExcludedDowntime(
        begin_s=monitor.since_s, end_s=now_s, cohort_before_s=monitor.cohort_before_s
    )
    recovering = replace(
        _turned(monitor, MonitorState.RESUMING, now_s),
        cohort_before_s=max(
            monitor.cohort_before_s, monitor.since_s, math.nextafter(monitor.newest_waiting_s, math.inf)
        ),
        baseline=monitor.baseline
        if cause is MonitorChange.MASS_EXIT_OVER
        else _learned_baseline(monitor, policy),
    )
    event = _event(monitor, recovering, cause, monitor.exits_this_cadence, monitor.unwitnessed, policy)
    return _assess(monitor, recovering, is_suspended=True, event=event, excluded_downtime=excluded_downtime)


def _learned_baseline(monitor: Monitor, policy: MonitorPolicy) -> tuple[int, ...]:
    """Learn how many agents per cadence fell silent during the suspension, since their silence counts now.

    A fleet that always loses more than `min_exits` per cadence would otherwise be suspended again and again,
    and never have a normal cadence to learn from. Only a rise is learned, and each cadence counts as one. The
    wave that began the suspension is left out, and so are exits that no witness confirms.
    """
    if not monitor.newcomers or monitor.unwitnessed:
        return monitor.baseline
    cadences = max(1.0, (monitor.newest_waiting_s - monitor.since_s) / policy.cadence_seconds)
    learned = math.ceil(monitor.newcomers / cadences)
    if learned <= baseline_exits(monitor):
        return monitor.baseline
    count = min(policy.baseline_cadences, math.floor(cadences))
    return (*monitor.baseline, *(learned,) * count)[-policy.baseline_cadences :]


def _with_counts(held: Monitor, waiting: Sequence[float], unwitnessed: Sequence[float]) -> Monitor:
    """Count the waiting agents, for the end of the suspension and for its observers."""
    return replace(
        held,
        exits_this_cadence=max(len(waiting), len(unwitnessed)),
        unwitnessed=len(unwitnessed),
        newest_waiting_s=max((*waiting, *unwitnessed), default=0.0),
        newcomers=sum(sign_s >= held.since_s for sign_s in waiting),
    )


def _caught_up(monitor: Monitor, now_s: float) -> Monitor:
    """Drop state that has expired by now."""
    return replace(
        monitor,
        # A clock that was set back must not prolong a suspension or a cadence.
        since_s=min(monitor.since_s, now_s),
        cadence_began_s=min(monitor.cadence_began_s, now_s),
        # Nor may it put agents that send liveness signals from now on into a cohort.
        cohort_before_s=min(monitor.cohort_before_s, math.nextafter(now_s, math.inf)),
    )


def _rolled(monitor: Monitor, now_s: float, policy: MonitorPolicy) -> Monitor:
    """Complete the cadence if its time is over; cadences without a sweep do not count."""
    cadences = math.floor((now_s - monitor.cadence_began_s) / policy.cadence_seconds)
    if cadences < 1:
        return monitor
    began_s = monitor.cadence_began_s + cadences * policy.cadence_seconds
    next_one = replace(monitor, cadence_began_s=began_s, exits_this_cadence=0, is_cadence_quiet=True)
    if monitor.state is MonitorState.NORMAL:
        baseline = (*monitor.baseline, monitor.exits_this_cadence)
        return replace(next_one, baseline=baseline[-policy.baseline_cadences :])
    return replace(next_one, quiet_cadences=monitor.quiet_cadences + 1 if monitor.is_cadence_quiet else 0)


def _turned(monitor: Monitor, state: MonitorState, now_s: float) -> Monitor:
    """Begin a state, and a cadence with it."""
    return replace(
        monitor,
        state=state,
        since_s=now_s,
        cadence_began_s=now_s,
        exits_this_cadence=0,
        quiet_cadences=0,
        is_cadence_quiet=True,
        newest_waiting_s=0.0,
        newcomers=0,
        unwitnessed=0,
    )


def _assess(
    before: Monitor,
    after: Monitor,
    *,
    is_suspended: bool,
    event: MonitorEvent | None = None,
    excluded_downtime: ExcludedDowntime | None = None,
) -> Assessment:
    # The cohort of a suspension that ends now was assessed with its timeouts: it may exit at the next
    # assessment.
    return Assessment(
        monitor=after,
        is_suspended=is_suspended,
        cohort_before_s=before.cohort_before_s,
        event=event,
        excluded_downtime=excluded_downtime,
    )


def _event(  # noqa: PLR0917 - its members
    before: Monitor, after: Monitor, cause: MonitorChange, exits: int, unwitnessed: int, policy: MonitorPolicy
) -> MonitorEvent:
    return MonitorEvent(
        previous=before.state,
        state=after.state,
        cause=cause,
        at_s=after.since_s,
        exits=exits,
        limit=exit_limit(before, policy),
        unwitnessed=unwitnessed,
    )
