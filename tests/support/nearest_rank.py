"""The exact percentile, computed slowly, as a reference for the fast way."""

from collections.abc import Sequence


def nearest_rank(latencies: Sequence[int], percent: int) -> int:
    """Return the latency of rank ceil(percent / 100 * n) among n, the smallest being rank 1."""
    rank = -(-percent * len(latencies) // 100)
    return sorted(latencies)[max(rank, 1) - 1]
