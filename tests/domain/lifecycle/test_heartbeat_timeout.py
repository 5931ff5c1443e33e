from collections.abc import Sequence
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.lifecycle.heartbeat_timeout import (
    MAX_SPANS,
    PROBE_THRESHOLDS,
    ExcludedSpan,
    ExtendedThresholds,
    Thresholds,
    add_span,
    began_before_jump_s,
    clock_jump_s,
    clock_jump_since_s,
    deadline_s,
    downtime,
    drift_s,
    extended,
    has_drifted,
    is_drifting,
    may_have_jumped,
    silent_for_s,
    sweep_cadence_s,
    was_set_back,
)
from lifesign.errors import InvalidValue

# Whole seconds: their sums are exact, so that a rule can be held to the very edge.
PATIENT = Thresholds(20, 60, 300)
HASTY = Thresholds(2, 5, 10)
MOMENTS = st.integers(0, 2000).map(float)
LENGTHS = st.integers(0, 500).map(float)
SPANS = st.lists(st.builds(ExcludedSpan, MOMENTS, MOMENTS), max_size=8)


def excluded_seconds(spans: Sequence[ExcludedSpan], begin: float, end: float) -> int:
    """Count, second by second, the time that the spans cover."""
    return sum(
        any(span.begin_s <= second < span.end_s for span in spans) for second in range(int(begin), int(end))
    )


def test_silence_is_the_time_since_the_last_liveness_signal() -> None:
    assert silent_for_s(100.0, 190.5, []) == 90.5


@pytest.mark.parametrize(
    ("silent", "expected"),
    [
        (15, ExtendedThresholds(17, 20, 25)),
        (57, ExtendedThresholds(20, 60, 67)),
        (299, ExtendedThresholds(20, 60, 300)),
        (0, None),
    ],
)
def test_shorter_thresholds_count_from_the_change(silent: int, expected: ExtendedThresholds | None) -> None:
    assert extended(PATIENT, HASTY, silent) == expected


def test_longer_thresholds_count_for_the_present_silence() -> None:
    assert extended(HASTY, PATIENT, 8.0) is None
    assert extended(ExtendedThresholds(17, 20, 25), PATIENT, 16.0) is None


@given(st.lists(st.tuples(MOMENTS, st.sampled_from([PATIENT, HASTY, Thresholds(1, 40, 90)]))))
def test_changes_never_extend_a_silence_beyond_the_longest_threshold(
    changes: list[tuple[float, Thresholds]],
) -> None:
    in_force: Thresholds | ExtendedThresholds = PATIENT
    for silent_s, thresholds in sorted(changes, key=lambda change: change[0]):
        in_force = extended(in_force, thresholds, silent_s) or thresholds
        assert thresholds.dead_after_s <= in_force.dead_after_s <= PATIENT.dead_after_s
        assert in_force.interval_s <= in_force.unhealthy_after_s < in_force.dead_after_s


def test_liveness_signal_from_the_future_gives_no_silence() -> None:
    assert silent_for_s(100.0, 40.0, [ExcludedSpan(0.0, 500.0)]) == 0.0


@pytest.mark.parametrize(
    ("spans", "silent"),
    [
        ([ExcludedSpan(120, 150)], 70),
        ([ExcludedSpan(150, 120)], 100),
        ([ExcludedSpan(0, 100)], 100),
        ([ExcludedSpan(0, 130)], 70),
        ([ExcludedSpan(180, 900)], 80),
        ([ExcludedSpan(0, 900)], 0),
        ([ExcludedSpan(150, 180), ExcludedSpan(120, 160)], 40),
        ([ExcludedSpan(120, 130), ExcludedSpan(120, 130)], 90),
    ],
)
def test_excused_time_is_subtracted_once(spans: list[ExcludedSpan], silent: float) -> None:
    assert silent_for_s(100.0, 200.0, spans) == silent


@given(last=MOMENTS, now=MOMENTS, spans=SPANS)
def test_silence_excludes_the_excused_spans(last: float, now: float, spans: list[ExcludedSpan]) -> None:
    assert silent_for_s(last, now, spans) == max(0, now - last - excluded_seconds(spans, last, now))


def test_the_deadline_moves_by_the_excused_time() -> None:
    assert deadline_s(100.0, 90.0, []) == 190.0
    assert deadline_s(100.0, 90.0, [ExcludedSpan(120.0, 150.0)]) == 220.0
    assert deadline_s(100.0, 90.0, [ExcludedSpan(120.0, 150.0), ExcludedSpan(200.0, 260.0)]) == 280.0


