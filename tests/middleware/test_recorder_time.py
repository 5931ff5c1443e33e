from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hand_clock import START_WALL_NS, HandClock
from tests.support.recording import (
    agent,
    calibration,
    outcomes,
    p99_ms,
    published,
    record,
    samples,
    served,
    status,
    trend,
)

from lifesign import AgentHealth
from lifesign.domain.health.document import HealthStatus, Trend

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


def test_an_empty_window_has_no_ratio_and_no_percentile(clock: HandClock) -> None:
    health = windowed(clock)
    record(health, 100)
    clock.advance(WINDOW_S + SLOT_S)
    document = health.document()
    assert document.health.status is HealthStatus.UNKNOWN
    assert calibration(health).model_dump(exclude_unset=True).keys() == {
        "measurement_window_seconds",
        "sample_count",
    }


@pytest.mark.parametrize(
    ("answered", "failed", "expected"),
    [
        (9, 0, HealthStatus.UNKNOWN),
        (10, 0, HealthStatus.HEALTHY),
        (95, 5, HealthStatus.HEALTHY),
        (9499, 501, HealthStatus.DEGRADED),
        (50, 50, HealthStatus.DEGRADED),
        (4999, 5001, HealthStatus.UNHEALTHY),
        (0, 9, HealthStatus.UNKNOWN),
        (0, 10, HealthStatus.UNHEALTHY),
    ],
)
def test_the_status_follows_the_samples(
    clock: HandClock, answered: int, failed: int, expected: HealthStatus
) -> None:
    health = windowed(clock)
    record(health, answered)
    record(health, failed, "server_fault")
    assert status(health) is expected
    ratio, errors = calibration(health).response_ratio, calibration(health).error_ratio
    assert ratio is not None
    assert errors is not None
    assert ratio + errors == pytest.approx(1)
    assert ratio == pytest.approx(answered / (answered + failed), abs=1e-6)


def test_a_p99_of_more_than_three_declared_baselines_is_degraded(clock: HandClock) -> None:
    for latency_ms, expected in ((295, HealthStatus.HEALTHY), (305, HealthStatus.DEGRADED)):
        health = agent(clock, baseline_p99_ms=100)
        record(health, 100, latency_ms=latency_ms)
        assert status(health) is expected
        extensions = health.document().extensions or {}
        assert extensions["io.github.lifesign.baseline"] == {"latency_p99_ms": 100}


@given(st.lists(st.floats(-HOUR_S, 10 * HOUR_S), min_size=1, max_size=60))
def test_every_latency_is_in_the_histogram_once(latencies_s: list[float]) -> None:
    health = agent(HandClock())
    for latency_s in latencies_s:
        health.record(latency_ms=latency_s * 1000)
    assert sum(health._latencies) == samples(health) == len(latencies_s)


# --- the trend --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (90, 80, Trend.STABLE),
        (90, 79, Trend.DECLINING),
        (80, 90, Trend.STABLE),
        (79, 90, Trend.IMPROVING),
    ],
)
def test_trend_compares_the_current_and_the_previous_window(
    clock: HandClock, before: int, after: int, expected: Trend
) -> None:
    health = windowed(clock)
    for answered in (before, after):
        clock.advance(WINDOW_S)
        record(health, answered)
        record(health, 100 - answered, "server_fault")
    assert trend(health) is expected


def test_trend_is_absent_without_enough_samples_in_the_previous_window(clock: HandClock) -> None:
    health = windowed(clock)
    record(health, 9)
    assert trend(health) is Trend.STABLE
    clock.advance(WINDOW_S)
    record(health, 100, "server_fault")
    assert trend(health) is Trend.STABLE


# --- last_healthy_at --------------------------------------------------------------------------------------


def degrade(health: AgentHealth, clock: HandClock) -> None:
    """Be healthy for an hour without a request for the document, then degraded."""
    for _ in range(60):
        record(health, 1)
        clock.advance(60)
    record(health, 1000, "server_fault")


def test_last_healthy_at_advances_without_requests(clock: HandClock) -> None:
    health = agent(clock)
    degrade(health, clock)
    healthy_at = health.document().health.last_healthy_at
    assert healthy_at is not None
    assert now(clock) - timedelta(seconds=60) <= healthy_at <= now(clock)
    for _ in range(100):
        clock.advance(60)
        record(health, 1, "server_fault")
        document = published(health)
        assert document.health.status is HealthStatus.UNHEALTHY
        assert document.health.last_healthy_at == healthy_at


@given(st.integers(0, 50 * 365 * 86_400_000))
@example(426_556_860_002)  # in 2039, when the seconds since 1970 need one bit more
def test_last_healthy_at_keeps_millisecond_precision_while_degraded(later_ms: int) -> None:
    clock = HandClock()
    clock.step_wall(later_ms / 1000)
    health = agent(clock)
    record(health, 10)
    healthy_at = published(health).health.last_healthy_at
    record(health, 1000, "server_fault")
    for _ in range(5):
        clock.advance(60)
        assert published(health).health.last_healthy_at == healthy_at


def test_last_healthy_at_never_decreases_in_documents(clock: HandClock) -> None:
    health = agent(clock)
    record(health, 10)
    healthy_at = health.document().health.last_healthy_at
    assert healthy_at == now(clock)
    clock.advance(1)
    record(health, 1000, "server_fault")
    assert health.document().health.last_healthy_at == healthy_at


def test_last_healthy_at_is_absent_before_the_first_healthy_state(clock: HandClock) -> None:
    health = agent(clock)
    record(health, 9)
    assert b"last_healthy_at" not in served(health)
    record(health, 100, "server_fault")
    clock.advance(60)
    assert b"last_healthy_at" not in served(health)


@pytest.mark.parametrize("step_s", [-HOUR_S, -30 * 24 * HOUR_S])
def test_last_healthy_at_is_never_in_the_future(clock: HandClock, step_s: int) -> None:
    health = agent(clock)
    degrade(health, clock)
    clock.step_wall(step_s)
    for _ in range(3):
        for document in (health.document(), published(health)):
            assert document.health.last_healthy_at is not None
            assert document.health.last_healthy_at <= document.timestamp
        clock.advance(60)


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


def test_uptime_is_the_monotonic_time_since_the_window_was_opened(clock: HandClock) -> None:
    health = agent(clock)
    health.open()
    clock.advance(HOUR_S)
    clock.step_wall(HOUR_S)
    assert health.document().health.uptime_seconds == HOUR_S


def test_test_clock_begins_at_its_stated_time(clock: HandClock) -> None:
    assert clock.wall_ns() == START_WALL_NS
