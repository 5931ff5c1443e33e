"""Results that wait to be reported, within limits.

They wait in their order. While the ledger is unreachable they are kept as JSON, a few hundred bytes each, up
to limits of number, bytes and age. The oldest ones beyond a limit are dropped, and reported as `not_measured`
with the next result of their target. The same happens to results of an expired claim: only the token under
which a result was measured proves that the worker held the target.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation
from lifesign.prober.registry_exchange.ledger import ProbeReport
from lifesign.prober.worker.shards import Shard, TargetSlot

MAX_QUEUED_RESULTS: Final = 200_000
"""About five minutes of 606 probes a second."""
MAX_QUEUED_BYTES: Final = 134_217_728
"""Maximum size of results as JSON."""
MAX_QUEUED_SECONDS: Final = 900.0
"""Maximum age: older results concern a time that is no longer of interest."""
MAX_UNPACKED: Final = 5_000
"""Number of results above which they are kept as JSON even if the ledger is only slow."""
_MIN_RESULT_BYTES: Final = 200
"""Overhead of a result that is kept as JSON."""


class Result:
    """One report that waits, as an object or as JSON."""

    __slots__ = ("_memory", "_observation", "_report", "count", "made_at_s", "number", "slot", "token")

    def __init__(self, slot: TargetSlot, report: ProbeReport, *, made_at_s: float, count: int = 1) -> None:
        """Make the next result of a target under the current claim of its shard."""
        self.slot = slot
        self.count = count
        """Number of probes for which the report stands."""
        self.made_at_s = made_at_s
        """Time of the probe, by `Clock.boot_s`."""
        self.token = slot.shard.token
        """The fencing token under which it was measured."""
        self.number = slot.shard.next_number()
        """Counted under this token."""
        self._report: ProbeReport | None = report
        self._observation = self._memory = ""

    @property
    def report(self) -> ProbeReport:
        """The report as an object."""
        if self._report is not None:
            return self._report
        return ProbeReport(
            subject_id=self.slot.subject_id,
            observation=Observation.model_validate_json(self._observation),
            memory=ProbeMemory.from_json(self._memory),
        )

    @property
    def bytes(self) -> int:
        """Size of the report as JSON; 0 while it is an object."""
        if self._report is not None:
            return 0
        return len(self._observation) + len(self._memory) + _MIN_RESULT_BYTES

    def give_up(self) -> None:
        """Count at the target that this result was dropped, since the ledger was unreachable."""
        self.slot.given_up += self.count

    def pack(self) -> None:
        """Convert the report to JSON, to need less memory."""
        if self._report is not None:
            self._observation = self._report.observation.model_dump_json(exclude_defaults=True)
            self._memory = self._report.memory.to_json()
            self._report = None


class Outbox:
    """Queue of results that wait to be reported to the ledger."""

    def __init__(
        self,
        *,
        max_results: int = MAX_QUEUED_RESULTS,
        max_bytes: int = MAX_QUEUED_BYTES,
        max_seconds: float = MAX_QUEUED_SECONDS,
    ) -> None:
        self.given_up = 0
        """Number of dropped results since the start."""
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._is_unreachable = False
        self._bytes = 0
        self._waiting: deque[Result] = deque()
        self._aside: dict[int, deque[Result]] = {}
        """Results by shard whose claim has ended and whose next claim has not begun."""
        self._aside_count = 0

    def __len__(self) -> int:
        return len(self._waiting) + self._aside_count

    @property
    def is_full(self) -> bool:
        """Whether the queue is full, so that no more probes should start."""
        return len(self) >= self._max_results or self._bytes >= self._max_bytes

    @property
    def ready(self) -> int:
        """Maximum number of results that `take` can return now."""
        return len(self._waiting)

    @property
    def oldest_at_s(self) -> float | None:
        """Time (`Clock.boot_s`) of the oldest result; None if there is none."""
        return self._waiting[0].made_at_s if self._waiting else None

    def add(self, result: Result) -> None:
        """Add a result to the end of the queue."""
        if self._is_unreachable or len(self._waiting) >= MAX_UNPACKED:
            result.pack()
        self._bytes += result.bytes
        self._waiting.append(result)

    def take(self, most: int, may_go: Callable[[Shard], bool]) -> list[Result]:
        """Return the first results whose shards `may_go` accepts. Those of lost shards are dropped."""
        taken: list[Result] = []
        while self._waiting and len(taken) < most:
            result = self._waiting.popleft()
            shard = result.slot.shard
            if result.slot.is_gone:
                self._bytes -= result.bytes
            elif result.token != shard.token:
                # The shard was won again: under the new token it would be as young as that.
                self._give_up(result)
            elif may_go(shard):
                self._bytes -= result.bytes
                taken.append(result)
            else:
                self._aside.setdefault(shard.number, deque()).append(result)
                self._aside_count += 1
        return taken

    def put_back(self, results: Iterable[Result]) -> None:
        """Put results back at the front of the queue, because the ledger is unreachable."""
        self._waiting.extendleft(reversed(list(results)))
        self._is_unreachable = True
        self._bytes = 0
        for result in self:
            result.pack()
            self._bytes += result.bytes

    def note_return(self) -> None:
        """Record that the ledger is reachable again."""
        self._is_unreachable = False

    def release(self, number: int) -> None:
        """Let a shard's results be taken again, as the shard was claimed again or is lost for good."""
        aside = self._aside.pop(number, None)
        if aside is not None:
            self._aside_count -= len(aside)
            self._waiting.extendleft(reversed(aside))

    def drop(self, slots: Iterable[TargetSlot]) -> int:
        """Remove all results of these targets; return how many there were."""
        whose = {id(slot) for slot in slots}
        before = len(self)
        if not whose or not before:
            return 0
        self._waiting = deque(result for result in self._waiting if id(result.slot) not in whose)
        for number, aside in list(self._aside.items()):
            self._aside[number] = deque(result for result in aside if id(result.slot) not in whose)
        self._aside_count = sum(map(len, self._aside.values()))
        self._bytes = sum(result.bytes for result in self)
        return before - len(self)

    def give_up(self, now_s: float) -> int:
        """Drop the oldest results beyond the limits of number, size and age; return how many."""
        before = self.given_up
        for line in (*self._aside.values(), self._waiting):
            while line and self._must_go(line[0], now_s):
                self._aside_count -= line is not self._waiting
                self._give_up(line.popleft())
        return self.given_up - before

    def __iter__(self) -> Iterator[Result]:
        for aside in self._aside.values():
            yield from aside
        yield from self._waiting

    def _must_go(self, result: Result, now_s: float) -> bool:
        is_too_much = len(self) > self._max_results or self._bytes > self._max_bytes
        return is_too_much or now_s - result.made_at_s > self._max_seconds

    def _give_up(self, result: Result) -> None:
        self._bytes -= result.bytes
        self.given_up += 1
        result.give_up()