def test_excluded_period_at_the_deadline_moves_the_deadline_to_its_end() -> None:
    spans = [ExcludedSpan(190.0, 250.0)]
    assert deadline_s(100.0, 90.0, spans) == 250.0
    assert silent_for_s(100.0, 250.0, spans) == 90.0


@given(last=MOMENTS, now=MOMENTS, threshold=LENGTHS, spans=SPANS)
def test_beyond_the_deadline_and_only_there_silence_exceeds_the_threshold(
    last: float, now: float, threshold: float, spans: list[ExcludedSpan]
) -> None:
    deadline = deadline_s(last, threshold, spans)
    assert (now > deadline) is (silent_for_s(last, now, spans) > threshold)
    assert silent_for_s(last, deadline, spans) == threshold


def test_the_thresholds_are_those_of_the_sources() -> None:
    assert Thresholds() == Thresholds(30.0, 90.0, 300.0)
    assert Thresholds(300.0, 900.0, 3600.0) == PROBE_THRESHOLDS


def test_thresholds_may_be_exactly_twice_each_other() -> None:
    assert Thresholds(30.0, 60.0, 120.0).dead_after_s == 120.0
    assert Thresholds(0.5, 1.0, 2.0).dead_after_s == 2.0


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((0.0, 90.0, 300.0), "interval_seconds"),
        ((-1.0, 90.0, 300.0), "interval_seconds"),
        ((nan, 90.0, 300.0), "interval_seconds"),
        ((inf, inf, inf), "interval_seconds"),
        ((30.0, 59.9, 300.0), "unhealthy_after_seconds"),
        ((30.0, nan, 300.0), "unhealthy_after_seconds"),
        ((30.0, inf, inf), "unhealthy_after_seconds"),
        ((30.0, 60.0, 119.9), "dead_after_seconds"),
        ((30.0, 60.0, inf), "dead_after_seconds"),
    ],
)
def test_thresholds_below_twice_the_previous_are_refused(
    values: tuple[float, float, float], name: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        Thresholds(*values)
    assert refused.value.name == name


@pytest.mark.parametrize(("values", "least"), [((30.0, 59.9, 300.0), "60"), ((30.0, 70.0, 139.9), "140")])
def test_refused_threshold_states_the_least_allowed_value(
    values: tuple[float, float, float], least: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        Thresholds(*values)
    assert refused.value.expected.endswith(f", {least}")


def test_spans_that_touch_become_one() -> None:
    spans = add_span(
        [ExcludedSpan(0.0, 10.0), ExcludedSpan(40.0, 50.0)],
        ExcludedSpan(10.0, 20.0),
        now_s=60.0,
        keep_s=100.0,
    )
    assert spans == (ExcludedSpan(0.0, 20.0), ExcludedSpan(40.0, 50.0))


def test_expired_gap_is_removed() -> None:
    known = [ExcludedSpan(0.0, 9.0), ExcludedSpan(0.0, 10.0), ExcludedSpan(20.0, 30.0)]
    assert add_span(known[:1], ExcludedSpan(100.0, 110.0), now_s=110.0, keep_s=100.0) == (
        ExcludedSpan(100.0, 110.0),
    )
    assert add_span(known, ExcludedSpan(100.0, 110.0), now_s=110.0, keep_s=100.0)[0] == ExcludedSpan(
        0.0, 10.0
    )


def test_an_empty_span_adds_nothing() -> None:
    assert add_span([], ExcludedSpan(10.0, 10.0), now_s=10.0, keep_s=100.0) == ()


def test_above_the_span_limit_two_spans_are_joined_without_the_time_between_them() -> None:
    spans = [ExcludedSpan(100.0 * number, 100.0 * number + 10) for number in range(32)]
    added = add_span(spans, ExcludedSpan(515.0, 520.0), now_s=3200.0, keep_s=10_000.0)
    assert len(added) == MAX_SPANS == 32
    assert ExcludedSpan(500.0, 515.0) in added


def test_spans_that_are_close_in_relation_to_their_age_are_joined_first() -> None:
    spans = [ExcludedSpan(100.0 * number, 100.0 * number + 10) for number in range(32)]
    added = add_span(spans, ExcludedSpan(3150.0, 3160.0), now_s=3200.0, keep_s=10_000.0)
    assert added[:2] == (ExcludedSpan(0.0, 20.0), ExcludedSpan(200.0, 210.0))
    assert added[-2:] == (ExcludedSpan(3100.0, 3110.0), ExcludedSpan(3150.0, 3160.0))


def test_old_spans_with_the_shortest_time_between_them_are_joined_first() -> None:
    spans = [ExcludedSpan(100.0 * number, 100.0 * number + 10) for number in range(32)]
    added = add_span(spans, ExcludedSpan(3115.0, 3120.0), now_s=10**6, keep_s=inf)
    assert added[-1] == ExcludedSpan(3100.0, 3115.0)


def test_span_that_has_just_ended_stays_alone() -> None:
    spans, running_s = [ExcludedSpan(-1.0, 0.0)], 0.01
    while len(spans) <= MAX_SPANS:
        end_s = spans[-1].begin_s - running_s
        spans.append(ExcludedSpan(end_s - 1.0, end_s))
        running_s = max(1.0, 2 * running_s)
    assert spans[0] in add_span(spans[1:], spans[0], now_s=0.0, keep_s=inf)


@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=MAX_SPANS + 1, max_size=2 * MAX_SPANS
    ),
    MOMENTS,
)
def test_joined_spans_exclude_no_more_than_the_downtime(steps: list[tuple[int, int]], last: float) -> None:
    spans: tuple[ExcludedSpan, ...] = ()
    given_spans, now_s = [], 0.0
    for running_s, down_s in steps:
        given_spans.append(ExcludedSpan(now_s + running_s, now_s + running_s + down_s))
        now_s = given_spans[-1].end_s
        spans = add_span(spans, given_spans[-1], now_s, keep_s=inf)
        assert len(spans) <= MAX_SPANS
        assert all(before.end_s < after.begin_s for before, after in pairwise(spans))
    assert silent_for_s(last, now_s, spans) >= silent_for_s(last, now_s, given_spans)
    assert silent_for_s(0.0, now_s, spans) == silent_for_s(0.0, now_s, given_spans)


