"""Intervals, time limits and limits of load of a probe definition."""

from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.prober.definition.pacing_settings import CadenceSettings, Timeouts


def refusal(cadence: dict[str, Any]) -> tuple[tuple[int | str, ...], str]:
    """Return the place of the single error and the expectation there."""
    with pytest.raises(ValidationError) as caught:
        CadenceSettings.model_validate(cadence)
    (error,) = caught.value.errors()
    return error["loc"], error["msg"]


@pytest.mark.parametrize(
    ("setting", "least", "too_little"),
    [
        ("interval_seconds", 300, 299.9),
        ("confirm_after_seconds", 30, 29),
        ("card_every_seconds", 3600, 3599),
    ],
)
def test_faster_cadence_than_the_minimum_needs_allow_fast_cadence(
    setting: str, least: float, too_little: float
) -> None:
    place, result = refusal({setting: too_little})
    assert place == (setting,)
    assert f"expected {least} or more" in result
    assert "allow_fast_cadence: true" in result
    assert getattr(CadenceSettings.model_validate({setting: least}), setting) == least
    # In whichever order the two are written.
    for cadence in (
        {setting: too_little, "allow_fast_cadence": True},
        {"allow_fast_cadence": True, setting: too_little},
    ):
        assert getattr(CadenceSettings.model_validate(cadence), setting) == too_little


def test_back_off_below_the_interval_is_refused() -> None:
    assert refusal({"interval_seconds": 600, "max_backoff_seconds": 599})[0] == ()
    edge = CadenceSettings(interval_seconds=600, max_backoff_seconds=600)
    assert edge.policy().max_backoff_s == 600


@pytest.mark.parametrize("seconds", [0, -1, 86_401, float("nan"), float("inf"), "300", True])
def test_interval_out_of_range_is_refused(seconds: object) -> None:
    with pytest.raises(ValidationError):
        CadenceSettings.model_validate({"interval_seconds": seconds, "allow_fast_cadence": True})


@pytest.mark.parametrize(
    ("total_seconds", "given"),
    [
        (None, {}),
        (5, {"total_seconds": 5}),
        (10, {"total_seconds": 10}),
        (11, {"total_seconds": 11, "first_byte_seconds": 11}),
    ],
)
def test_first_byte_may_take_the_whole_time_limit(
    total_seconds: float | None, given: dict[str, float]
) -> None:
    assert Timeouts.within(total_seconds) == given


def test_census_reports_the_time_limits() -> None:
    deadlines = Timeouts(connect_seconds=1, first_byte_seconds=2, total_seconds=3).deadlines
    assert deadlines.model_dump() == {"connect_seconds": 1, "first_byte_seconds": 2, "total_seconds": 3}
