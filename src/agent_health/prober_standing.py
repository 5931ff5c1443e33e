"""Standing of probers: which workers share the shards, and which keep none for the time being.

A fault of a prober's network, or of the prober itself, moves its shards to workers that do better. It changes
nothing about any other target. Times are seconds since the epoch by the registry's clock.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from math import inf

from agent_health.light_value import light_value
from agent_health.silence import PROBE_THRESHOLDS

NO_PROGRESS_INTERVALS = 2
"""A worker that reports no result for so many of its intervals loses its shards."""
DEFAULT_INTERVAL_S = PROBE_THRESHOLDS.interval_s
"""Of a worker that does not say how often it probes."""


class WithheldReason(StrEnum):
    """Why a worker keeps no shard, for programs."""

    REACHES_LESS = "reaches_less"
    """Another living worker reaches all of its network classes, and more."""
    NO_PROGRESS = "no_progress"
    """It reported no result of any kind for two intervals, while another worker did within one."""


@light_value(kw_only=True)
class Worker:
    """A living worker, as it said with its last claim, and what it reported since."""

    holder: str
    """Of its leases."""
    interval_s: float = DEFAULT_INTERVAL_S
    reached: frozenset[str] | None = None
    """Network classes in which a witness answered it within its last interval; None before it knows."""
    reported_at_s: float = -inf
    """Its last result of any kind."""
    barred_until_s: float = -inf
    """It made no progress, and gets no shard before."""

    def has_reported_lately(self, now_s: float) -> bool:
        """Whether it reported a result within its last interval."""
        return now_s - self.reported_at_s <= self.interval_s


def within_known(reached: Iterable[str] | None, known: Collection[str]) -> frozenset[str] | None:
    """Return those of the classes that a worker says it reaches in which any target is expected to answer.

    A worker that makes up classes must not look as if it reached more than others.
    """
    return None if reached is None else frozenset(reached) & frozenset(known)


def withheld(worker: Worker, others: Collection[Worker], now_s: float) -> WithheldReason | None:
    """Return why a worker keeps no shard beside these others; None if it may."""
    if worker.reached is not None and any(
        other is not None and worker.reached < other for other in {other.reached for other in others}
    ):
        return WithheldReason.REACHES_LESS
    if now_s < worker.barred_until_s and _does_another_report(others, now_s):
        return WithheldReason.NO_PROGRESS
    return None


def makes_no_progress(worker: Worker, held_since_s: float, others: Collection[Worker], now_s: float) -> bool:
    """Whether a worker that holds shards with living agents since then is to lose them to another one."""
    quiet_s = now_s - max(worker.reported_at_s, held_since_s)
    return quiet_s > NO_PROGRESS_INTERVALS * worker.interval_s and _does_another_report(others, now_s)


def count_sharers(workers: Collection[Worker], now_s: float) -> int:
    """Return how many of the living workers share the shards, at least 1."""
    return max(1, sum(withheld(worker, workers, now_s) is None for worker in workers))


def _does_another_report(others: Iterable[Worker], now_s: float) -> bool:
    return any(other.has_reported_lately(now_s) and now_s >= other.barred_until_s for other in others)