@pytest.mark.parametrize(("running_s", "down_s"), [(8.0, 2.0), (1.0, 9.0), (1.0, 60.0), (600.0, 30.0)])
def test_registry_that_stops_again_and_again_keeps_the_silence_of_working_agents_short(
    running_s: float, down_s: float
) -> None:
    spans: tuple[ExcludedSpan, ...] = ()
    begins_s = [(running_s + down_s) * number + running_s for number in range(1000)]
    for begin_s in begins_s:
        spans = add_span(spans, ExcludedSpan(begin_s, begin_s + down_s), begin_s + down_s, keep_s=2_419_200.0)
    now_s = begins_s[-1] + down_s
    assert silent_for_s(begins_s[-10], now_s, spans) == 9 * running_s
    for number, begin_s in enumerate(begins_s[:-1]):
        # Thresholds are at least two intervals, and a working agent has been silent for one.
        assert silent_for_s(begin_s, now_s, spans) < 2 * running_s * (len(begins_s) - 1 - number)


def test_slow_sweeps_come_at_longer_distances() -> None:
    assert sweep_cadence_s(0.5, [2.0] * 4) == 0.5
    assert sweep_cadence_s(0.5, [2.0] * 5) == 2.5
    assert sweep_cadence_s(0.5, [0.1, *[2.0] * 5]) == 2.5


def test_stalled_sweeps_among_others_do_not_make_the_distance_longer() -> None:
    assert sweep_cadence_s(0.5, [60.0, 60.0, 0.25, 60.0, 60.0]) == 0.75
    assert sweep_cadence_s(0.5, [60.0] * 5) == 5.5


def test_a_gap_of_more_than_three_sweeps_is_downtime() -> None:
    assert downtime(100.0, 145.0, cadence_s=15.0) is None
    assert downtime(100.0, 145.1, cadence_s=15.0) == ExcludedSpan(100.0, 145.1)
    assert downtime(100.0, 40.0, cadence_s=15.0) is None


def test_gap_before_the_first_sweep_of_a_process_is_downtime() -> None:
    assert downtime(100.0, 101.0, cadence_s=15.0, has_started=True) is None
    assert downtime(100.0, 101.1, cadence_s=15.0, has_started=True) == ExcludedSpan(100.0, 101.1)


def test_pause_of_a_second_is_no_downtime_for_any_sweep_interval() -> None:
    assert downtime(100.0, 101.0, cadence_s=0.05) is None
    assert downtime(100.0, 101.1, cadence_s=0.05) == ExcludedSpan(100.0, 101.1)


