"""Which versions are kept, and when events are due."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.published_interface.version_history import (
    EVENT_SECONDS,
    UNSTABLE_READINGS,
    VersionState,
    first_state,
    is_unstable,
    next_step,
    pending_step,
)

NOW_S = 1_000_000_000.0


def test_first_interface_change_of_an_agent_causes_an_event() -> None:
    step = next_step(first_state(), 1, NOW_S, is_agent=True)
    assert step.notifies
    assert not step.replaces_newest
    assert step.state == VersionState(newest=2, baseline=2, notified_at_s=NOW_S)


def test_second_change_within_a_day_is_due_a_day_after_the_event() -> None:
    state = VersionState(newest=2, baseline=2, notified_at_s=NOW_S)
    step = next_step(state, 2, NOW_S + 60, is_agent=True)
    assert not step.notifies
    assert step.state == VersionState(3, 2, NOW_S, NOW_S + EVENT_SECONDS)
    due = pending_step(step.state, 0, NOW_S + EVENT_SECONDS, is_agent=True)
    assert due.notifies
    assert due.state == VersionState(3, 3, NOW_S + EVENT_SECONDS)


def test_target_that_is_no_agent_keeps_versions_without_events() -> None:
    step = next_step(first_state(), 1, NOW_S, is_agent=False)
    assert not step.notifies
    assert step.state == VersionState(newest=2, baseline=2)


def test_agent_that_has_left_gets_no_event() -> None:
    step = pending_step(VersionState(3, 2, NOW_S, NOW_S), 0, NOW_S, is_agent=False)
    assert not step.notifies
    assert step.state == VersionState(3, 3, NOW_S)


def test_unstable_interface_replaces_its_newest_version_and_makes_no_event() -> None:
    state = first_state()
    outcomes = []
    for count in range(1, 8):
        step = next_step(state, count, NOW_S + count * EVENT_SECONDS, is_agent=True)
        outcomes.append((step.state.newest, step.notifies, step.has_become_unstable))
        state = step.state
    assert outcomes == [
        (2, True, False), (3, True, False), (4, False, True), (4, False, False), (4, False, False),
        (4, False, False), (4, False, False),
    ]  # fmt: skip
    assert state.due_at_s is not None
    assert not pending_step(state, 7, state.due_at_s, is_agent=True).notifies
    assert pending_step(state, 0, state.due_at_s, is_agent=True).notifies


def test_event_from_before_the_clock_was_set_back_delays_none() -> None:
    state = VersionState(2, 2, notified_at_s=NOW_S + 10 * EVENT_SECONDS)
    assert next_step(state, 1, NOW_S, is_agent=True).notifies


@dataclass
class Run:
    """One target whose interface is read again and again."""

    state: VersionState
    events_s: list[float]
    logged: int = 0


READINGS = st.lists(
    st.tuples(st.sampled_from([300.0, 3_600.0, 43_200.0, 86_400.0]), st.booleans(), st.booleans()),
    max_size=60,
)


@settings(max_examples=examples(100))
@given(READINGS)
def test_at_most_one_event_per_day_and_every_change_is_in_one(
    readings: list[tuple[float, bool, bool]],
) -> None:
    run, in_row, now_s = Run(first_state(), []), 0, NOW_S
    for wait_s, has_changed, is_agent in readings:
        now_s += wait_s
        in_row = in_row + 1 if has_changed else 0
        steps = []
        if has_changed:
            steps.append(next_step(run.state, in_row, now_s, is_agent=is_agent))
            run.state = steps[-1].state
        if run.state.due_at_s is not None and run.state.due_at_s <= now_s:
            steps.append(pending_step(run.state, in_row, now_s, is_agent=is_agent))
            run.state = steps[-1].state
        run.events_s += [now_s for step in steps if step.notifies]
        assert run.state.baseline <= run.state.newest
        # Only changes without an event are due.
        assert (run.state.baseline != run.state.newest) == (run.state.due_at_s is not None)
        assert not (is_unstable(in_row) and any(step.notifies for step in steps))
    assert all(b - a >= EVENT_SECONDS for a, b in zip(run.events_s, run.events_s[1:], strict=False))


def test_unstable_from_the_third_change_in_a_row() -> None:
    assert [is_unstable(count) for count in (0, UNSTABLE_READINGS - 1, UNSTABLE_READINGS)] == [
        False,
        False,
        True,
    ]
