"""Eligibility of probers: the workers that share the shards, and those that hold none for some time.

A fault of a prober's network, or of the prober itself, moves its shards to workers that do better. It changes
nothing about any other target. Times are seconds since the epoch by the registry's clock.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from math import inf

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.lifecycle.heartbeat_timeout import PROBE_THRESHOLDS
from lifesign.domain.targets.target import SHARDS

NO_PROGRESS_INTERVALS = 2
"""A worker that reports no result for so many of its intervals loses its shards."""
MAX_BAR_S = 86_400.0
"""Maximum time for which a worker is barred from shards, as long as it claims them."""
DEFAULT_INTERVAL_S = PROBE_THRESHOLDS.interval_s
"""Interval of a worker that does not report one."""
MAX_INTERVAL_S = 3_600.0
"""A longer interval that a worker states counts as this one."""
MAX_IDLE_S = 4_500.0
"""A worker without a result for so long makes no progress, whatever interval it names.

Longer than one `MAX_INTERVAL_S`: a worker with a single target that it probes every hour is no idle one.
"""
MAX_GRANTS = 128 * SHARDS
"""Shards that a key may be granted at once, handing over between its workers included.

Each grant and each end of one stays in the event log: a key that claims shards and drops them would fill it.
After an outage of the registry the claims that waited grant all shards again and again: that must fit in.
"""
GRANT_EVERY_S = 300.0 / SHARDS
"""Interval of further grants, one each: all shards within 300 s."""
HOLDER_SEPARATOR = "/"
"""Separator between a key's id and the worker's name."""


def is_before_jump(at_s: float, by_s: float, now_s: float) -> bool:
    """Return whether a past time was stored before the clock was set by `by_s`, with `now_s` after it."""
    return at_s > now_s if by_s < 0 else at_s <= now_s - by_s


class WithheldReason(StrEnum):
    """Reason, for programs, why a worker gets no shards."""

    REACHES_LESS = "reaches_less"
    """Another worker of its key that reports results reaches all of its network classes, and more."""
    NO_PROGRESS = "no_progress"
    """The worker or its key held shards for two intervals without a result, while another one reported
    results.
    """
    TOO_MANY_GRANTS = "too_many_grants"
    """The key was granted too many shards recently: it keeps its shards, and gets more later."""


@fast_dataclass(kw_only=True)
class Idleness:
    """For how long a worker, or all workers of a key, have held shards without reporting a result.

    A result counts only while most living agents in these shards have results that are not overdue.
    """

    at_s: float
    """When this was last counted."""
    idle_s: float = 0.0
    """Seconds for which shards were held without a result, since then or since the last bar began."""
    bar_s: float = 0.0
    """Duration of the last bar; 0 since the last result. Each bar is twice as long as the one before."""
    barred_until_s: float = -inf
    granted: float = 0.0
    """Recent grants of a key: one less each GRANT_EVERY_S."""

    @property
    def grants_left(self) -> int:
        """Number of further shards that the key may be granted at `at_s`, to limit how often shards move."""
        return max(0, int(MAX_GRANTS - self.granted))

    def counted(self, reported_at_s: float, now_s: float, *, held_until_s: float) -> "Idleness":
        """Return the idleness as of now. `held_until_s`: end of the leases at the last count, or -inf."""
        has_reported = reported_at_s > self.at_s
        held_s = max(0.0, min(held_until_s, now_s) - max(self.at_s, reported_at_s))
        return Idleness(
            at_s=now_s,
            idle_s=held_s if has_reported else self.idle_s + held_s,
            bar_s=0.0 if has_reported else self.bar_s,
            barred_until_s=self.barred_until_s,
            granted=max(0.0, self.granted - max(0.0, now_s - self.at_s) / GRANT_EVERY_S),
        )

    def moved(self, by_s: float, now_s: float) -> "Idleness":
        """Return the idleness after the clock was set by `by_s`: ahead if above 0, back if below.

        Times that were stored before are moved.
        """
        if not is_before_jump(self.at_s, by_s, now_s):
            return self
        return replace(self, at_s=self.at_s + by_s, barred_until_s=self.barred_until_s + by_s)

    def barred(self, interval_s: float, now_s: float) -> "Idleness":
        """Return the idleness with a new bar: a time from now on in which the worker gets no shards.

        The first bar lasts at least as long as the shards were held.
        """
        bar_s = min(MAX_BAR_S, max(2 * self.bar_s, self.idle_s, NO_PROGRESS_INTERVALS * interval_s))
        return replace(self, at_s=now_s, idle_s=0.0, bar_s=bar_s, barred_until_s=now_s + bar_s)


@fast_dataclass(kw_only=True)
class LivingWorker:
    """What is known of a living worker of a prober: its last claim, and its reports since then."""

    holder: str
    """Holder of its leases."""
    interval_s: float = DEFAULT_INTERVAL_S
    reached: frozenset[str] | None = None
    """Network classes in which a witness answered it within its last interval; None before it knows."""
    reported_at_s: float = -inf
    """Time of the worker's last result of any kind."""
    barred_until_s: float = -inf
    """Time before which the worker gets no shard, because it or its key made no progress."""

    def has_reported_lately(self, now_s: float) -> bool:
        """Return whether the worker reported a result within its last interval."""
        return now_s - self.reported_at_s <= min(self.interval_s, MAX_INTERVAL_S)


