"""Queue of due times for a million targets.

Targets lie in boxes of one second each, and only the current box is sorted: adding a target costs the same
however many there are, and an entry takes 8 bytes. A target that moves leaves its old entry behind, which is
skipped when its time comes. If there are too many old entries, all of them are removed.
"""

import heapq
from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar

BOX_SECONDS: Final = 1.0
MAX_STALE_PLACES: Final = 10_000
"""Maximum number of stale entries. Above it, they may not outnumber the valid ones."""


class Due(Protocol):
    """An item with a due time, for a `TimerQueue`."""

    due_at_s: float | None
    """Due time in seconds of any one clock; None if the target does not wait. Only `TimerQueue` sets it."""


D = TypeVar("D", bound=Due)


class TimerQueue(Generic[D]):
    """Queue of items by their due times. Each item is in it at most once."""

    def __init__(self) -> None:
        self._waiting = 0
        self._places = 0
        self._boxes: dict[int, list[D]] = {}
        self._order: list[int] = []
        """The boxes, the earliest first; a heap."""
        self._open: list[tuple[float, int, D]] = []
        """Entries of boxes whose time has begun; a heap."""
        self._added = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, thing: D, due_at_s: float) -> None:
        """Add an item with its due time, or change the due time of an item."""
        if thing.due_at_s is None:
            self._waiting += 1
        thing.due_at_s = due_at_s
        self._places += 1
        number = int(due_at_s // BOX_SECONDS)
        box = self._boxes.get(number)
        if box is None:
            box = self._boxes[number] = []
            heapq.heappush(self._order, number)
        box.append(thing)
        if self._places > 2 * self._waiting + MAX_STALE_PLACES:
            self._compact()

    def remove(self, thing: D) -> None:
        """Remove an item, if it is in the queue."""
        if thing.due_at_s is not None:
            thing.due_at_s = None
            self._waiting -= 1

    def next_at_s(self) -> float | None:
        """Return the earliest due time; None if the queue is empty."""
        first = self._open[0][0] if self._open else None
        begins_at_s = self._order[0] * BOX_SECONDS if self._order else None
        if first is None or (begins_at_s is not None and begins_at_s < first):
            return begins_at_s
        return first

    def pop(self, now_s: float) -> Iterator[tuple[float, D]]:
        """Remove and return the items that are due, with their due times, the earliest first."""
        self._open_boxes(now_s)
        while self._open and self._open[0][0] <= now_s:
            due_at_s, _, thing = heapq.heappop(self._open)
            self._places -= 1
            # Else it was moved or removed since; or its place is one of two for the same time.
            if thing.due_at_s == due_at_s:
                self.remove(thing)
                yield due_at_s, thing
            self._open_boxes(now_s)

    def _open_boxes(self, now_s: float) -> None:
        while self._order and self._order[0] * BOX_SECONDS <= now_s:
            number = heapq.heappop(self._order)
            for thing in self._boxes.pop(number):
                due_at_s = thing.due_at_s
                if due_at_s is None or int(due_at_s // BOX_SECONDS) != number:
                    self._places -= 1
                    continue
                self._added += 1
                heapq.heappush(self._open, (due_at_s, self._added, thing))

    def _compact(self) -> None:
        """Remove all outdated entries."""
        things = {id(thing): thing for thing in chain(*self._boxes.values())}
        things |= {id(thing): thing for _, _, thing in self._open}
        self._boxes, self._order, self._open = {}, [], []
        self._places = self._waiting = 0
        for thing in things.values():
            due_at_s, thing.due_at_s = thing.due_at_s, None
            if due_at_s is not None:
                self.add(thing, due_at_s)
