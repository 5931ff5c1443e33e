import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.text.durations import duration_text, excess_text, latency_text, precise_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"),
        (3661, "1 h 1 min"), (86_400, "1 d"), (90_000, "1 d 1 h"), (2.0**53, "104249991374 d 7 h"),
    ],
)  # fmt: skip
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.5, "0.5 s"),
        (30, "30 s"),
        (1.1, "1.1 s"),
        (59.99, "59.9 s"),
        (90, "1 min 30 s"),
        (5400, "1 h 30 min"),
    ],
)
def test_precise_duration_keeps_tenths_of_a_second(seconds: float, text: str) -> None:
    assert precise_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "limit_s", "text"),
    [
        (2.03, 2, "2.1 s, more than 2 s"),
        (59.95, 59.9, "1 min, more than 59.9 s"),
        (90.02, 90, "1 min 31 s, more than 1 min 30 s"),
        (91, 90, "1 min 31 s, more than 1 min 30 s"),
        (930, 900, "15 min 30 s, more than 15 min"),
        (3600.4, 3600, "1 h 1 min, more than 1 h"),
        (86_401, 86_400, "1 d 1 h, more than 1 d"),
    ],
)
def test_excess_text_shows_the_excess(seconds: float, limit_s: float, text: str) -> None:
    assert excess_text(seconds, limit_s) == text


@given(st.floats(0.1, 1e7), st.floats(0.01, 1e6))
def test_excess_text_differs_from_its_limit(limit_s: float, more_s: float) -> None:
    beyond, _, limit = excess_text(limit_s + more_s, limit_s).partition(", more than ")
    assert beyond != limit


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0.04, "0.0 ms"),
        (7.5, "7.5 ms"),
        (120.4, "120 ms"),
        (9_999, "9,999 ms"),
        (90_000, "1 min 30 s"),
    ],
)
def test_latency_text_has_milliseconds_below_ten_seconds(milliseconds: float | None, text: str) -> None:
    assert latency_text(milliseconds) == text
