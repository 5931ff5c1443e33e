"""Monitor watch: when living agents of which nothing is known are reported, and when that is over.

An agent counts if its evidence is old through a fault of the monitoring (`evidence_age.FAULTS_OF_OURS`), not
through a wish of its own. One event tells of all agents. Times are seconds since the epoch by the registry's
clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent_health.evidence_age import FAULTS_OF_OURS, UnknownReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the last count found, as the registry keeps it."""

    counted_at_s: float = 0.0
    reasons: Mapping[UnknownReason, int] = field(default_factory=dict)
    """Living agents with old evidence, by the reason; none that is 0."""
    since_s: float | None = None
    """Since when there is any such agent; None: there is none."""
    is_reported: bool = False
    """Whether it has lasted long enough to be reported."""

    @property
    def agents(self) -> int:
        """How many living agents have old evidence."""
        return sum(self.reasons.values())


class EvidenceTurn(StrEnum):
    """What is to be reported after a count."""

    LOST = "lost"
    RESTORED = "restored"


def watched_after(
    before: Watched, counted: Mapping[UnknownReason, int], now_s: float, lost_seconds: float
) -> tuple[Watched, EvidenceTurn | None]:
    """Return what is known after a count, and what to report: each loss and each end of one once.

    A loss is reported once there was such an agent at every count for `lost_seconds`.
    """
    reasons = {
        reason: number for reason, number in sorted(counted.items()) if number and reason in FAULTS_OF_OURS
    }
    if not reasons:
        return Watched(counted_at_s=now_s), EvidenceTurn.RESTORED if before.is_reported else None
    # A moment that lies ahead was written before the clock was set back.
    since_s = now_s if before.since_s is None else min(before.since_s, now_s)
    is_reported = before.is_reported or now_s - since_s >= lost_seconds
    watched = Watched(counted_at_s=now_s, reasons=reasons, since_s=since_s, is_reported=is_reported)
    return watched, EvidenceTurn.LOST if is_reported and not before.is_reported else None


def is_due(counted_at_s: float, now_s: float, watch_seconds: float) -> bool:
    """Whether it is time to count again; a last count that lies ahead was before the clock was set back."""
    return not 0 <= now_s - counted_at_s < watch_seconds
