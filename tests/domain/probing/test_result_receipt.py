"""Receipts of results."""

import pytest

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.probing.result_receipt import receipt_of

AT_S = 1_782_900_000.0


def after(memory: ProbeMemory | None, interval_s: float = 300.0) -> tuple[float, float]:
    """Return how long a result counts, and how long the next one may take, in seconds."""
    receipt = receipt_of(AT_S, interval_s, memory)
    assert receipt.at_s == AT_S
    assert receipt.max_gap_s == 2 * interval_s
    return receipt.evidence_until_s - AT_S, receipt.results_until_s - AT_S


@pytest.mark.parametrize("interval_s", [10, 300, 86_400])
def test_a_result_counts_for_three_intervals(interval_s: float) -> None:
    assert after(None, interval_s) == after(ProbeMemory(), interval_s) == (3 * interval_s, 3 * interval_s)


def test_result_of_a_backed_off_target_counts_for_three_of_its_intervals() -> None:
    # It never answered: the interval doubles with each failure, up to a day.
    expected = {0: 900, 1: 1_800, 3: 7_200, 100: 3 * 300 * 256}
    for failures, long_s in expected.items():
        assert after(ProbeMemory(failures_in_row=failures, doublings=failures)) == (long_s, long_s)


def test_an_agent_that_answered_once_is_probed_in_every_interval_until_it_is_dead() -> None:
    assert after(ProbeMemory(failures_in_row=12, card_read_at_s=AT_S - 9e3)) == (900, 900)
    dead = ProbeMemory(failures_in_row=1000, silence_s=9e5, doublings=952, card_read_at_s=AT_S - 9e5)
    assert after(dead)[0] > 86_400


def test_result_of_a_dead_agent_with_a_short_threshold_counts_until_its_next_probe() -> None:
    memory = ProbeMemory(failures_in_row=6, silence_s=1800, doublings=3, card_read_at_s=AT_S - 9e3)
    assert receipt_of(AT_S, 300.0, memory).evidence_until_s == AT_S + 900
    registered = receipt_of(AT_S, 300.0, memory, (30.0, 60.0))
    # Four failures, then three doublings.
    assert registered.evidence_until_s == registered.results_until_s == AT_S + 8 * 900


@pytest.mark.parametrize(
    ("memory", "waits_s"),
    [
        (ProbeMemory(not_before_s=AT_S + 3_600), 3_600 + 900),
        (ProbeMemory(not_before_s=AT_S + 1e9), 86_400 + 900),
        (ProbeMemory(not_before_s=AT_S - 60), 900),
        (ProbeMemory(slowdowns=2), 4 * 900),
        (ProbeMemory(is_disallowed_by_robots=True, robots_read_at_s=AT_S), 82_800 + 900),
        (ProbeMemory(is_disallowed_by_robots=True, robots_read_at_s=AT_S + 1e9), 82_800 + 900),
    ],
)
def test_retry_after_does_not_extend_the_validity_of_a_result(memory: ProbeMemory, waits_s: float) -> None:
    assert after(memory) == (900, waits_s)
