import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hand_clock import START_WALL_NS, HandClock
from tests.support.recording import agent, calibration, published, record, served, status, trend

from lifesign import AgentHealth
from lifesign.domain.health.document import HealthStatus, Trend

NOW = datetime.fromtimestamp(START_WALL_NS / 1e9, UTC)
TOKYO = timezone(timedelta(hours=9))
LONG_AGO = (NOW - timedelta(days=3, hours=23)).astimezone(TOKYO)
WINDOW_S = 2400
SLOT_S = WINDOW_S / 24
HOUR_S = 3600


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.INFO, logger="lifesign"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "lifesign"]


def now(clock: HandClock) -> datetime:
    return datetime.fromtimestamp(clock.wall_ns() / 1e9, UTC)


def windowed(clock: HandClock) -> AgentHealth:
    return agent(clock, window_seconds=WINDOW_S)


# --- status and ratios ------------------------------------------------------------------------------------


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


# --- timestamps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [LONG_AGO, lambda: LONG_AGO])
def test_moments_are_utc_and_ages_whole_days(clock: HandClock, moment: Any) -> None:
    decay = agent(clock, model_changed_at=moment, capabilities_updated_at=moment).document().decay
    assert decay is not None
    assert decay.days_since_model_change == 3
    assert decay.last_capability_update == LONG_AGO
    assert decay.last_capability_update.tzinfo is UTC


def test_setting_given_as_a_function_is_called_for_each_document(clock: HandClock) -> None:
    moments = [LONG_AGO, NOW]
    health = agent(clock, capabilities_updated_at=moments.pop)
    for moment in (NOW, LONG_AGO):
        decay = health.document().decay
        assert decay is not None
        assert decay.last_capability_update == moment


def _broken() -> datetime:
    raise RuntimeError("no database")


def _naive() -> datetime:
    return NOW.replace(tzinfo=None)


def _text() -> Any:
    return "2025-11-20T12:00:00Z"


@pytest.mark.parametrize("function", [_broken, _naive, _text])
@pytest.mark.parametrize(
    ("name", "member"),
    [("model_changed_at", "days_since_model_change"), ("capabilities_updated_at", "last_capability_update")],
)
def test_function_that_returns_no_time_is_omitted_and_logged_once_a_minute(
    clock: HandClock, complaints: Callable[[], list[str]], name: str, member: str, function: Any
) -> None:
    health = agent(clock, **{name: function})
    for _ in range(10):
        health.record(latency_ms=5)
    for minute in (1, 2):
        for _ in range(5):
            document = health.document()
            assert document.health.status is HealthStatus.HEALTHY
            assert getattr(document.decay, member) is None
        assert len(complaints()) == minute
        assert name in complaints()[-1]
        clock.advance(61)
    assert b"no database" not in health.document().to_json()


# --- uptime -----------------------------------------------------------------------------------------------


def test_uptime_is_the_monotonic_time_since_the_window_was_opened(clock: HandClock) -> None:
    health = agent(clock)
    health.open()
    clock.advance(HOUR_S)
    clock.step_wall(HOUR_S)
    assert health.document().health.uptime_seconds == HOUR_S
