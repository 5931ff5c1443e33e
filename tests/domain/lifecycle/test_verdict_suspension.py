"""Suspension of verdicts while too many agents fall silent at once, or none is heard."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict_suspension import (
    DEFAULT_POLICY,
    Assessment,
    Companion,
    ExcludedDowntime,
    Monitor,
    MonitorChange,
    MonitorEvent,
    MonitorPolicy,
    Monitors,
    MonitorState,
    Track,
    assess,
    baseline_exits,
    exit_limit,
    from_json,
    is_suspicious_exit,
    is_unwitnessed,
    new_monitor,
    new_monitors,
    release,
    to_json,
)
from lifesign.errors import InvalidValue

UNHEALTHY_AFTER_S, DEAD_AFTER_S = 90.0, 300.0
SWEEP_S, BEAT_S, CADENCE_S = 15.0, 30.0, 60.0
MAX_SUSPENSION_S = DEFAULT_POLICY.max_suspension_seconds
START_S = 1_000_000.0


@dataclass
class Agent:
    """Sends a heartbeat every 30 s while the network works."""

    last_liveness_s: float
    is_heard: bool = True
    status: Status = Status.ACTIVE
    dead_at_s: float = math.inf


@dataclass
class Fleet:
    """Agents, and a sweep every 15 s as the registry makes it, on a clock wound by hand."""

    agents: list[Agent]
    now_s: float = START_S
    monitor: Monitor = field(default_factory=lambda: new_monitor(START_S))
    excuses: list[ExcludedDowntime] = field(default_factory=list)
    events: list[MonitorEvent] = field(default_factory=list)

    @property
    def turns(self) -> list[MonitorChange]:
        return [event.cause for event in self.events]

    def state(self) -> MonitorState:
        return self.monitor.state

    def statuses(self) -> Counter[Status]:
        return Counter(agent.status for agent in self.agents)

    def run(self, seconds: float, before_sweep: Callable[[], None] = lambda: None) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += SWEEP_S
            for agent in self.agents:
                if agent.is_heard and agent.status in {Status.ACTIVE, Status.UNHEALTHY}:
                    beats = math.floor((self.now_s - agent.last_liveness_s) / BEAT_S)
                    agent.last_liveness_s += beats * BEAT_S
                    agent.status = Status.ACTIVE
            before_sweep()
            self.sweep()

    def sweep(self) -> None:
        leaving = [agent for agent in self.agents if self.status_now(agent) is not agent.status]
        seen = assess(self.monitor, [agent.last_liveness_s for agent in leaving], self.now_s)
        self.heed(seen)
        for agent in leaving:
            if seen.may_change(agent.last_liveness_s):
                agent.status = self.status_now(agent)
                if agent.status is Status.DEAD:
                    agent.dead_at_s = self.now_s

    def heed(self, seen: Assessment) -> None:
        # The row survives a round trip through storage.
        self.monitor = restored(seen.monitor)
        if seen.event is not None:
            self.events.append(seen.event)
        if seen.excluded_downtime is not None:
            self.excuses.append(seen.excluded_downtime)

    def status_now(self, agent: Agent) -> Status:
        excluded_s = sum(
            excluded_downtime.seconds(agent.last_liveness_s) for excluded_downtime in self.excuses
        )
        silence_s = self.now_s - agent.last_liveness_s - excluded_s
        if agent.status is Status.DEAD or silence_s > DEAD_AFTER_S:
            return Status.DEAD
        return Status.UNHEALTHY if silence_s > UNHEALTHY_AFTER_S else agent.status

    def silence(self, agents: Iterable[Agent]) -> None:
        for agent in agents:
            agent.is_heard = False

    def hear(self, agents: Iterable[Agent]) -> None:
        for agent in agents:
            agent.is_heard = True


def restored(monitor: Monitor) -> Monitor:
    """Return a track as it comes back from the database."""
    stored = to_json(new_monitors(START_S).with_track(Track.PROBE, monitor))
    return from_json(stored).of(Track.PROBE)


def fleet_of(size: int) -> Fleet:
    """Return agents whose heartbeats are spread evenly over the interval."""
    return Fleet([Agent(START_S - BEAT_S * number / size) for number in range(size)])


# Whole stories


def test_silence_of_half_a_fleet_suspends_verdicts_until_a_timeout() -> None:
    fleet = fleet_of(1000)
    fleet.run(600)
    stopped = fleet.agents[::2]
    fleet.silence(stopped)
    fleet.run(400)
    assert fleet.state() is MonitorState.SUSPENDED
    assert fleet.statuses()[Status.DEAD] == 0
    # Agents whose turn came before the wave became one.
    assert fleet.statuses()[Status.UNHEALTHY] <= DEFAULT_POLICY.min_exits
    fleet.hear(stopped[::5])
    fleet.run(MAX_SUSPENSION_S + DEAD_AFTER_S)
    assert fleet.turns[:2] == [MonitorChange.MASS_EXIT, MonitorChange.MAX_SUSPENSION]
    assert fleet.statuses() == {Status.ACTIVE: 600, Status.DEAD: 400}
    fleet.run(600)
    assert fleet.state() is MonitorState.NORMAL
    assert fleet.turns == [MonitorChange.MASS_EXIT, MonitorChange.MAX_SUSPENSION, MonitorChange.COHORT_PASSED]
    assert exit_limit(fleet.monitor) == DEFAULT_POLICY.min_exits


def test_suspended_verdicts_are_dropped_if_all_agents_return() -> None:
    fleet = fleet_of(1000)
    fleet.run(600)
    fleet.silence(fleet.agents)
    fleet.run(500)
    fleet.hear(fleet.agents)
    fleet.run(200)
    assert fleet.turns == [MonitorChange.MASS_EXIT, MonitorChange.MASS_EXIT_OVER]
    fleet.run(1200)
    assert fleet.statuses() == {Status.ACTIVE: 1000}
    assert fleet.turns == [MonitorChange.MASS_EXIT, MonitorChange.MASS_EXIT_OVER, MonitorChange.COHORT_PASSED]


def test_mass_death_is_declared_after_the_longest_suspension() -> None:
    fleet = fleet_of(1000)
    fleet.run(600)
    stopped = fleet.agents[:300]
    fleet.silence(stopped)
    fleet.run(MAX_SUSPENSION_S + DEAD_AFTER_S + SWEEP_S)
    assert fleet.statuses() == {Status.ACTIVE: 700, Status.DEAD: 300}
    longest_s = max(agent.dead_at_s - agent.last_liveness_s for agent in stopped)
    assert longest_s <= MAX_SUSPENSION_S + DEAD_AFTER_S + SWEEP_S


def test_steady_loss_of_agents_never_suspends_verdicts() -> None:
    fleet = fleet_of(1000)
    left = iter(list(fleet.agents))

    def five_per_cadence() -> None:
        if fleet.now_s % CADENCE_S < SWEEP_S:
            fleet.silence(next(left) for _ in range(5))

    fleet.run(3600, five_per_cadence)
    assert fleet.events == []
    # Each goes down twice, to unhealthy and to dead.
    assert baseline_exits(fleet.monitor) == 10
    assert fleet.statuses()[Status.DEAD] >= 5 * (3600 - DEAD_AFTER_S) / CADENCE_S - 10


def test_a_small_fleet_may_die_at_once() -> None:
    fleet = fleet_of(10)
    fleet.run(600)
    fleet.silence(fleet.agents)
    fleet.run(DEAD_AFTER_S + SWEEP_S)
    assert fleet.events == []
    assert fleet.statuses() == {Status.DEAD: 10}


def test_second_mass_exit_is_suspended_while_the_first_cohort_dies() -> None:
    fleet = fleet_of(1000)
    fleet.run(600)
    first, second = fleet.agents[:200], fleet.agents[200:400]
    fleet.silence(first)
    fleet.run(1200)
    fleet.silence(second)
    fleet.run(DEAD_AFTER_S)
    assert fleet.state() is MonitorState.SUSPENDED
    assert all(agent.status is Status.DEAD for agent in first)
    assert not any(agent.status is Status.DEAD for agent in second)
    fleet.run(MAX_SUSPENSION_S + SWEEP_S)
    assert all(agent.status is Status.DEAD for agent in second)


def test_permanently_higher_loss_becomes_the_baseline() -> None:
    """From now on 30 agents are lost in each cadence, and replaced: there is no normal one to learn from."""
    fleet = fleet_of(1000)
    fleet.run(900)

    def thirty_per_cadence_are_replaced() -> None:
        if fleet.now_s % CADENCE_S < SWEEP_S:
            heard = [agent for agent in fleet.agents if agent.is_heard]
            fleet.silence(heard[:30])
            fleet.agents.extend(Agent(fleet.now_s) for _ in range(30))

    fleet.run(3600, thirty_per_cadence_are_replaced)
    assert fleet.turns == [MonitorChange.MASS_EXIT, MonitorChange.MAX_SUSPENSION, MonitorChange.COHORT_PASSED]
    fleet.run(3600, thirty_per_cadence_are_replaced)
    assert len(fleet.turns) == 3
    assert baseline_exits(fleet.monitor) == 60


def test_release_takes_effect_at_the_next_sweep() -> None:
    fleet = fleet_of(100)
    fleet.run(600)
    fleet.silence(fleet.agents)
    fleet.run(150)
    assert fleet.state() is MonitorState.SUSPENDED
    fleet.heed(release(fleet.monitor, fleet.now_s))
    fleet.run(DEAD_AFTER_S)
    assert fleet.turns[:2] == [MonitorChange.MASS_EXIT, MonitorChange.RELEASED]
    assert fleet.statuses() == {Status.DEAD: 100}


def test_one_unwitnessed_exit_suspends_verdicts() -> None:
    monitor = new_monitor(START_S)
    lost = START_S - 91
    assert not assess(monitor, [lost], START_S).is_suspended
    seen = assess(monitor, [lost], START_S, unwitnessed=[lost])
    assert (seen.is_suspended, seen.monitor.state, seen.monitor.unwitnessed) == (
        True,
        MonitorState.SUSPENDED,
        1,
    )
    assert seen.event is not None
    assert (seen.event.cause, seen.event.exits, seen.event.unwitnessed) == (MonitorChange.MASS_EXIT, 1, 1)


def test_suspension_without_witnesses_ends_with_a_signal_or_at_its_limit() -> None:
    lost = START_S - 91
    held = assess(new_monitor(START_S), [lost], START_S, unwitnessed=[lost]).monitor
    monitor = held
    for seconds in range(15, int(MAX_SUSPENSION_S), 15):
        monitor = assess(monitor, [lost], START_S + seconds, unwitnessed=[lost]).monitor
        assert monitor.state is MonitorState.SUSPENDED
    ended = assess(monitor, [lost], START_S + MAX_SUSPENSION_S, unwitnessed=[lost])
    assert ended.event is not None
    assert ended.event.cause is MonitorChange.MAX_SUSPENSION
    # An agent that was suspended once goes down, although nothing supports it.
    again = assess(ended.monitor, [lost], START_S + MAX_SUSPENSION_S + 15, unwitnessed=[lost])
    assert again.may_change(lost)
    # A heartbeat arrived: the suspension ends after two quiet cadences.
    monitor = held
    for seconds in range(15, 196, 15):
        seen = assess(monitor, [lost], START_S + seconds)
        monitor = seen.monitor
    assert monitor.state is MonitorState.RESUMING


@pytest.mark.parametrize(
    ("heard_at_s", "companion", "refused_at_s", "alone"),
    [
        (None, None, None, False),
        (None, (99, 99), None, False),
        (None, (100, 100), None, True),
        (99, (100, 40), None, True),
        (99, (160, 160), None, True),
        (100, (160, 100), None, False),
        (100, (160, None), None, False),
        # The companion fell silent later.
        (100, (160, 101), None, True),
        (101, (160, 101), None, False),
        (160, None, None, False),
        (160, None, 99, False),
        (160, None, 100, True),
    ],
)
def test_missed_heartbeat_is_unwitnessed_if_no_agent_was_heard_or_a_connection_was_refused(
    heard_at_s: float | None,
    companion: tuple[float, float | None] | None,
    refused_at_s: float | None,
    *,
    alone: bool,
) -> None:
    other = None if companion is None else Companion(due_s=companion[0], missed_s=companion[1])
    assert is_unwitnessed(100, heard_at_s, other, refused_at_s) is alone


def test_each_track_has_its_own_monitor_state() -> None:
    monitors = new_monitors(START_S)
    held = held_monitor()
    changed = monitors.with_track(Track.PROBE, held)
    assert changed == Monitors(heartbeat=monitors.heartbeat, probe=held)
    assert (changed.of(Track.HEARTBEAT), changed.of(Track.PROBE)) == (monitors.heartbeat, held)
    assert changed.with_track(Track.HEARTBEAT, held).heartbeat == held


def at(seconds: float, monitor: Monitor, exits: int, *, sign_s: float | None = None) -> Assessment:
    """Return an assessment so many seconds after the start, of agents that were last heard 100 s before."""
    now_s = START_S + seconds
    return assess(monitor, [now_s - 100 if sign_s is None else sign_s] * exits, now_s)


def held_monitor(exits: int = 50) -> Monitor:
    return at(0, new_monitor(START_S), exits).monitor


@pytest.mark.parametrize(("exits", "is_suspended"), [(0, False), (20, False), (21, True)])
def test_more_than_twenty_exits_per_cadence_suspend_verdicts(exits: int, *, is_suspended: bool) -> None:
    assert at(0, new_monitor(START_S), exits).is_suspended is is_suspended


def test_earlier_exits_of_the_cadence_count() -> None:
    seen = at(15, new_monitor(START_S), 15)
    assert at(59, seen.monitor, 5).is_suspended is False
    held = at(59, seen.monitor, 6)
    assert held.is_suspended
    assert held.event == MonitorEvent(
        previous=MonitorState.NORMAL,
        state=MonitorState.SUSPENDED,
        cause=MonitorChange.MASS_EXIT,
        at_s=START_S + 59,
        exits=21,
        limit=20,
    )
    # The next cadence begins at nought.
    assert at(60, seen.monitor, 20).is_suspended is False


@pytest.mark.parametrize(("exits", "is_suspended"), [(50, False), (51, True)])
def test_exits_up_to_five_times_the_baseline_are_not_suspended(exits: int, *, is_suspended: bool) -> None:
    monitor = replace(new_monitor(START_S), baseline=(10,) * 10)
    assert at(0, monitor, exits).is_suspended is is_suspended


def test_suspension_has_one_event() -> None:
    monitor = held_monitor()
    assert at(15, monitor, 50).event is None
    assert at(15, monitor, 50).is_suspended


def test_a_suspension_ends_when_few_have_waited_for_two_whole_cadences() -> None:
    monitor = held_monitor()
    for seconds in range(15, 180, 15):
        seen = at(seconds, monitor, 19)
        assert seen.monitor.state is MonitorState.SUSPENDED
        monitor = seen.monitor
    seen = at(180, monitor, 19)
    assert seen.monitor.state is MonitorState.RESUMING
    assert seen.excluded_downtime == ExcludedDowntime(
        begin_s=START_S, end_s=START_S + 180, cohort_before_s=0.0
    )


def test_repeated_mass_exit_extends_the_suspension() -> None:
    monitor = held_monitor()
    for seconds in range(15, 180, 15):
        monitor = at(seconds, monitor, 20 if seconds == 150 else 0).monitor
    assert at(180, monitor, 0).monitor.state is MonitorState.SUSPENDED


def test_check_that_ends_a_suspension_takes_no_agent_down() -> None:
    """Its exits counted all of the silence; the excused part has to be subtracted first."""
    seen = at(900, held_monitor(), 50)
    assert seen.event is not None
    assert seen.event.cause is MonitorChange.MAX_SUSPENSION
    assert not seen.may_change(START_S + 800)
    after = at(915, seen.monitor, 50, sign_s=START_S + 800)
    assert after.may_change(START_S + 800)
    assert not after.is_suspended


def test_a_suspension_ends_at_its_limit_and_not_before() -> None:
    assert at(899.9, held_monitor(), 50).event is None
    assert at(900, held_monitor(), 50).event is not None


def test_the_cohort_of_a_suspension_is_never_counted_again() -> None:
    recovering = at(900, held_monitor(), 50, sign_s=START_S - 5).monitor
    assert not at(915, recovering, 1000, sign_s=START_S - 5).is_suspended
    assert at(915, recovering, 21, sign_s=START_S + 1).is_suspended


def test_agent_silent_since_before_the_suspension_belongs_to_its_cohort() -> None:
    recovering = at(900, held_monitor(), 50, sign_s=START_S - 500).monitor
    assert not at(2000, recovering, 1000, sign_s=START_S - 1).is_suspended
    assert at(2000, recovering, 1000, sign_s=START_S).is_suspended


def test_first_cohort_may_change_during_a_second_suspension() -> None:
    recovering = at(900, held_monitor(), 50, sign_s=START_S - 5).monitor
    second = at(1000, recovering, 21)
    assert second.is_suspended
    assert second.may_change(START_S - 5)
    assert not second.may_change(START_S + 5)


def test_the_baseline_is_of_the_last_ten_normal_cadences() -> None:
    monitor = new_monitor(START_S)
    for cadence in range(14):
        monitor = at(cadence * CADENCE_S, monitor, cadence).monitor
    assert monitor.baseline == tuple(range(3, 13))


def test_mass_exit_does_not_change_the_baseline() -> None:
    monitor = replace(new_monitor(START_S), baseline=(1,) * 10)
    for seconds in range(0, 2400, 15):
        monitor = at(seconds, monitor, 500, sign_s=START_S - 100).monitor
    assert monitor.state is MonitorState.RESUMING
    assert monitor.baseline == (1,) * 10


@pytest.mark.parametrize(("alone", "learned"), [(0, 5), (1, 0)])
def test_baseline_counts_only_witnessed_exits(alone: int, learned: int) -> None:
    # Two minutes after the hold began, ten had fallen silent since.
    signs = [START_S + 120] * 10
    seen = assess(held_monitor(), signs, START_S + 900, unwitnessed=signs[:alone])
    assert baseline_exits(seen.monitor) == learned


def test_time_without_sweeps_does_not_change_the_baseline() -> None:
    monitor = replace(new_monitor(START_S), baseline=(7, 7), exits_this_cadence=5)
    day_later = at(86_400 + 30, monitor, 3).monitor
    assert day_later.baseline == (7, 7, 5)
    assert day_later.exits_this_cadence == 3
    assert day_later.cadence_began_s == START_S + 86_400


def test_a_clock_set_back_does_not_stretch_a_suspension() -> None:
    set_back = at(-3600, held_monitor(), 50, sign_s=START_S - 4000).monitor
    assert at(-2700, set_back, 50, sign_s=START_S - 4000).monitor.state is MonitorState.RESUMING


def test_a_clock_set_back_does_not_stretch_a_cadence() -> None:
    monitor = at(-3600, new_monitor(START_S), 20).monitor
    assert not at(-3600 + CADENCE_S, monitor, 20).is_suspended


def test_unknown_members_of_a_monitor_row_are_ignored_and_missing_ones_refused() -> None:
    monitors = new_monitors(START_S).with_track(Track.HEARTBEAT, held_monitor())
    newer = to_json(monitors).replace("{", '{"mood": "calm", ', 1)
    assert from_json(newer) == monitors
    with pytest.raises(ValueError, match="heartbeat"):
        from_json("{}")


def test_only_a_suspension_can_be_released() -> None:
    monitor = new_monitor(START_S)
    assert release(monitor, START_S) == Assessment(monitor=monitor, is_suspended=False, cohort_before_s=0.0)


@pytest.mark.parametrize(
    ("last_liveness_s", "excluded_s"), [(49, 0), (50, 100), (100, 100), (150, 50), (200, 0), (300, 0)]
)
def test_only_the_silence_within_a_suspension_is_excused(last_liveness_s: float, excluded_s: float) -> None:
    assert ExcludedDowntime(begin_s=100, end_s=200, cohort_before_s=50).seconds(last_liveness_s) == excluded_s


@pytest.mark.parametrize(
    "setting",
    [
        {"cadence_seconds": 0.5}, {"cadence_seconds": float("nan")}, {"min_exits": 0}, {"end_factor": 0.5},
        {"factor": 1.5}, {"quiet_cadences": 0}, {"max_suspension_seconds": 59},
        {"max_suspension_seconds": 1e6}, {"baseline_cadences": 0}, {"baseline_cadences": 101},
    ],
)  # fmt: skip
def test_a_policy_out_of_range_is_refused(setting: dict[str, float]) -> None:
    (name,) = setting
    with pytest.raises(InvalidValue, match=name):
        MonitorPolicy(**setting)  # type: ignore[arg-type]  # wrong on purpose


# Rules

# Seconds since the last look, and of each exit the seconds since its last sign of life.
LOOKS = st.lists(
    st.tuples(
        st.floats(0, 400),
        # An agent that was heard at this very moment has not gone.
        st.lists(st.integers(1, 2000).map(float), max_size=5).flatmap(
            lambda ages: st.integers(1, 12).map(lambda times: ages * times)
        ),
        st.sampled_from(["", "", "", "alone", "release"]),
    ),
    max_size=60,
)


@given(LOOKS)
@example([(0.0, [1.0] * 30, ""), (0.0, [], "release")])
def test_suspensions_always_end_and_the_row_stays_small(
    story: list[tuple[float, list[float], str]],
) -> None:
    now_s, monitor = START_S, new_monitor(START_S)
    held_since_s: float | None = None
    let_go: Counter[float] = Counter()
    for seconds, ages, function in story:
        now_s += seconds
        if function == "release":
            monitor = release(monitor, now_s).monitor
        before = monitor
        exits = [now_s - age for age in ages]
        seen = assess(monitor, exits, now_s, unwitnessed=exits[:1] if function == "alone" else ())
        monitor = seen.monitor

        assert restored(monitor) == monitor
        assert len(to_json(Monitors(heartbeat=monitor, probe=monitor))) < 1500
        # The event contains each change of state, and nothing else.
        assert (seen.event is not None) is (before.state is not monitor.state)
        assert (seen.excluded_downtime is not None) is (
            before.state is MonitorState.SUSPENDED and monitor.state is MonitorState.RESUMING
        )
        held_since_s = (
            now_s if seen.is_suspended and before.state is not MonitorState.SUSPENDED else held_since_s
        )
        if monitor.state is MonitorState.SUSPENDED and held_since_s is not None:
            assert now_s - held_since_s < MAX_SUSPENSION_S
        # Never more go in one cadence than were believed, the cohort apart.
        fresh = [sign_s for sign_s in exits if sign_s >= seen.cohort_before_s and seen.may_change(sign_s)]
        let_go[monitor.cadence_began_s] += len(fresh)
        assert let_go[monitor.cadence_began_s] <= exit_limit(monitor)
        # The cohort only grows: an agent suspended once is free for good.
        assert monitor.cohort_before_s >= before.cohort_before_s


@given(LOOKS)
def test_suspension_lasts_two_periods_at_most(story: list[tuple[float, list[float], str]]) -> None:
    now_s, monitor = START_S, new_monitor(START_S)
    stopped_s = START_S + 500
    delayed_s, looked_s = 0.0, START_S
    for seconds, ages, function in story:
        now_s += min(seconds, 60)
        is_silent = now_s > stopped_s + UNHEALTHY_AFTER_S
        exits = [now_s - age for age in ages] + [stopped_s] * is_silent
        seen = assess(monitor, exits, now_s, unwitnessed=exits[-1:] if function == "alone" else ())
        monitor = seen.monitor
        if is_silent and not seen.may_change(stopped_s):
            delayed_s += now_s - looked_s
        looked_s = now_s
    # Both ends of a suspension may be late by the 60 s between two assessments.
    assert delayed_s <= 2 * (MAX_SUSPENSION_S + 2 * 60)


@given(st.lists(st.integers(0, 20), max_size=60))
def test_up_to_twenty_exits_per_cadence_are_never_suspended(exits: list[int]) -> None:
    monitor = new_monitor(START_S)
    for cadence, count in enumerate(exits):
        seen = at(cadence * CADENCE_S, monitor, count)
        assert not seen.is_suspended
        monitor = seen.monitor


def test_clock_set_back_creates_no_cohort() -> None:
    monitor = replace(new_monitor(3600.0), cohort_before_s=3600.0)
    after = assess(monitor, [], 10.0).monitor
    assert (after.cohort_before_s, after.since_s) == (math.nextafter(10.0, math.inf), 10.0)


@pytest.mark.parametrize(
    ("who", "heard_for_s", "is_of_cohort", "tells"),
    [
        ("never beat since it registered", 0.0, False, False),
        ("beat once, and fell silent", 30.0, False, False),
        ("is taken its second step down", 0.0, False, False),
        ("gave signs of life for just long enough", 300.0, False, True),
        ("was held once already", 0.0, True, True),
    ],
)
def test_only_agents_with_earlier_signals_count_as_mass_exit(
    who: str, heard_for_s: float, *, is_of_cohort: bool, tells: bool
) -> None:
    monitor = replace(new_monitor(START_S), cohort_before_s=START_S)
    last_liveness_s = START_S - 1 if is_of_cohort else START_S
    assert is_suspicious_exit(monitor, last_liveness_s, heard_for_s) is tells, who
