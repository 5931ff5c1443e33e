"""How are the results of many probes summed up, and how long did answers take?

Sums are kept per hour, layer and result class; how long answers took is counted in buckets, each 19 %
wider than the one before, so that sums of any hours add up and a percentile is within 10 % of what was
measured. A percentile's bucket is by nearest rank, its value the bucket's middle.
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
"""What takes longer than 2^(71/4) ms, 220 s, is counted here: no probe is that patient."""
NO_LATENCY: Final = -1
"""The bucket of what ended without an answer, and of what is no single request."""


_SILENT: Final[frozenset[str]] = frozenset({ResultClass.NOT_MEASURED, ResultClass.INTERNAL})


class Layer(StrEnum):
    """What results are counted of: a layer of the observation, or the probe as a whole."""

    OVERALL = "overall"
    """The probe's one result (`Observation.result`)."""
    DISCOVERY = "discovery"
    TRANSPORT = "transport"
    READINESS = "readiness"
    MESSAGE = "message"


class Layered(Protocol):
    """What was seen layer by layer, None where it was not asked: an observation, or what is kept of one."""

    @property
    def discovery(self) -> LayerResult | None:
        """The card."""

    @property
    def transport(self) -> LayerResult | None:
        """The interface that it names."""

    @property
    def readiness(self) -> LayerResult | None:
        """The health document."""

    @property
    def message(self) -> LayerResult | None:
        """A real message."""


def bucket_of(latency_ms: float | None) -> int:
    """Return the bucket of a latency: 0 up to 1 ms, k up to 2^(k/4) ms; NO_LATENCY for None."""
    if latency_ms is None:
        return NO_LATENCY
    if latency_ms <= 1.0:
        return 0
    return min(LAST_BUCKET, math.ceil(math.log2(latency_ms) * BUCKETS_PER_OCTAVE))


def middle_ms(bucket: int) -> float:
    """Return the latency in the middle of a bucket, as a geometric mean of its ends."""
    return math.exp2((bucket - 0.5) / BUCKETS_PER_OCTAVE)


def percentile_ms(counts: Mapping[int, int], percentile: float) -> float | None:
    """Return a percentile, above 0 up to 100, of latencies that were counted by bucket.

    None where there is none: no answer is no fast answer. What has NO_LATENCY does not count.
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
    """Return the layers that a probe asked, in the order in which it asks them."""
    if observation.discovery is not None:
        yield Layer.DISCOVERY, observation.discovery
    if observation.transport is not None:
        yield Layer.TRANSPORT, observation.transport
    if observation.readiness is not None:
        yield Layer.READINESS, observation.readiness
    if observation.message is not None:
        yield Layer.MESSAGE, observation.message


def is_informative(result: ResultClass) -> bool:
    """Whether a result says something about the target: not if nobody looked, or the fault is ours.

    Whoever is refused by our own rules has been looked at, as far as it goes.
    """
    return result not in _SILENT


def supersedes(result: ResultClass, known: str | None, *, is_excluded: bool = False) -> bool:
    """Whether a result takes the place of the class that is known; None: nobody has looked yet.

    What tells nothing takes the place of nothing that was measured, yet says why nothing is known. Where
    robots.txt or a list keeps us out (`is_excluded`) nobody looks again: what was known before would stay
    for ever.
    """
    if result not in _SILENT or known is None or known in _SILENT:
        return True
    return is_excluded and result is ResultClass.NOT_MEASURED
