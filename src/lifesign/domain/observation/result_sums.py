"""Sums of the results of many probes, with latencies.

Sums are kept per hour, layer and result class. Latencies are counted in buckets, each 19 % wider than the
previous one, so that sums of any hours add up and a percentile is within 10 % of the measured value. A
percentile's bucket is by nearest rank, its value the bucket's middle.
"""

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final, Protocol

from lifesign.domain.observation.results import LayerResult, ResultClass
from lifesign.errors import InvalidValue

BUCKETS_PER_OCTAVE: Final = 4
LAST_BUCKET: Final = 72
"""Last bucket: latencies above 2^(71/4) ms (220 s), which no probe waits for."""
NO_LATENCY: Final = -1
"""Bucket of results without a latency, and of those that are not a single request."""


_SILENT: Final[frozenset[str]] = frozenset({ResultClass.NOT_MEASURED, ResultClass.INTERNAL})


class Layer(StrEnum):
    """Layer of an observation, or the probe as a whole, for which results are counted."""

    OVERALL = "overall"
    """The probe's one result (`Observation.result`)."""
    DISCOVERY = "discovery"
    TRANSPORT = "transport"
    READINESS = "readiness"
    MESSAGE = "message"


class Layered(Protocol):
    """Results of a probe by layer; None for a layer that was not probed."""

    @property
    def discovery(self) -> LayerResult | None:
        """Result of the request for the agent card."""

    @property
    def transport(self) -> LayerResult | None:
        """Result of the interface that the card names."""

    @property
    def readiness(self) -> LayerResult | None:
        """Result of the request for the health document."""

    @property
    def message(self) -> LayerResult | None:
        """Result of a real message to the agent."""


def bucket_of(latency_ms: float | None) -> int:
    """Return the bucket in which a latency is counted: number k is up to 2^(k/4) ms; NO_LATENCY for None."""
    if latency_ms is None:
        return NO_LATENCY
    if latency_ms <= 1.0:
        return 0
    return min(LAST_BUCKET, math.ceil(math.log2(latency_ms) * BUCKETS_PER_OCTAVE))


def middle_ms(bucket: int) -> float:
    """Return the latency that stands for a bucket: the geometric mean of its bounds."""
    return math.exp2((bucket - 0.5) / BUCKETS_PER_OCTAVE)


def percentile_ms(counts: Mapping[int, int], percentile: float) -> float | None:
    """Return a percentile, above 0 up to 100, of latencies counted by bucket.

    None without latencies: no answer is not a fast answer. NO_LATENCY does not count.
    """
    if not 0 < percentile <= 100:
        raise InvalidValue("percentile", percentile, "above 0 up to 100")
    answered = sorted((bucket, count) for bucket, count in counts.items() if bucket != NO_LATENCY and count)
    if not answered:
        return None
    ranks = list(accumulate(count for _, count in answered))
    rank = math.ceil(ranks[-1] * percentile / 100)
    return next(middle_ms(bucket) for (bucket, _), last in zip(answered, ranks, strict=True) if rank <= last)


def layers_of(observation: Layered) -> Iterator[tuple[Layer, LayerResult]]:
    """Return the layers that a probe requested, in the order of the requests."""
    if observation.discovery is not None:
        yield Layer.DISCOVERY, observation.discovery
    if observation.transport is not None:
        yield Layer.TRANSPORT, observation.transport
    if observation.readiness is not None:
        yield Layer.READINESS, observation.readiness
    if observation.message is not None:
        yield Layer.MESSAGE, observation.message


def is_informative(result: ResultClass) -> bool:
    """Return whether a result says something about the target, instead of a fault of the prober.

    A target that the prober's own rules exclude counts as probed.
    """
    return result not in _SILENT


def supersedes(result: ResultClass, known: str | None, *, is_excluded: bool = False) -> bool:
    """Return whether a new result replaces the stored one (None: never probed).

    An inconclusive result replaces no measured one, but its reason is kept. If robots.txt or an opt-out
    excludes the target (`is_excluded`), the result replaces the known class, which would otherwise stay
    forever.
    """
    if result not in _SILENT or known is None or known in _SILENT:
        return True
    return is_excluded and result is ResultClass.NOT_MEASURED
