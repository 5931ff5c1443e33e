"""Which latency is exactly the percentile? The slow and certain way, to compare the fast one with."""

from collections.abc import Sequence


def nearest_rank(latencies: Sequence[int], percent: int) -> int:
    """Return the latency of rank ceil(percent / 100 * n) among n, the smallest being rank 1."""
    rank = -(-percent * len(latencies) // 100)
    return sorted(latencies)[max(rank, 1) - 1]
