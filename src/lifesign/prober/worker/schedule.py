"""Schedule of the targets: at their ticks, or once in a census.

A target that waits has a `due_at_s` and is returned once. In a census all targets are due from the start, in
the order in which they were read: shard by shard, so that their results come shard by shard too.
"""

from collections import Counter, deque
from collections.abc import Iterator
from math import inf
from typing import Final, Protocol

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.probing.cadence import (
    Cadence,
    backs_off,
    missed_ticks,
    next_probe_at_s,
)
from lifesign.prober.worker.shards import TargetSlot
from lifesign.prober.worker.timer_queue import TimerQueue

MAX_TRIES: Final = 3
"""Maximum number of probes of a target in a census if its failure does not count."""
_TICK_SECONDS: Final = 1e-3
"""Less than the time between two ticks, more than rounding moves them."""


class Plan(Protocol):
    """Decides which targets are due. Times are seconds since the epoch."""

    @property
    def keeps_ticks(self) -> bool:
        """Whether targets have due times, so that a probe can be missed."""
        ...

    @property
    def left(self) -> int | None:
        """Number of targets that `take` has not returned yet; None if probes never end."""
        ...

    @property
    def backed_off(self) -> int | None:
        """Number of targets that are probed less often than usual; None for a census."""
        ...

    def add(self, slot: TargetSlot, memory: ProbeMemory, now_s: float, /) -> None:
        """Schedule a target's next probe, in place of an earlier time."""
        ...

    def remove(self, slot: TargetSlot) -> None:
        """Remove a target from the schedule."""
        ...

    def take(self, now_s: float) -> Iterator[tuple[float, TargetSlot]]:
        """Yield the targets that are due, with the times when they were due, and remove them."""
        ...

    def next_at_s(self) -> float | None:
        """Return when to call `take` again; None if no target will be due."""
        ...

    def tries_again(self, slot: TargetSlot, /) -> bool:
        """Return whether a target is scheduled again, after a failure that does not count."""
        ...


class WatchPlan:
    """Schedule of continuous probes: every target at its own times."""

    keeps_ticks = True
    left = None

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._due: TimerQueue[TargetSlot] = TimerQueue()
        self._backed_off = 0

    @property
    def backed_off(self) -> int:
        """Number of targets that are probed less often than usual, including those being probed now."""
        return self._backed_off

    def add(self, slot: TargetSlot, memory: ProbeMemory, now_s: float, /) -> None:
        """Schedule a target for its next due time, or earlier if there is a reason to probe it."""
        cadence = slot.cadence(self._cadence)
        at_s = next_probe_at_s(slot.subject_id, memory, cadence, now_s, slot.recheck_at_s)
        self._due.add(slot, at_s)
        self._count(slot, is_backed_off=backs_off(memory, cadence))

    def remove(self, slot: TargetSlot) -> None:
        """Remove a target from the schedule."""
        self._due.remove(slot)
        self._count(slot, is_backed_off=False)

    def take(self, now_s: float) -> Iterator[tuple[float, TargetSlot]]:
        """Take the targets that are due by now."""
        return self._due.pop(now_s)

    def next_at_s(self) -> float | None:
        """Return when the next target may be due."""
        return self._due.next_at_s()

    def tries_again(self, _slot: TargetSlot, /) -> bool:
        """Return False: the target's next due time comes anyway."""
        return False

    def _count(self, slot: TargetSlot, *, is_backed_off: bool) -> None:
        self._backed_off += is_backed_off - slot.is_backed_off
        slot.is_backed_off = is_backed_off


class CensusPlan:
    """Schedule of a census: every target once that has no result since the census began."""

    keeps_ticks = False
    backed_off = None

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self._line: deque[TargetSlot] = deque()
        self._waiting = 0
        self._tries: Counter[str] = Counter()

    @property
    def left(self) -> int | None:
        """Number of targets that `take` has not returned yet."""
        return self._waiting

    def add(self, slot: TargetSlot, memory: ProbeMemory, _now_s: float, /) -> None:
        """Schedule a target, unless this census has probed it."""
        last_s = -inf if memory.probed_at_s is None else memory.probed_at_s
        is_asked_for = slot.recheck_at_s is not None and slot.recheck_at_s > last_s
        if slot.due_at_s is None and (last_s < self.since_s or is_asked_for):
            self._join(slot)

    def remove(self, slot: TargetSlot) -> None:
        """Remove a target from the schedule."""
        if slot.due_at_s is not None:
            slot.due_at_s = None
            self._waiting -= 1

    def take(self, now_s: float) -> Iterator[tuple[float, TargetSlot]]:
        """Yield the targets one after the other, as all are due."""
        while self._line:
            slot = self._line.popleft()
            if slot.due_at_s is not None:
                self.remove(slot)
                yield now_s, slot

    def next_at_s(self) -> float | None:
        """Return the present: in a census, all targets are due."""
        return None

    def tries_again(self, slot: TargetSlot, /) -> bool:
        """Schedule the target again after all others, up to MAX_TRIES times; return whether it was."""
        self._tries[slot.subject_id] += 1
        if self._tries[slot.subject_id] >= MAX_TRIES or slot.is_gone:
            return False
        self._join(slot)
        return True

    def _join(self, slot: TargetSlot) -> None:
        slot.due_at_s = self.since_s
        self._waiting += 1
        self._line.append(slot)


def missed_before(
    subject_id: str, memory: ProbeMemory, cadence: Cadence, began_at_s: float
) -> tuple[int, float] | None:
    """Return how many due times were missed before a probe, and the last of them; None if none.

    The probe counts for the last tick since the previous probe, however late it is. None if none was missed.
    """
    last_s = memory.probed_at_s
    if last_s is None or began_at_s - last_s <= 1.5 * cadence.interval_s:
        return None
    passed = missed_ticks(subject_id, memory, cadence, last_s, began_at_s)
    if passed.last_at_s is None:
        return None
    before = missed_ticks(subject_id, memory, cadence, last_s, passed.last_at_s - _TICK_SECONDS)
    return None if before.last_at_s is None else (before.count, before.last_at_s)
