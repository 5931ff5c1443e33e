from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hand_clock import START_WALL_NS, HandClock
from tests.support.recording import (
    agent,
    outcomes,
    p99_ms,
    record,
    samples,
    served,
    trend,
)

from lifesign import AgentHealth
from lifesign.domain.health.document import Trend

WINDOW_S = 2400
SLOT_S = WINDOW_S / 24
HOUR_S = 3600
HOUR_NS = HOUR_S * 1_000_000_000


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def now(clock: HandClock) -> datetime:
    return datetime.fromtimestamp(clock.wall_ns() / 1e9, UTC)


def windowed(clock: HandClock) -> AgentHealth:
    return agent(clock, window_seconds=WINDOW_S)


# --- the window -------------------------------------------------------------------------------------------


@given(st.floats(0, SLOT_S), st.floats(0, SLOT_S))
def test_sample_leaves_the_window_after_its_length_within_one_slot(start_s: float, record_s: float) -> None:
    clock = HandClock()
    clock.advance(start_s)
    health = windowed(clock)
    health.open()
    clock.advance(record_s)
    record(health, 1)
    clock.advance(WINDOW_S - SLOT_S - 1e-6)
    assert samples(health) == 1
    clock.advance(2 * SLOT_S + 2e-6)
    assert samples(health) == 0


def test_fast_answer_is_counted_in_the_slot_of_its_time(clock: HandClock) -> None:
    health = windowed(clock)
    health.count_quick_answer(5_000_000, clock.monotonic_ns())
    clock.advance(WINDOW_S / 2)
    health.count_quick_answer(5_000_000, clock.monotonic_ns())
    assert samples(health) == 2
    clock.advance(WINDOW_S / 2 + SLOT_S)
    assert samples(health) == 1


@given(st.lists(st.floats(0, 2 * SLOT_S), min_size=1, max_size=40))
def test_window_contains_exactly_its_samples_within_one_slot(steps: list[float]) -> None:
    clock = HandClock()
    health = windowed(clock)
    ends: list[float] = []
    at_s = 0.0
    for step_s in steps:
        clock.advance(step_s)
        at_s += round(step_s * 1e9) / 1e9
        record(health, 1)
        ends.append(at_s)
        surely = sum(at_s - end < WINDOW_S - SLOT_S for end in ends)
        at_most = sum(at_s - end <= WINDOW_S + SLOT_S for end in ends)
        assert surely <= samples(health) <= at_most


@pytest.mark.parametrize("idle_s", [2 * WINDOW_S + SLOT_S, 48 * WINDOW_S, 1e6 * SLOT_S])
def test_idle_time_of_any_length_leaves_nothing_behind(clock: HandClock, idle_s: float) -> None:
    health = windowed(clock)
    record(health, 100, "server_fault", latency_ms=900)
    clock.advance(idle_s)
    record(health, 20)
    assert outcomes(health) == {"answered": 20}
    assert p99_ms(health) == pytest.approx(5, rel=0.01)
    assert trend(health) is Trend.STABLE


@given(st.lists(st.floats(-HOUR_S, 10 * HOUR_S), min_size=1, max_size=60))
def test_every_latency_is_in_the_histogram_once(latencies_s: list[float]) -> None:
    health = agent(HandClock())
    for latency_s in latencies_s:
        health.record(latency_ms=latency_s * 1000)
    assert sum(health._latencies) == samples(health) == len(latencies_s)


# --- the two clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, 400 * 24 * HOUR_S, -400 * 24 * HOUR_S])
def test_wall_clock_change_loses_no_sample_and_no_time(clock: HandClock, step_s: int) -> None:
    health = agent(clock, window_seconds=HOUR_S)
    record(health, 50)
    with health.interaction():
        clock.advance(0.1)
        clock.step_wall(step_s)
        clock.advance(0.1)
    record(health, 49)
    assert samples(health) == 100
    assert p99_ms(health) == pytest.approx(5, rel=0.01)
    document = health.document()
    assert document.timestamp == now(clock).replace(microsecond=now(clock).microsecond // 1000 * 1000)
    assert document.health.uptime_seconds == 0
    # The cached document stays for a minute of monotonic time.
    first = served(health)
    clock.advance(59)
    assert served(health) == first
    clock.advance(2)
    assert served(health) != first
    assert samples(health) == 100


def test_wall_clock_change_during_an_interaction_does_not_change_its_latency(clock: HandClock) -> None:
    health = agent(clock)
    for step_s in (HOUR_S, -HOUR_S):
        with health.interaction():
            clock.advance(0.2)
            clock.step_wall(step_s)
    assert p99_ms(health) == pytest.approx(200, rel=0.01)


def test_test_clock_begins_at_its_stated_time(clock: HandClock) -> None:
    assert clock.wall_ns() == START_WALL_NS
