"""Deviation of the reported p50 and p99 from the exact ones.

Latencies are recorded by `record` and read from the health document. Beside them: the HDR histogram's own
percentiles of the same bins, and Prometheus' `histogram_quantile` with its client's default buckets. The
exact percentile is the nearest rank: rank ceil(q * n) of the sorted latencies.
"""

import math
import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from hdrh.histogram import HdrHistogram
from prometheus_client import Histogram

from lifesign import AgentHealth
from lifesign.domain.health.latency_histogram import LONGEST_LATENCY_NS

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import is_quick, print_table, verdict
from tests.support.nearest_rank import nearest_rank

Draw = Callable[[random.Random], float]
"""Draws one latency in milliseconds."""

SHAPES: dict[str, Draw] = {
    "log-normal, median 8 ms": lambda chance: chance.lognormvariate(math.log(8), 0.5),
    "log-normal, median 0.1 ms, wide": lambda chance: chance.lognormvariate(math.log(0.1), 1),
    "bimodal, 2 ms and 3 s": lambda chance: (
        chance.gauss(2, 0.1) if chance.random() < 0.97 else chance.gauss(3e3, 200)
    ),
    "heavy-tailed (Pareto 1.1), from 5 ms": lambda chance: 5 * chance.paretovariate(1.1),
}
PERCENTS = (50, 99)
NAMES = ("ours", "hdrhistogram's own", "Prometheus buckets")
FINEST_NS = 13_000
"""Below this, bins are 128 ns wide, and nothing is promised."""


def latencies_of(draw: Draw, size: int, seed: int) -> list[int]:
    """Return latencies in whole nanoseconds, between what is promised at the least and an hour."""
    chance = random.Random(seed)  # noqa: S311 - the same samples every time
    drawn = (int(draw(chance) * 1e6) for _ in range(size))
    return [min(max(latency_ns, FINEST_NS), LONGEST_LATENCY_NS) for latency_ns in drawn]


def ours(latencies: Sequence[int]) -> list[float]:
    health = AgentHealth(agent_id="https://agent.example.com")
    for latency_ns in latencies:
        health.record(latency_ms=latency_ns / 1e6)
    calibration = health.document().calibration
    if calibration is None or calibration.latency_p50_ms is None or calibration.latency_p99_ms is None:
        raise SystemExit("the document has no percentiles")
    return [calibration.latency_p50_ms * 1e6, calibration.latency_p99_ms * 1e6]


def hdr_own(latencies: Sequence[int]) -> list[float]:
    histogram = HdrHistogram(128, LONGEST_LATENCY_NS, 2)
    for latency_ns in latencies:
        histogram.record_value(latency_ns)
    return [float(histogram.get_value_at_percentile(percent)) for percent in PERCENTS]


def prometheus_buckets(latencies: Sequence[int]) -> list[float]:
    """Interpolate within the bucket that holds the rank, as `histogram_quantile` does."""
    bounds_ns = [bound * 1e9 for bound in Histogram.DEFAULT_BUCKETS]
    counts = [0] * len(bounds_ns)
    for latency_ns in latencies:
        counts[bisect_left(bounds_ns, latency_ns)] += 1
    running = [0, *accumulate(counts)]
    edges_ns = [0.0, *bounds_ns]
    estimates = []
    for percent in PERCENTS:
        rank = percent / 100 * len(latencies)
        bucket = bisect_left(running, rank, lo=1)
        if math.isinf(edges_ns[bucket]):
            estimates.append(edges_ns[bucket - 1])
            continue
        share = (rank - running[bucket - 1]) / (running[bucket] - running[bucket - 1])
        estimates.append(edges_ns[bucket - 1] + share * (edges_ns[bucket] - edges_ns[bucket - 1]))
    return estimates


def worst_errors(draw: Draw, sizes: Sequence[int], seeds: Sequence[int]) -> dict[tuple[str, int], float]:
    """Return the worst error in percent, by (name, percentile)."""
    worst: dict[tuple[str, int], float] = {}
    for size in sizes:
        for seed in seeds:
            latencies = latencies_of(draw, size, seed)
            exact = [nearest_rank(latencies, percent) for percent in PERCENTS]
            for name, estimate in zip(NAMES, (ours, hdr_own, prometheus_buckets), strict=True):
                for percent, estimated, right in zip(PERCENTS, estimate(latencies), exact, strict=True):
                    error = 100 * abs(estimated - right) / right
                    worst[name, percent] = max(error, worst.get((name, percent), 0))
    return worst


def main() -> None:
    is_smoke = is_quick(__doc__)
    sizes = (
        (1, 10, 99, 150, 1000) if is_smoke else (1, 2, 10, 50, 99, 100, 101, 150, 199, 1000, 10_000, 100_000)
    )
    seeds = range(2) if is_smoke else range(10)
    rows = []
    for shape, draw in SHAPES.items():
        worst = worst_errors(draw, sizes, seeds)
        for percent in PERCENTS:
            errors = [worst[name, percent] for name in NAMES]
            cells = [f"{error:.2f} %" for error in errors]
            rows.append([f"{shape}: p{percent}", cells[0], verdict(errors[0], at_most=1), *cells[1:]])
    print_table(
        f"Worst error; {len(seeds)} samples of {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} latencies",
        ["", NAMES[0], "target, %", *NAMES[1:]],
        rows,
    )


if __name__ == "__main__":
    main()
