import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.hand_clock import START_WALL_NS, HandClock
from tests.support.recording import agent, outcomes, p99_ms, published, samples

from lifesign import AgentHealth
from lifesign.domain.health.document import HealthStatus
from lifesign.errors import InvalidValue
from lifesign.middleware import Outcome, recorder

NOW = datetime.fromtimestamp(START_WALL_NS / 1e9, UTC)
HOUR_MS = 3_600_000

# protocol.md 2, the column `interactions`: entries other than a dash.
SAMPLED = {
    "answered", "caller_fault", "rate_limited", "server_fault", "task_failed", "raised",
    "unfinished", "timed_out", "malformed", "abandoned_late", "tool_error",
}  # fmt: skip
NOT_SAMPLED = {"not_inspected", "no_operation", "not_admitted", "abandoned", "excluded"}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def health(clock: HandClock) -> AgentHealth:
    return agent(clock)


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.INFO, logger="lifesign"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "lifesign"]


# --- record -----------------------------------------------------------------------------------------------


def test_outcomes_are_those_of_the_protocol() -> None:
    assert {outcome.name.lower() for outcome in Outcome} == SAMPLED | NOT_SAMPLED


@pytest.mark.parametrize("name", sorted(SAMPLED | NOT_SAMPLED))
def test_an_interaction_is_counted_under_the_name_of_its_outcome(health: AgentHealth, name: str) -> None:
    health.record(name, latency_ms=5)
    health.record(Outcome[name.upper()], latency_ms=5)
    assert outcomes(health) == {name: 2}
    assert samples(health) == (2 if name in SAMPLED else 0)


@pytest.mark.parametrize("counting", ["literal", "interactions", "server_faults"])
def test_recorded_tool_errors_are_compared_with_all_records(clock: HandClock, counting: str) -> None:
    health = agent(clock, counting=counting)
    for outcome in ["answered"] * 19 + ["tool_error"]:
        health.record(outcome, latency_ms=5)
    assert health.document().health.status is HealthStatus.HEALTHY
    for _ in range(19):
        health.record("tool_error", latency_ms=5)
    assert health.document().health.status is not HealthStatus.HEALTHY


def test_record_without_an_outcome_counts_as_answered(health: AgentHealth) -> None:
    health.record(latency_ms=5)
    assert outcomes(health) == {"answered": 1}


@pytest.mark.parametrize("wrong", ["nonsense", "", None, 3, b"answered", 1.0, ["answered"]])
def test_invalid_outcome_is_refused_with_the_valid_names(health: AgentHealth, wrong: Any) -> None:
    with pytest.raises(InvalidValue, match="task_failed") as refused:
        health.record(wrong, latency_ms=5)
    assert refused.value.name == "outcome"
    assert outcomes(health) == {}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), "5", None, 5j, timedelta(1)])
@pytest.mark.parametrize("argument", ["latency_ms", "first_byte_ms"])
def test_a_latency_that_is_no_number_is_refused_by_its_name(
    health: AgentHealth, argument: str, wrong: Any
) -> None:
    if argument == "first_byte_ms" and wrong is None:
        return  # that is how it is left out
    with pytest.raises(InvalidValue, match=argument) as refused:
        health.record(**({"latency_ms": 5} | {argument: wrong}))
    assert refused.value.name == argument
    assert outcomes(health) == {}


@pytest.mark.parametrize("latency_ms", [-1, -1e300, 0, 0.0])
def test_negative_latency_counts_as_zero(health: AgentHealth, latency_ms: float) -> None:
    health.record(latency_ms=latency_ms)
    assert samples(health) == 1
    assert 0 <= p99_ms(health) < 0.001


@pytest.mark.parametrize(
    "latency_ms", [HOUR_MS, HOUR_MS + 1, 10 * HOUR_MS, 1e290, 1e305, pytest.param(10**400, id="10**400")]
)
def test_latency_above_an_hour_counts_as_an_hour(health: AgentHealth, latency_ms: float) -> None:
    health.record(latency_ms=latency_ms)
    assert samples(health) == 1
    assert p99_ms(health) == pytest.approx(HOUR_MS, rel=0.01)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_fast_responses_are_visible_immediately(health: AgentHealth, clock: HandClock, count: int) -> None:
    for _ in range(count):
        health.count_quick_answer(5_000_000, clock.monotonic_ns())
    assert outcomes(health) == {"answered": count}
    assert samples(health) == count
    assert p99_ms(health) == pytest.approx(5, rel=0.01)
    clock.advance(health.settings.refresh_seconds)
    assert published(health).calibration == health.document().calibration


def test_shared_file_is_visible_to_other_workers_at_once(clock: HandClock, tmp_path: Path) -> None:
    worker, other = (agent(clock, state_dir=tmp_path) for _ in range(2))
    worker.count_quick_answer(5_000_000, clock.monotonic_ns())
    assert outcomes(other) == {"answered": 1}
    other.close()
    worker.close()


def test_first_byte_latency_of_streams_has_its_own_percentiles(health: AgentHealth) -> None:
    health.record(latency_ms=900, first_byte_ms=20)
    health.record(latency_ms=100)
    document = health.document()
    assert document.extensions is not None
    first_byte = document.extensions["io.github.lifesign.first-byte"]
    assert first_byte == {
        "latency_p50_ms": pytest.approx(20, rel=0.01),
        "latency_p99_ms": pytest.approx(20, rel=0.01),
    }
    assert p99_ms(health) == pytest.approx(900, rel=0.01)


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [NOW.replace(tzinfo=None), "2025-11-20", 5])
def test_a_moment_without_a_zone_is_refused_at_once(clock: HandClock, wrong: Any) -> None:
    with pytest.raises(InvalidValue, match="capabilities_updated_at"):
        agent(clock, capabilities_updated_at=wrong)


# --- failures ---------------------------------------------------------------------------------------------


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("secret of the inside")


def test_broken_recorder_fails_no_request_and_is_logged_once_a_minute(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch, complaints: Callable[[], list[str]]
) -> None:
    health = agent(clock)
    monkeypatch.setattr(health, "count", fail)
    for minute in (1, 2):
        for _ in range(1000):
            health.record(latency_ms=5)
            with health.interaction():
                pass
        assert len(complaints()) == minute
        clock.advance(61)


def test_unreadable_windows_fail_no_request(
    health: AgentHealth, monkeypatch: pytest.MonkeyPatch, complaints: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(recorder, "open_windows", fail)
    health.open()
    for _ in range(100):
        health.record(latency_ms=5)
    assert published(health).health.status is HealthStatus.UNKNOWN
    # One of opening, one of counting, one of the document.
    assert len(complaints()) == len(set(complaints())) <= 3
