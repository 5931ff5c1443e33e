"""Monitor watch: when lost evidence and keys with many failures are reported, and when that ends.

An agent counts if its evidence is old because of a fault of the monitoring (`evidence_age.PROBER_FAULTS`),
not by its own request. One event covers all agents. Times are seconds since the epoch by the registry's
clock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from lifesign.domain.credentials.credential_watch import WatchedCredential
from lifesign.domain.observation.evidence_age import PROBER_FAULTS, UnknownReason

MIN_RESULTS = 20
"""Minimum number of one key's results about living agents for a meaningful share of failures."""
MAX_FAILED_RATIO = 0.5
"""More failures among them are reported."""
MAX_KEYS = 1_000
"""Maximum number of watched keys, those with the most reports: the number of keys is not limited."""

MAX_UNREACHED = 100
"""Maximum number of pairs of a worker and a network class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWatch:
    """Counts of one prober key at the begin of the period, and whether its failures were too many."""

    answered: int
    """Number of answers when the running period began."""
    failed: int
    """Likewise."""
    is_reported: bool = False
    """Whether too many results failed in the last period with enough results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFailuresChange:
    """A prober key's share of failures became too high, or normal again."""

    key: str
    is_high: bool
    results: int
    """Measured results about living agents in the period that ended."""
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysWatched:
    """The counts of all prober keys at the begin of the present period."""

    began_s: float = 0.0
    keys: Mapping[str, KeyWatch] = field(default_factory=dict)


def keys_after(
    before: KeysWatched, sums: Mapping[str, tuple[int, int]], now_s: float, period_seconds: float
) -> tuple[KeysWatched, list[KeyFailuresChange]]:
    """Return the new state of all prober keys, and those whose share of failures became high or normal.

    `sums` contains the total of answered and failed results by key. A key whose sums decreased starts again.
    """
    if not is_due(before.began_s, now_s, period_seconds):
        return before, []
    largest = sorted(sums, key=lambda key: (-sum(sums[key]), key))[:MAX_KEYS]
    keys: dict[str, KeyWatch] = {}
    turns: list[KeyFailuresChange] = []
    for key in sorted(largest):
        answered, failed = sums[key]
        known = before.keys.get(key, KeyWatch(answered=answered, failed=failed))
        more = answered - known.answered, failed - known.failed
        is_high = known.is_reported
        if min(more) >= 0 and sum(more) >= MIN_RESULTS:
            is_high = more[1] > MAX_FAILED_RATIO * sum(more)
        if is_high is not known.is_reported:
            turns.append(KeyFailuresChange(key=key, is_high=is_high, results=sum(more), failed=more[1]))
        keys[key] = KeyWatch(answered=answered, failed=failed, is_reported=is_high)
    return KeysWatched(began_s=now_s, keys=keys), turns


@dataclass(frozen=True, slots=True, kw_only=True)
class DisallowedTargets:
    """Targets that answered earlier, and that their present prober's `networks.allow` now excludes."""

    holder: str
    """Holder of their shards: a worker of the prober."""
    network_class: str
    """Network class in which they answered."""
    targets: int
    reached_by: str | None = None
    """Another living worker that reaches the class; None if there is none."""


def disallowed_targets(
    not_allowed: Mapping[tuple[str, str], int], reached: Mapping[str, Collection[str] | None]
) -> tuple[DisallowedTargets, ...]:
    """Return the targets that a prober's `networks.allow` excludes although another prober reached them.

    `not_allowed` counts targets by the holder of their shard and the class in which they answered before;
    `reached` has the classes that each living worker reaches, None before it knows. If the worker reaches the
    class itself, the target refused it.
    """
    found = []
    for (holder, network_class), targets in sorted(not_allowed.items()):
        own = reached.get(holder)
        if own is not None and network_class not in own:
            others = sorted(other for other, classes in reached.items() if network_class in (classes or ()))
            each = DisallowedTargets(
                holder=holder,
                network_class=network_class,
                targets=targets,
                reached_by=next(iter(others), None),
            )
            found.append(each)
    return tuple(found[:MAX_UNREACHED])


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceWatchState:
    """How many agents had old evidence at the last count, and since when."""

    counted_at_s: float = 0.0
    reasons: Mapping[UnknownReason, int] = field(default_factory=dict)
    """Living agents with old evidence, by the reason; none that is 0."""
    since_s: float | None = None
    """Time since which there is such an agent; None without one."""
    is_reported: bool = False
    """Whether the loss has lasted long enough to be reported."""
    keys: KeysWatched = KeysWatched()
    unreached: tuple[DisallowedTargets, ...] = ()
    credentials: tuple[WatchedCredential, ...] = ()

    @property
    def agents(self) -> int:
        """Number of living agents with old evidence."""
        return sum(self.reasons.values())


class EvidenceAlert(StrEnum):
    """Whether the monitoring has lost current evidence about agents, or has regained it."""

    LOST = "lost"
    RESTORED = "restored"


def watched_after(
    before: EvidenceWatchState, counted: Mapping[UnknownReason, int], now_s: float, lost_seconds: float
) -> tuple[EvidenceWatchState, EvidenceAlert | None]:
    """Return the state after a count of agents with old evidence, and the alert to log, if any.

    A loss is reported once there was such an agent at every count for `lost_seconds`.
    """
    reasons = {
        reason: number for reason, number in sorted(counted.items()) if number and reason in PROBER_FAULTS
    }
    if not reasons:
        restored = EvidenceWatchState(counted_at_s=now_s, keys=before.keys)
        return restored, EvidenceAlert.RESTORED if before.is_reported else None
    # A moment that lies ahead was written before the clock was set back.
    since_s = now_s if before.since_s is None else min(before.since_s, now_s)
    is_reported = before.is_reported or now_s - since_s >= lost_seconds
    watched = replace(before, counted_at_s=now_s, reasons=reasons, since_s=since_s, is_reported=is_reported)
    return watched, EvidenceAlert.LOST if is_reported and not before.is_reported else None


def is_due(counted_at_s: float, now_s: float, watch_seconds: float) -> bool:
    """Return whether it is time for the next count. A last count in the future does not delay it."""
    return not 0 <= now_s - counted_at_s < watch_seconds
