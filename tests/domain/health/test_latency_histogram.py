import random
from collections.abc import Callable, Sequence

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.nearest_rank import nearest_rank

from lifesign.domain.health.latency_histogram import (
    BIN_COUNT,
    LONGEST_LATENCY_NS,
    LatencyHistogram,
    bin_of,
    clamped,
)

HOUR_NS = 3_600_000_000_000
FINEST_NS = 13_000
"""From here on the percentiles promise to be within 1 %."""
LAYOUT = HdrHistogram(128, HOUR_NS, 2)


def bins_of(latencies: Sequence[int]) -> memoryview:
    """Count latencies as the recorder does, in lanes of their own."""
    lanes = memoryview(bytearray(8 * BIN_COUNT)).cast("Q")
    for latency_ns in latencies:
        lanes[bin_of(clamped(latency_ns))] += 1
    return lanes.cast("B")


def histogram_of(latencies: Sequence[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    histogram.add(bins_of(latencies))
    return histogram


def total(histogram: LatencyHistogram) -> int:
    return sum(histogram.bins().cast("Q").tolist())


# --- bins -------------------------------------------------------------------------------------------------


@given(st.integers(0, HOUR_NS))
@example(0)
@example(HOUR_NS)
def test_a_latency_falls_into_the_bin_that_hdr_histogram_gives_it(latency_ns: int) -> None:
    assert bin_of(latency_ns) == LAYOUT.get_counts_array_index(latency_ns)


def test_histogram_bins_equal_those_of_hdr_histogram_at_each_magnitude() -> None:
    edges = {
        edge + step
        for exponent in range(42)
        for edge in (1 << exponent, 3 << exponent, 255 << exponent)
        for step in (-129, -128, -1, 0, 1, 127, 128)
        if 0 <= edge + step <= HOUR_NS
    }
    assert {edge: bin_of(edge) for edge in edges} == {
        edge: LAYOUT.get_counts_array_index(edge) for edge in edges
    }


@given(st.integers(0, HOUR_NS), st.integers(0, HOUR_NS))
def test_a_longer_latency_never_falls_into_a_lower_bin(one_ns: int, other_ns: int) -> None:
    shorter, longer = sorted([one_ns, other_ns])
    assert 0 <= bin_of(shorter) <= bin_of(longer) < BIN_COUNT


@given(st.integers(-10 * HOUR_NS, 10 * HOUR_NS))
@example(-1)
@example(HOUR_NS + 1)
@example(2**80)
def test_latency_out_of_range_is_clamped(latency_ns: int) -> None:
    within = clamped(latency_ns)
    assert 0 <= within <= LONGEST_LATENCY_NS
    assert within == latency_ns or within in {0, LONGEST_LATENCY_NS}
    assert 0 <= bin_of(within) < BIN_COUNT


@given(st.lists(st.integers(-HOUR_NS, 10 * HOUR_NS), max_size=200))
@example([-1, 0, 1, HOUR_NS, HOUR_NS + 1, 10 * HOUR_NS])
def test_no_latency_is_ever_dropped(latencies: list[int]) -> None:
    assert total(histogram_of(latencies)) == len(latencies)


# --- percentiles ------------------------------------------------------------------------------------------

DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "log-normal": lambda chance: chance.lognormvariate(17, 1.5),
    "bimodal": lambda chance: chance.gauss(2e6, 2e5) if chance.random() < 0.9 else chance.gauss(3e9, 3e8),
    "heavy-tailed": lambda chance: 5e5 * chance.paretovariate(0.8),
    "uniform": lambda chance: chance.uniform(FINEST_NS, 3e10),
}


def drawn(distribution: str, count: int, seed: int) -> list[int]:
    chance = random.Random(seed)  # noqa: S311 - latencies, not secrets
    draw = DISTRIBUTIONS[distribution]
    return [min(max(int(draw(chance)), FINEST_NS), HOUR_NS) for _ in range(count)]


def assert_within_1_percent(latencies: Sequence[int]) -> None:
    p50_ms, p99_ms = histogram_of(latencies).percentiles_ms(0.50, 0.99)
    assert p50_ms == pytest.approx(nearest_rank(latencies, 50) / 1e6, rel=0.01)
    assert p99_ms == pytest.approx(nearest_rank(latencies, 99) / 1e6, rel=0.01)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@given(count=st.integers(1, 5000), seed=st.integers(0, 2**32))
@example(count=1, seed=0)
@example(count=2, seed=0)
@example(count=99, seed=0)
@example(count=100, seed=0)
@example(count=101, seed=0)
@example(count=5000, seed=0)
def test_percentiles_are_within_1_percent_of_the_exact_nearest_rank(
    distribution: str, count: int, seed: int
) -> None:
    assert_within_1_percent(drawn(distribution, count, seed))


@given(st.lists(st.integers(FINEST_NS, HOUR_NS), min_size=1, max_size=300))
def test_percentiles_of_13_microseconds_to_an_hour_are_within_1_percent(latencies: list[int]) -> None:
    assert_within_1_percent(latencies)


def test_the_rank_is_the_ceiling_for_every_number_of_latencies() -> None:
    """Peers round the rank, and then p99 of 150 answers is the one below."""
    for count in range(1, 401):
        steps = [FINEST_NS + 1000 * FINEST_NS * index for index in range(count)]
        exact = tuple(nearest_rank(steps, percent) / 1e6 for percent in (1, 50, 99, 100))
        assert histogram_of(steps).percentiles_ms(0.01, 0.50, 0.99, 1.0) == pytest.approx(exact, rel=0.01)


def test_the_lowest_percentile_is_the_shortest_latency() -> None:
    histogram = histogram_of([1_000_000, 9_000_000])
    assert histogram.percentiles_ms(0.0, 1.0) == pytest.approx((1.0, 9.0), rel=0.01)


def test_below_13_microseconds_a_percentile_is_at_most_64_nanoseconds_off() -> None:
    for latency_ns in range(0, FINEST_NS, 97):
        (p50_ms,) = histogram_of([latency_ns]).percentiles_ms(0.50)
        assert abs(p50_ms * 1e6 - latency_ns) <= 64 + 0.0005 * latency_ns


def test_latency_of_ten_hours_counts_as_one_hour() -> None:
    (p99_ms,) = histogram_of([10 * HOUR_NS]).percentiles_ms(0.99)
    assert p99_ms == pytest.approx(HOUR_NS / 1e6, rel=0.01)


def test_a_percentile_has_four_significant_digits() -> None:
    (p50_ms,) = histogram_of([123_456_789]).percentiles_ms(0.50)
    assert len(f"{p50_ms}".replace(".", "").strip("0")) <= 4


def test_without_a_latency_there_is_no_percentile() -> None:
    assert LatencyHistogram().percentiles_ms(0.50, 0.99) == ()
    assert histogram_of([]).percentiles_ms(0.50) == ()


# --- sums -------------------------------------------------------------------------------------------------

LATENCIES = st.lists(st.integers(0, HOUR_NS), max_size=30)


@given(st.lists(LATENCIES, max_size=5))
def test_the_sum_of_histograms_is_the_histogram_of_all_latencies(parts: list[list[int]]) -> None:
    summed = LatencyHistogram()
    for part in parts:
        summed.add(bins_of(part))
    assert summed.bins() == bins_of([latency_ns for part in parts for latency_ns in part])


@given(LATENCIES, LATENCIES)
def test_adding_a_histogram_to_another_does_not_change_the_first(one: list[int], other: list[int]) -> None:
    first, second = histogram_of(one), histogram_of(other)
    before = bytes(first.bins())
    second.add(first.bins())
    assert first.bins() == before
    assert second.bins() == bins_of(one + other)


def test_cleared_histogram_is_empty() -> None:
    histogram = histogram_of([1_000_000])
    histogram.clear()
    assert total(histogram) == 0
    assert histogram.percentiles_ms(0.50) == ()
    histogram.add(bins_of([2_000_000]))
    assert total(histogram) == 1


def test_a_bin_counts_beyond_four_billion() -> None:
    lanes = memoryview(bytearray(8 * BIN_COUNT)).cast("Q")
    lanes[bin_of(1_000_000)], lanes[bin_of(9_000_000)] = 2**40, 1
    histogram = LatencyHistogram()
    for _ in range(3):
        histogram.add(lanes.cast("B"))
    assert total(histogram) == 3 * (2**40 + 1)
    assert histogram.percentiles_ms(0.99) == pytest.approx((1.0,), rel=0.01)
