"""Receipts: when a reported result was observed, and until when it counts, by the registry's clock.

A prober's wall clock decides nothing. A result comes with its age, which the prober measures with a clock
that is never set; the registry subtracts it from its own time of receipt. Times are seconds since the epoch.
"""

from functools import lru_cache

from lifesign.domain.observation.evidence_age import EVIDENCE_INTERVALS, MAX_GAP_INTERVALS, Receipt
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.probing.cadence import (
    MAX_RETRY_AFTER_S,
    ROBOTS_EVERY_S,
    Cadence,
    backoff,
    slowdown,
)


def receipt_of(
    at_s: float,
    interval_s: float,
    memory: ProbeMemory | None,
    thresholds_s: tuple[float, float] | None = None,
) -> Receipt:
    """Return when a result was observed, and until when it counts, given the crawl's interval.

    A target that keeps failing is probed less often: its evidence counts for as many of the longer intervals.
    A requested wait (`Retry-After`, 402, 429, robots.txt) only extends the wait for a further result.
    `memory` is the memory after the probe; None: unknown. `thresholds_s` are the times of silence after which
    a registered agent is unhealthy, and dead: they decide when it is probed less often.
    """
    memory = memory or _NO_MEMORY
    cadence = _cadence_of(interval_s)
    if thresholds_s is not None:
        cadence = cadence.with_thresholds(*thresholds_s)
    factor = backoff(memory, cadence)
    return Receipt(
        at_s=at_s,
        max_gap_s=MAX_GAP_INTERVALS * interval_s,
        evidence_until_s=at_s + EVIDENCE_INTERVALS * interval_s * factor,
        results_until_s=_wait_until_s(memory, at_s)
        + EVIDENCE_INTERVALS * interval_s * max(factor, slowdown(memory, cadence)),
    )


def _wait_until_s(memory: ProbeMemory, at_s: float) -> float:
    """Return until when the target wants no probe: at most a day after this one."""
    until_s = at_s
    if memory.not_before_s is not None:
        until_s = max(until_s, min(memory.not_before_s, at_s + MAX_RETRY_AFTER_S))
    if memory.is_disallowed_by_robots and memory.robots_read_at_s is not None:
        until_s = max(until_s, min(memory.robots_read_at_s, at_s) + ROBOTS_EVERY_S)
    return until_s


_NO_MEMORY = ProbeMemory()


@lru_cache(64)
def _cadence_of(interval_s: float) -> Cadence:
    """Return the cadence of a crawl from its interval; its longest back-off is the default."""
    return Cadence(interval_s=interval_s)