def key_of(holder: str) -> str:
    """Return the key's name in a lease holder such as `KEY/WORKER`."""
    return holder.partition(HOLDER_SEPARATOR)[0]


def within_known(reached: Iterable[str] | None, known: Collection[str]) -> frozenset[str] | None:
    """Return the network classes that a worker claims to reach, without those that have no known target.

    A worker that makes up classes must not look as if it reached more than others.
    """
    return None if reached is None else frozenset(reached) & frozenset(known)


def withheld(worker: LivingWorker, others: Collection[LivingWorker], now_s: float) -> WithheldReason | None:
    """Return why a worker gets no shards, compared with the other workers; None if it gets some.

    The classes that a worker claims to reach are compared only within its key: a hostile key must not get the
    shards of another key by false claims.
    """
    key = key_of(worker.holder)
    # A worker that merely reports to reach more takes no shard away.
    reporting = {
        other.reached for other in others if key_of(other.holder) == key and other.has_reported_lately(now_s)
    }
    if worker.reached is not None and any(
        other is not None and worker.reached < other for other in reporting
    ):
        return WithheldReason.REACHES_LESS
    if now_s < worker.barred_until_s and _does_another_report(others, now_s):
        return WithheldReason.NO_PROGRESS
    return None


def most_lack_results(due_s: Collection[float], now_s: float) -> bool:
    """Return whether results of most living agents are overdue.

    `due_s` contains the time at which each was due.

    A key that reports results of only a few of its agents makes no progress.
    """
    return 2 * sum(until_s < now_s for until_s in due_s) > len(due_s)


def makes_no_progress(
    idle_s: float, interval_s: float, others: Collection[LivingWorker], now_s: float
) -> bool:
    """Return whether a worker loses its shards, as it reported no result for too long and others work.

    The interval of the other worker does not matter: otherwise a hostile key that claims an interval of 10 s
    would bar all workers with longer ones.
    """
    limit_s = min(NO_PROGRESS_INTERVALS * interval_s, MAX_IDLE_S)
    return idle_s > limit_s and _does_another_report(others, now_s)


def count_sharers(workers: Collection[LivingWorker], now_s: float) -> Counter[str]:
    """Return how many living workers of each key get a share of the shards."""
    return Counter(key_of(worker.holder) for worker in workers if withheld(worker, workers, now_s) is None)


def has_turn(target: int, key: str, keys: Collection[str], now_s: float, turn_s: float) -> bool:
    """Return whether it is this key's turn to use a target as a witness.

    At any time each target belongs to one of the keys with living workers, and to the next one after
    `turn_s`: no key can take all witnesses.
    """
    of_turn = sorted(keys)[(target + int(now_s // turn_s)) % len(keys)]
    return of_turn == key


def _does_another_report(others: Iterable[LivingWorker], now_s: float) -> bool:
    return any(_is_reporting(other, now_s) for other in others)


def _is_reporting(worker: LivingWorker, now_s: float) -> bool:
    return worker.has_reported_lately(now_s) and now_s >= worker.barred_until_s
