"""Latency histogram for p50 and p99.

Latencies are counted in the bins of an HDR histogram: 128 ns at the narrow end, then 1/128 of the value, so
that a bin's middle is within 0.4 % of every latency in it, from 13 µs to an hour. The counts may be in any
memory of 64-bit lanes, so that a window file that several processes map is itself the histogram.
"""

import math
from bisect import bisect_left
from itertools import accumulate

from hdrh.histogram import HdrHistogram

LONGEST_LATENCY_NS = 3_600_000_000_000
"""One hour. Longer latencies are counted as one hour."""

_LAYOUT = HdrHistogram(128, LONGEST_LATENCY_NS, 2)
BIN_COUNT: int = _LAYOUT.counts_len
"""Number of 64-bit lanes of one histogram."""


def clamped(latency_ns: int) -> int:
    """Return the latency, limited to the range that the bins cover: 0 to one hour."""
    return min(max(latency_ns, 0), LONGEST_LATENCY_NS)


def bin_of(latency_ns: int) -> int:
    """Return the number of the bin in which a latency is counted, 0 to BIN_COUNT - 1.

    Equal to `HdrHistogram.get_counts_array_index`, in a quarter of its time. The constants are written out,
    because looking them up by name would take as long as the arithmetic.
    """
    shift = (latency_ns | 32767).bit_length() - 15
    return (shift << 7) + (latency_ns >> shift + 7)


class LatencyHistogram:
    """Adds up latency counts (arrays of bins), and computes percentiles of the sum."""

    def __init__(self) -> None:
        self._sum = HdrHistogram(128, LONGEST_LATENCY_NS, 2)
        self._term = HdrHistogram(128, LONGEST_LATENCY_NS, 2)
        self._sum_bytes = memoryview(self._sum.counts).cast("B")
        self._term_bytes = memoryview(self._term.counts).cast("B")

    def clear(self) -> None:
        """Set all counts to zero."""
        self._sum_bytes[:] = bytes(len(self._sum_bytes))

    def add(self, bins: memoryview) -> None:
        """Add the counts of one bin array: BIN_COUNT numbers, as contiguous bytes."""
        # HdrHistogram.add takes histograms only; copying 30 kB into one costs 1 µs.
        self._term_bytes[:] = bins
        self._sum.add(self._term)

    def bins(self) -> memoryview:
        """The summed bins as contiguous bytes, to be added elsewhere; valid until the next change."""
        return self._sum_bytes

    def percentiles_ms(self, *quantiles: float) -> tuple[float, ...]:
        """Return the nearest-rank percentiles in milliseconds, to four significant digits.

        The value of rank ceil(quantile * n) among n latencies, within 1 % of exact for 13 µs and
        above. `quantiles` are from 0 to 1. Empty if there is no latency: no evidence is not zero.
        """
        running = list(accumulate(self._sum_bytes.cast("Q").tolist()))
        total = running[-1]
        if not total:
            return ()
        ranks = (max(1, math.ceil(quantile * total)) for quantile in quantiles)
        return tuple(_milliseconds(_middle_of_bin_ns(bisect_left(running, rank))) for rank in ranks)


def _middle_of_bin_ns(index: int) -> float:
    lowest = _LAYOUT.get_value_from_index(index)
    highest = _LAYOUT.get_highest_equivalent_value(lowest)
    return float(lowest + highest + 1) / 2


def _milliseconds(nanoseconds: float) -> float:
    return float(f"{nanoseconds / 1e6:.4g}")
