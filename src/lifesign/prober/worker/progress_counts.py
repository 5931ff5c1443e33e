"""The progress of a prober: how far it is, how fast, and how late."""

from array import array
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lifesign.domain.health.latency_histogram import BIN_COUNT, LatencyHistogram, bin_of, clamped
from lifesign.domain.observation.assertion import AssertionOutcome, AssertionResult
from lifesign.domain.observation.results import ResultClass

RATE_SECONDS: Final = 10
"""The rate is that of so many seconds, the current one left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one worker has done and is doing, in numbers."""

    shards: int
    """Number of shards that the worker holds."""
    targets: int
    """Number of targets in them."""
    latest: Mapping[ResultClass | None, int] = field(default_factory=dict)
    """Number of targets by their latest measured result; None: never probed.

    `not_measured`: the latest one is too old to count.
    """
    probed: int
    """Probes that ended since it began."""
    classes: Mapping[ResultClass, int]
    """Number of probes by result; `not_measured` includes failures without a witness."""
    assertions: Mapping[AssertionOutcome, int] = field(default_factory=dict)
    """Number of evaluated assertions by result, in the probes that were reported."""
    with_failed_assertions: int = 0
    """Number of targets whose assertions failed when they were last evaluated."""
    missed: int
    """Probes that were due and did not take place, as far as known."""
    rate_per_s: float
    """Probes that ended, over the last 10 s."""
    in_flight: int
    """Probes under way."""
    waiting: int
    """Targets that wait for their turn, because too many others are being probed, or their host is."""
    left: int | None
    """Targets of a census still to be probed, in the worker's shards; None without a census."""
    seconds_left: float | None
    """Remaining time of a census at the current rate; None if unknown."""
    start_error_p99_ms: float | None
    """99th percentile of the delay of probes beyond their due time; None if none had one."""
    held: int
    """Results that wait to be reported."""
    reported: int
    """Results that the ledger took."""
    given_up: int
    """Results that were lost because the ledger was unreachable for too long."""
    is_ledger_unreachable: bool
    slowness: str | None
    """Reason why the prober is slow, so that timeouts are not measured; None if it is not slow."""
    has_begun: bool = False
    """Whether the ledger has returned the worker's shards and their targets."""
    backed_off: int | None = None
    """Targets that are skipped at some of their ticks, because they keep failing; None in a census."""
    unanswered: int = 0
    """Look-ups of names that stayed open, as no name server did its work."""
    waiting_failures: int = 0
    """Failures that wait for a witness, or for the second request of their target."""
    unwitnessed: int = 0
    """Failures that had no witness, and were reported as not measured."""
    witness_rounds: int = 0
    """Number of rounds of requests to witnesses."""
    unreached_classes: tuple[str, ...] = ()
    """Network classes in which no witness answered the last requests."""
    clock_offset_s: float = 0.0
    """This machine's clock minus the registry's."""
    starts: int = 0
    """Probes that were due at a time and began."""
    start_delay_s: float = 0.0
    """Total delay of starts beyond their due times."""
    lag_p99_s: float = 0.0
    """Lag of the event loop, the 99th percentile over the last 10 s."""


class Tally:
    """Counts what one worker has done."""

    def __init__(self, now_s: float) -> None:
        self.probed = 0
        self.missed = 0
        self.classes: Counter[ResultClass] = Counter()
        self.assertions: Counter[AssertionOutcome] = Counter()
        self.with_failed_assertions: set[str] = set()
        """Ids of the targets whose assertions failed when they were last evaluated."""
        self.unwitnessed = 0
        self.starts = 0
        self.start_delay_s = 0.0
        self._bins = array("Q", bytes(8 * BIN_COUNT))
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS + 1)
        self._first = self._second = int(now_s)
        self._in_second = 0

    def note(self, result: ResultClass, now_s: float) -> None:
        """Count a probe that ended. `now_s` must never go back."""
        self.probed += 1
        self.classes[result] += 1
        second = int(now_s)
        if second != self._second:
            self._seconds.append((self._second, self._in_second))
            self._second, self._in_second = second, 0
        self._in_second += 1

    def note_assertions(self, subject_id: str, results: Sequence[AssertionResult]) -> None:
        """Count the results of the assertions of one probe."""
        self.assertions.update(each.result for each in results)
        if any(each.has_failed for each in results):
            self.with_failed_assertions.add(subject_id)
        elif any(each.is_measured for each in results):
            self.with_failed_assertions.discard(subject_id)

    def forget_targets(self, subject_ids: Collection[str]) -> None:
        """Forget the failed assertions of these targets, since another worker probes them now."""
        self.with_failed_assertions.difference_update(subject_ids)

    def note_start(self, error_s: float) -> None:
        """Record by how many seconds a probe began too late."""
        self._bins[bin_of(clamped(int(error_s * 1e9)))] += 1
        self.starts += 1
        self.start_delay_s += max(0.0, error_s)

    def rate_per_s(self, now_s: float) -> float:
        """Return how many probes ended per second, over the last whole seconds."""
        this = int(now_s)
        since = max(this - RATE_SECONDS, self._first)
        counted = [*self._seconds, (self._second, self._in_second)]
        return sum(count for second, count in counted if since <= second < this) / max(1, this - since)

    def start_error_p99_ms(self) -> float | None:
        """Return how late probes began, in ms: the 99th percentile."""
        histogram = LatencyHistogram()
        histogram.add(memoryview(self._bins).cast("B"))
        return next(iter(histogram.percentiles_ms(0.99)), None)
