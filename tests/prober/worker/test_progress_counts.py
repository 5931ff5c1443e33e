import pytest

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


def test_start_delays_are_reported_by_their_99th_percentile() -> None:
    tally = Tally(0.0)
    assert tally.start_error_p99_ms() is None
    for number in range(1, 101):
        tally.note_start(number / 1000)
    assert tally.start_error_p99_ms() == pytest.approx(99, rel=0.01)
    # Earlier than due, by rounding, is in time.
    tally.note_start(-1e-6)
