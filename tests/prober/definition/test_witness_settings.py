"""Witnesses and the check of the prober itself in a probe definition."""

import pytest

from lifesign.domain.observation.witness_rule import Canary, WitnessPolicy
from lifesign.prober.definition.lag_limits import LagPolicy
from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.prober.definition.witness_settings import CanarySettings, SelfCheckSettings, WitnessSettings


def test_durations_of_the_witness_rule_can_be_configured() -> None:
    assert WitnessSettings().policy(60) == WitnessPolicy()
    scaled = WitnessSettings(
        round_seconds=0.5,
        answer_seconds=0.1,
        next_answer_seconds=0.2,
        second_request_seconds=1,
        max_clock_offset_seconds=2,
    )
    assert scaled.policy(60) == WitnessPolicy(
        round_s=0.5, answer_s=0.1, next_answer_s=0.2, second_request_s=1, max_clock_offset_s=2
    )


def test_failure_waits_at_most_half_an_interval_for_a_witness() -> None:
    assert WitnessSettings().policy(10) == WitnessPolicy(round_s=5.0, next_answer_s=5.0)
    assert WitnessSettings().policy(3) == WitnessPolicy(round_s=1.5, next_answer_s=1.5)


def test_limits_of_lag_can_be_configured() -> None:
    assert SelfCheckSettings().policy(Timeouts().shortest_s) == LagPolicy()
    scaled = SelfCheckSettings(max_lag_seconds=0.1, max_standstill_seconds=0.3)
    assert scaled.policy(5) == LagPolicy(max_lag_s=0.1, max_standstill_s=0.3)


def test_limits_of_lag_are_parts_of_a_short_timeout() -> None:
    assert SelfCheckSettings().policy(0.5) == LagPolicy(max_lag_s=0.125, max_standstill_s=0.25)


@pytest.mark.parametrize("status", [None, 401])
def test_canary_has_the_status_that_is_expected(status: int | None) -> None:
    settings = CanarySettings(url="https://a.example/", status=status)
    assert settings.canary == Canary(url="https://a.example/", status=status)