@pytest.mark.parametrize(
    ("wall", "monotonic", "jump"),
    [
        (15.0, 15.0, 0),
        (20.0, 15.0, 0),
        (10.0, 15.0, 0),
        (20.5, 15.0, 5.5),
        (9.5, 15.0, -5.5),
        (3615, 15, 3600),
    ],
)
def test_clocks_that_differ_by_more_than_five_seconds_show_a_jump(
    wall: float, monotonic: float, jump: float
) -> None:
    assert clock_jump_s(wall, monotonic) == jump


@pytest.mark.parametrize(
    ("client", "waited", "least"),
    [
        (1001.0, 0.0, 1.0),
        (1001.0, 9.0, 1.0),
        (990.0, 0.0, -10.0),
        (990.0, 4.0, -6.0),
        (990.0, 10.0, 0.0),
        (990.0, 20.0, 0.0),
        (990.0, 0.5, -10.0),
        (990.0, 0.75, -9.25),
    ],
)
def test_clock_drift_excludes_the_time_that_a_heartbeat_waited(
    client: float, waited: float, least: float
) -> None:
    assert drift_s(client, 1000.0, waited) == least


@pytest.mark.parametrize(
    ("client", "waited", "before", "after"),
    [
        (1000.0, 0.0, True, False),
        (930.0, 0.0, False, True),
        (940.0, 0.0, False, False),
        (930.0, 20.0, False, False),
        (930.0, 20.0, True, True),
        (900.0, 20.0, False, True),
        (1070.0, 500.0, False, True),
    ],
)
def test_delayed_heartbeat_reports_no_drift(
    client: float, waited: float, *, before: bool, after: bool
) -> None:
    assert is_drifting(client, 1000.0, 30.0, waited, was_drifting=before) is after


@pytest.mark.parametrize(("client", "drifted"), [(1060, False), (1060.5, True), (940, False), (939.5, True)])
def test_a_clock_has_drifted_beyond_two_intervals(client: float, *, drifted: bool) -> None:
    assert has_drifted(client, 1000.0, interval_s=30.0) is drifted


@pytest.mark.parametrize(
    ("gap_s", "wall_s", "monotonic_s", "jump_s"),
    [
        (0.5, 0.5, 0.5, 0.0),
        (600.0, 600.0, 600.0, 0.0),  # downtime of ours, no jump
        (3600.5, 3600.5, 0.5, 3600.0),
        (3600.25, 3600.5, 0.5, 3600.0),  # another process has swept in between, before the jump
        (0.25, 3600.5, 0.5, 0.0),  # another process has swept after the jump and recorded it
        (5.5, 5.5, 0.5, 0.0),
        (-3599.5, -3599.5, 0.5, -3600.0),
        (0.25, -3599.5, 0.5, 0.0),
        (
            -3599.5,
            1.0,
            1.0,
            -3599.5,
        ),  # ahead before, which was reported; a state seen by the gap alone is certain
        (-3599.5, -7199.5, 0.5, -3600.0),
        (-4.0, -4.0, 0.5, 0.0),
        (-5.0, -5.0, 0.5, 0.0),
        (5.0, 10.5, 0.5, 0.0),
    ],
)
def test_several_processes_report_one_jump_once(
    gap_s: float, wall_s: float, monotonic_s: float, jump_s: float
) -> None:
    assert clock_jump_since_s(gap_s, wall_s, monotonic_s) == jump_s


@pytest.mark.parametrize(("gap_s", "jump_s"), [(3600.0, 0.0), (0.5, 0.0), (-3600.0, -3600.0), (-4.0, 0.0)])
def test_new_process_detects_a_clock_set_back(gap_s: float, jump_s: float) -> None:
    assert clock_jump_since_s(gap_s) == jump_s


@pytest.mark.parametrize(
    ("swept_at_s", "may_jump"), [(None, False), (95.0, False), (94.9, True), (200.0, False)]
)
def test_clock_may_have_jumped_if_no_sweep_ran_for_a_while(
    swept_at_s: float | None,
    may_jump: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    assert may_have_jumped(swept_at_s, 100.0) is may_jump


@pytest.mark.parametrize(
    ("swept_at_s", "is_set_back"), [(None, False), (90.0, False), (105.0, False), (105.1, True)]
)
def test_clock_was_set_back_if_the_last_sweep_lies_ahead(
    swept_at_s: float | None,
    is_set_back: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    assert was_set_back(swept_at_s, 100.0) is is_set_back


@pytest.mark.parametrize(("jump_s", "before_s"), [(20.0, 90.0), (-20.0, inf)])
def test_leases_from_before_a_jump_began_before_its_middle(jump_s: float, before_s: float) -> None:
    assert began_before_jump_s(jump_s, 100.0) == before_s
