from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from lifesign.domain.text.times import Precision, utc_text

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=ZONES)  # noqa: DTZ001 - zones are given


@given(TIMES)
def test_time_reads_back_and_is_written_as_in_the_api(at: datetime) -> None:
    text = utc_text(at)
    assert datetime.fromisoformat(text) == at
    assert f'"{text}"'.encode() == TypeAdapter(datetime).dump_json(at.astimezone(UTC))


@pytest.mark.parametrize(
    ("precision", "text"),
    [
        ("auto", "2026-09-21T14:08:20.250500Z"),
        ("seconds", "2026-09-21T14:08:20Z"),
        ("milliseconds", "2026-09-21T14:08:20.250Z"),
    ],
)
def test_finer_fractions_are_truncated(precision: Precision, text: str) -> None:
    east = timezone(timedelta(hours=2))
    assert utc_text(datetime(2026, 9, 21, 16, 8, 20, 250_500, tzinfo=east), precision) == text
