"""Rolling window: the samples of the current and the previous window.

A window is 24 slots long; a sample leaves it with its slot, up to one slot early. One memory block of 64-bit
lanes contains the counts of one worker process in this window and the previous one:

    48 rows, one per slot of both windows: tag, a count per `Outcome`, number of streams, a count
    per `Inspection`
    25 latency histograms, one per slot of this window, and one for the next
    25 first-byte histograms of streams, likewise

The position of a row or histogram is its slot's number modulo their number, and a row's tag contains its
slot, so that idle time of any length costs nothing. The block may be a file mapped into many processes: one
writes, all read, and every state in which the writer can be killed reads as a valid window. Times are
nanoseconds on a monotonic clock.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.latency_histogram import BIN_COUNT, LatencyHistogram
from lifesign.domain.health.outcome import Outcome

SLOTS_PER_WINDOW = 24
_ROWS = 2 * SLOTS_PER_WINDOW
# One more than a window has: a writer may have entered a slot that a reader's clock has not reached.
_HISTOGRAMS = SLOTS_PER_WINDOW + 1
_STREAMS_LANE = 1 + len(Outcome)
_INSPECTIONS_LANE = _STREAMS_LANE + 1
_ROW_LANES = _INSPECTIONS_LANE + len(Inspection)
_LATENCIES_AT = _ROWS * _ROW_LANES
_FIRST_BYTES_AT = _LATENCIES_AT + _HISTOGRAMS * BIN_COUNT
_LANES = _FIRST_BYTES_AT + _HISTOGRAMS * BIN_COUNT

WINDOW_BYTES = 8 * _LANES
"""Size of the memory block of one worker process: 1.4 MB, whatever the traffic."""

_LATE_WRITES_NS = 1_000_000_000
"""A slot still counts as open for this long after its end, for a write that was under way."""
_MOST_PER_SLOT = 1 << 40
"""More interactions than any process serves in a slot of the longest window (7 h)."""
_KILLED_THREADS = 64
"""Maximum number of threads that may have been killed between counting a latency and its outcome."""


class WindowWriter:
    """Writes the counts of one worker process. Its members are public for speed."""

    def __init__(self, block: memoryview, window_ns: int, now_ns: int) -> None:
        self._lanes = block.cast("B").cast("Q")
        self._slot_ns = window_ns // SLOTS_PER_WINDOW
        self.open_slot(now_ns)

    def open_slot(self, now_ns: int) -> None:
        """Make the slot of this time the current one; the counts of an older slot in its place are cleared.

        `counts` (by `Outcome`, then the streams, then by `Inspection`), `latencies` and `first_bytes` (by
        bin) are its lanes, `ends_ns` is when the next slot must be opened.
        """
        slot = now_ns // self._slot_ns
        row = slot % _ROWS * _ROW_LANES
        bins = slot % _HISTOGRAMS * BIN_COUNT
        self.counts = self._lanes[row + 1 : row + _ROW_LANES]
        self.latencies = self._lanes[_LATENCIES_AT + bins : _LATENCIES_AT + bins + BIN_COUNT]
        self.first_bytes = self._lanes[_FIRST_BYTES_AT + bins : _FIRST_BYTES_AT + bins + BIN_COUNT]
        self.ends_ns = (slot + 1) * self._slot_ns
        tag = slot + 1  # 0 is the tag of a row that was never written
        if self._lanes[row] != tag:
            # If the process is killed in between, the row stays without a tag and reads as empty.
            self._lanes[row] = 0
            for lanes in (self.counts, self.latencies, self.first_bytes):
                lanes[:] = memoryview(bytes(8 * len(lanes))).cast("Q")
            self._lanes[row] = tag


@dataclass(slots=True)
class WindowTotals:
    """Counts of all workers in the current window, and outcomes of the previous window."""

    current: list[int] = field(default_factory=lambda: [0] * len(Outcome))
    """Interactions of this window by `Outcome`."""
    previous: list[int] = field(default_factory=lambda: [0] * len(Outcome))
    """Interactions of the window before it by `Outcome`."""
    inspections: list[int] = field(default_factory=lambda: [0] * len(Inspection))
    """Answers of this window by `Inspection`."""
    previous_inspections: list[int] = field(default_factory=lambda: [0] * len(Inspection))
    """Answers of the window before it by `Inspection`."""
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    first_bytes: LatencyHistogram = field(default_factory=LatencyHistogram)

    def clear(self) -> None:
        """Set all counts to zero."""
        self.current[:] = self.previous[:] = [0] * len(Outcome)
        self.inspections[:] = self.previous_inspections[:] = [0] * len(Inspection)
        self.latencies.clear()
        self.first_bytes.clear()

    def add(self, other: "WindowTotals") -> None:
        """Add other totals to these."""
        self.current[:] = map(int.__add__, self.current, other.current)
        self.previous[:] = map(int.__add__, self.previous, other.previous)
        self.inspections[:] = map(int.__add__, self.inspections, other.inspections)
        self.previous_inspections[:] = map(int.__add__, self.previous_inspections, other.previous_inspections)
        self.latencies.add(other.latencies.bins())
        self.first_bytes.add(other.first_bytes.bins())


class WindowReader:
    """Adds up the counts of any number of worker processes.

    Closed slots never change. Their sum is kept, and computed again only when a new slot begins or the set of
    blocks changes. A usual reading adds only the open slots.
    """

    def __init__(self, window_ns: int) -> None:
        self._slot_ns = window_ns // SLOTS_PER_WINDOW
        self._closed = WindowTotals()
        self._closed_for: tuple[int, int] | None = None
        self._blocks: list[memoryview] = []
        self._totals = WindowTotals()

    def totals(self, blocks: Sequence[memoryview], now_ns: int) -> WindowTotals:
        """Return the totals of the current and the previous window. They are overwritten by the next call."""
        newest = now_ns // self._slot_ns
        first_open = (now_ns - _LATE_WRITES_NS) // self._slot_ns
        if self._closed_for != (newest, first_open) or not _are_same(blocks, self._blocks):
            self._closed.clear()
            for block in blocks:
                _add_slots(self._closed, block, range(newest - _ROWS + 1, first_open), newest)
            self._closed_for = (newest, first_open)
            self._blocks = [*blocks]
        self._totals.clear()
        self._totals.add(self._closed)
        for block in blocks:
            # One slot beyond: a writer's clock may have been read after ours.
            _add_slots(self._totals, block, range(first_open, newest + 2), newest)
        return self._totals


def newest_slot_end_ns(block: memoryview, window_ns: int) -> int:
    """Return the time at which the block's newest slot ends; 0 if the block has no slot."""
    lanes = block.cast("B").cast("Q")
    return max(lanes[row * _ROW_LANES] for row in range(_ROWS)) * (window_ns // SLOTS_PER_WINDOW)


def count_lost(block: memoryview, requests: int) -> None:
    """Count requests whose worker was killed as unfinished, in the block's newest slot."""
    lanes = block.cast("B").cast("Q")
    newest = max(range(0, _ROWS * _ROW_LANES, _ROW_LANES), key=lanes.__getitem__)
    if lanes[newest]:
        lanes[newest + 1 + Outcome.UNFINISHED] += requests


def is_plausible(block: memoryview, window_ns: int, now_ns: int) -> bool:
    """Return whether a file's block of counts may have been written by a WindowWriter.

    Every tag must match its row and must not lie far in the future (a reboot may have set the clock back). No
    histogram may contain more latencies than its row has interactions, except for threads that were killed
    between the two.
    """
    lanes = block.cast("B").cast("Q")
    newest = now_ns // (window_ns // SLOTS_PER_WINDOW)
    for row in range(_ROWS):
        start = row * _ROW_LANES
        slot = lanes[start] - 1
        if slot < 0:
            continue
        if slot % _ROWS != row or slot > newest + SLOTS_PER_WINDOW:
            return False
        # The latencies first: a living writer counts on, and the outcome comes last.
        latencies = 0
        if _has_histograms(lanes, slot):
            for section in (_LATENCIES_AT, _FIRST_BYTES_AT):
                bins = section + slot % _HISTOGRAMS * BIN_COUNT
                latencies = max(latencies, sum(lanes[bins : bins + BIN_COUNT].tolist()))
        interactions = sum(lanes[start + 1 : start + _STREAMS_LANE].tolist())
        if interactions > _MOST_PER_SLOT or latencies > interactions + _KILLED_THREADS:
            return False
    return True


def _are_same(blocks: Sequence[memoryview], others: Sequence[memoryview]) -> bool:
    """Return whether these are identical objects: views compare equal if their contents are equal."""
    return len(blocks) == len(others) and all(map(operator.is_, blocks, others))


def _add_slots(totals: WindowTotals, block: memoryview, slots: range, newest: int) -> None:
    lanes = block.cast("B").cast("Q")
    for slot in slots:
        row = slot % _ROWS * _ROW_LANES
        if lanes[row] != slot + 1:
            continue
        # By `Outcome` first: the following counts are not part of the sums by outcome.
        counts = lanes[row + 1 : row + _ROW_LANES].tolist()
        inspections = counts[_INSPECTIONS_LANE - 1 :]
        if slot <= newest - SLOTS_PER_WINDOW:
            totals.previous[:] = map(int.__add__, totals.previous, counts)
            totals.previous_inspections[:] = map(int.__add__, totals.previous_inspections, inspections)
            continue
        totals.current[:] = map(int.__add__, totals.current, counts)
        totals.inspections[:] = map(int.__add__, totals.inspections, inspections)
        bins = slot % _HISTOGRAMS * BIN_COUNT
        if not _has_histograms(lanes, slot):
            continue
        if any(counts):
            totals.latencies.add(_bytes_of(lanes, _LATENCIES_AT + bins))
        if counts[_STREAMS_LANE - 1]:
            totals.first_bytes.add(_bytes_of(lanes, _FIRST_BYTES_AT + bins))


def _has_histograms(lanes: memoryview, slot: int) -> bool:
    """Return whether the histograms of a slot with a row belong to this slot, not to a later one."""
    return all(
        lanes[later % _ROWS * _ROW_LANES] != later + 1
        for later in (slot + _HISTOGRAMS, slot + 2 * _HISTOGRAMS)
    )


def _bytes_of(lanes: memoryview, start: int) -> memoryview:
    return lanes[start : start + BIN_COUNT].cast("B")
