from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.nearest_rank import nearest_rank

from lifesign.domain.observation.result_sums import (
    LAST_BUCKET,
    NO_LATENCY,
    Layer,
    bucket_of,
    is_informative,
    layers_of,
    middle_ms,
    percentile_ms,
    supersedes,
)
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.errors import InvalidValue

LATENCIES_MS = st.floats(0, 200_000)


@given(LATENCIES_MS, LATENCIES_MS)
def test_a_longer_answer_lies_in_no_earlier_bucket(one_ms: float, other_ms: float) -> None:
    if one_ms <= other_ms:
        assert bucket_of(one_ms) <= bucket_of(other_ms)


@given(st.floats(1, 200_000))
def test_bucket_middle_is_within_10_percent_of_each_latency_in_it(latency_ms: float) -> None:
    assert middle_ms(bucket_of(latency_ms)) == pytest.approx(latency_ms, rel=0.1)


@pytest.mark.parametrize(
    ("latency_ms", "bucket"),
    [
        (None, NO_LATENCY),
        (0.0, 0),
        (1.0, 0),
        (1.01, 1),
        (2.0, 4),
        (2.01, 5),
        (1024.0, 40),
        (1e12, LAST_BUCKET),
    ],
)
def test_each_latency_has_its_bucket(latency_ms: float | None, bucket: int) -> None:
    assert bucket_of(latency_ms) == bucket


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=200), st.sampled_from([1, 50, 90, 99, 100]))
def test_a_percentile_is_that_of_the_nearest_rank(latencies_ms: list[int], percentile: int) -> None:
    counts = Counter(map(bucket_of, latencies_ms))
    found = percentile_ms(counts | {NO_LATENCY: 1_000}, percentile)
    assert found == pytest.approx(nearest_rank(latencies_ms, percentile), rel=0.1)


@given(st.lists(LATENCIES_MS), st.lists(LATENCIES_MS))
def test_sums_of_any_hours_add_up(first_ms: list[float], second_ms: list[float]) -> None:
    apart = Counter(map(bucket_of, first_ms)) + Counter(map(bucket_of, second_ms))
    together = Counter(map(bucket_of, [*first_ms, *second_ms]))
    assert percentile_ms(apart, 99) == percentile_ms(together, 99)


@pytest.mark.parametrize("counts", [{}, {NO_LATENCY: 7}, {3: 0}])
def test_without_an_answer_there_is_no_percentile(counts: dict[int, int]) -> None:
    assert percentile_ms(counts, 50) is None


@pytest.mark.parametrize("percentile", [0, -1, 101, float("nan")])
def test_invalid_percentile_is_refused(percentile: float) -> None:
    with pytest.raises(InvalidValue, match="percentile"):
        percentile_ms({1: 1}, percentile)


def test_layers_are_in_request_order() -> None:
    asked = LayerResult(result=ResultClass.OK)
    seen = Observation(
        target_url="https://agent.example/",
        observed_at=datetime(2026, 1, 1, tzinfo=UTC),
        message=asked,
        discovery=asked,
        transport=asked,
    )
    assert [layer for layer, _ in layers_of(seen)] == [Layer.DISCOVERY, Layer.TRANSPORT, Layer.MESSAGE]


@pytest.mark.parametrize(
    ("result", "known", "takes_its_place"),
    [
        ("ok", None, True), ("ok", "not_measured", True), ("refused", "ok", True), ("gated", "ok", True),
        ("not_measured", None, True), ("not_measured", "internal", True), ("not_measured", "ok", False),
        ("internal", "rate_limited", False),
    ],
)  # fmt: skip
def test_inconclusive_result_does_not_replace_a_better_one(
    result: str, known: str | None, *, takes_its_place: bool
) -> None:
    assert supersedes(ResultClass(result), known) is takes_its_place


@pytest.mark.parametrize(
    ("result", "takes_its_place"), [("not_measured", True), ("ok", True), ("internal", False)]
)
def test_target_that_opts_out_is_no_longer_known(result: str, *, takes_its_place: bool) -> None:
    assert supersedes(ResultClass(result), "ok", is_excluded=True) is takes_its_place


def test_only_unprobed_targets_and_our_own_faults_carry_no_information() -> None:
    silent = {result for result in ResultClass if not is_informative(result)}
    assert silent == {ResultClass.NOT_MEASURED, ResultClass.INTERNAL}
