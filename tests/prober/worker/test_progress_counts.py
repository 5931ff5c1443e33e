import pytest

from lifesign.domain.observation.assertion import AssertionResult
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.worker.progress_counts import Tally

OK, TIMEOUT = ResultClass.OK, ResultClass.TIMEOUT


def test_probe_rate_covers_the_last_ten_whole_seconds() -> None:
    tally = Tally(100.0)
    for tenth in range(200):
        tally.note(OK, 100 + tenth / 10)
    assert tally.rate_per_s(120.0) == 10.0
    assert tally.rate_per_s(125.0) == 5.0
    assert tally.rate_per_s(200.0) == 0.0


def test_probe_rate_covers_the_time_since_the_start_at_first() -> None:
    tally = Tally(100.0)
    assert tally.rate_per_s(100.5) == 0.0
    for tenth in range(30):
        tally.note(OK, 100 + tenth / 10)
    assert tally.rate_per_s(103.0) == 10.0


def test_targets_with_failed_assertions_are_counted_until_their_assertions_pass() -> None:
    def outcome(name: str) -> AssertionResult:
        return AssertionResult.model_validate_json(
            f'{{"of": "card", "check": "status", "expected": "200", "result": "{name}"}}'
        )

    tally = Tally(100.0)
    ok, failed, unmeasured = map(outcome, ("ok", "assertion_failed", "not_measured"))
    for target in "abc":
        tally.note_assertions(target, [ok, failed])
    tally.note_assertions("a", [unmeasured])
    tally.note_assertions("b", [ok])
    tally.note_assertions("d", [])
    assert tally.with_failed_assertions == {"a", "c"}
    tally.forget_targets({"c"})
    assert tally.with_failed_assertions == {"a"}


def test_start_delays_are_reported_by_their_99th_percentile() -> None:
    tally = Tally(0.0)
    assert tally.start_error_p99_ms() is None
    for number in range(1, 101):
        tally.note_start(number / 1000)
    assert tally.start_error_p99_ms() == pytest.approx(99, rel=0.01)
    # Earlier than due, by rounding, is in time.
    tally.note_start(-1e-6)
