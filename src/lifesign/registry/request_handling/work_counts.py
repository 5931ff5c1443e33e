"""Counters of all processes of a server since its start.

The processes of a server share memory with one row per process. Each process writes only its own row, and a
reader adds all rows. A row outlives its process, and the next process continues with it: no sum decreases
while the server runs.
"""

import logging
import multiprocessing
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.synchronize import Lock
from typing import Any, Final

from lifesign.domain.events.agent_payloads import AgentLifecycle
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.serving.worker_start import safe_module_path

ROW_CELLS: Final = 8_192
"""Number of cells of 8 bytes in a row; all counters must fit."""
ROWS_PER_PROCESS: Final = 2
"""While a process is replaced, its successor has a row already."""
DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds, included; slower requests are in one more bucket."""
STATUS_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")
COUNTED_FROM_ZERO: Final = frozenset({"2xx", "4xx", "5xx"})
"""Classes that are also reported with 0: every operation may have them."""

_BUCKETS: Final = len(DURATION_BUCKETS_S) + 1
_OF_A_PATH: Final = len(STATUS_CLASSES) + _BUCKETS + 1
"""Cells: by class of the status, by bucket of the duration, and the sum of the durations in ns."""
_log = logging.getLogger("lifesign.registry")


class WorkKind(StrEnum):
    """Counters that have no labels, such as the number of sweeps and their duration."""

    RATE_LIMITED = "rate_limited"
    """Requests that were refused by the rate limit of their key."""
    SWEEPS = "sweeps"
    SWEEP_NS = "sweep_ns"
    """Duration of sweeps, in nanoseconds."""
    SWEEPS_FAILED = "sweeps_failed"
    DELIVERED = "delivered"
    """Batches that a webhook took."""
    UNDELIVERED = "undelivered"
    """Batches that the receiver did not accept; they are sent again."""


class _Level(StrEnum):
    """Values that are not counters."""

    LOG_CHECKED_MS = "log_checked_ms"
    LOG_IS_SOUND = "log_is_sound"
    LOG_SEQUENCE = "log_sequence"
    MARKER_MS = "marker_ms"
    """When the marker of the database was last up to date."""


_TRANSITIONS: Final = tuple((status, reason) for status in Status for reason in Reason)
_WORK_AT: Final = {work: place for place, work in enumerate(WorkKind, 1)}
_LEVELS_AT: Final = {level: place for place, level in enumerate(_Level, 1 + len(WorkKind))}
_EVENTS_AT: Final = {kind: place for place, kind in enumerate(EventType, 1 + len(WorkKind) + len(_Level))}
_TRANSITIONS_AT: Final = {
    pair: place for place, pair in enumerate(_TRANSITIONS, max(_EVENTS_AT.values()) + 1)
}
_PATHS_AT: Final = max(_TRANSITIONS_AT.values()) + 1
MAX_PATHS: Final = (ROW_CELLS - _PATHS_AT) // _OF_A_PATH


@dataclass(frozen=True, slots=True)
class SharedCounts:
    """The memory that the processes of one server share, as it is handed to each of them at its start."""

    cells: Any
    """Rows of ROW_CELLS unsigned 64-bit numbers; the first one of a row is its owner's process id."""
    lock: Lock
    """Lock for the assignment of rows."""


def shared_counts(processes: int) -> SharedCounts:
    """Return new counters for so many processes, which `start_worker` starts."""
    context = multiprocessing.get_context("spawn")
    with safe_module_path():
        # The lock starts the resource tracker.
        return SharedCounts(context.RawArray("Q", ROW_CELLS * ROWS_PER_PROCESS * processes), context.Lock())


@dataclass(frozen=True, slots=True)
class LogState:
    """Result of the last check of the whole event log."""

    checked_at_s: float
    """When it ended, in seconds since the epoch."""
    is_sound: bool
    """Whether the chain is intact."""
    sequence: int
    """Up to where it does."""


@dataclass(frozen=True, slots=True)
class PathCounts:
    """Results of the requests of one method at one path."""

    method: str
    path: str
    by_status: Mapping[str, int]
    """Counts of the STATUS_CLASSES that occurred, and of those that are reported with 0."""
    buckets: Sequence[int]
    """Counts by DURATION_BUCKETS_S, and of longer durations; not cumulative."""
    seconds: float
    """Sum of all durations."""


class WorkCounts:
    """Counters of this server process, in memory that all processes of the server share.

    Written to in one thread. Counting takes about a microsecond.
    """

    def __init__(self, shared: SharedCounts | None = None) -> None:
        self._all = _own_row() if shared is None else memoryview(shared.cells).cast("B").cast("Q")
        self._row = self._all if shared is None else self._claim(shared)
        self._paths: tuple[tuple[str, str], ...] = ()
        self._places: dict[tuple[str, str], int] = {}

    def set_paths(self, paths: Sequence[tuple[str, str]]) -> None:
        """Set the methods and paths whose requests are counted separately; the same in all processes.

        All others are counted at ("other", "other").
        """
        self._paths = (("other", "other"), *dict.fromkeys(paths))
        assert len(self._paths) <= MAX_PATHS, "a row of counts is too short"  # noqa: S101 - checked by every test
        self._places = {path: place for place, path in enumerate(self._paths)}

    def place_of(self, method: str, path: str) -> int:
        """Return the number under which requests of this method at this path are counted."""
        return self._places.get((method, path), 0)

    def note_request(self, place: int, status: int, seconds: float) -> None:
        """Count a request that was answered with this status after so many seconds."""
        row, at = self._row, _PATHS_AT + place * _OF_A_PATH
        row[at + status // 100 - 1] += 1
        at += len(STATUS_CLASSES)
        row[at + bisect_left(DURATION_BUCKETS_S, seconds)] += 1
        row[at + _BUCKETS] += int(seconds * 1e9)

    def note(self, work: WorkKind, count: int = 1) -> None:
        """Count something that was done."""
        self._row[_WORK_AT[work]] += count

    def note_events(self, appended: Sequence[EventDraft]) -> None:
        """Count events that were committed."""
        for draft in appended:
            self._row[_EVENTS_AT[draft.type]] += 1
            if isinstance(draft.payload, AgentLifecycle):
                self._row[_TRANSITIONS_AT[draft.payload.new_status, draft.payload.reason]] += 1

    def note_log(self, state: LogState) -> None:
        """Record the result of a check of the event log."""
        self._row[_LEVELS_AT[_Level.LOG_IS_SOUND]] = state.is_sound
        self._row[_LEVELS_AT[_Level.LOG_SEQUENCE]] = state.sequence
        self._row[_LEVELS_AT[_Level.LOG_CHECKED_MS]] = int(state.checked_at_s * 1000)

    def note_marker(self, at_s: float) -> None:
        """Note that the marker of the database is up to date."""
        self._row[_LEVELS_AT[_Level.MARKER_MS]] = int(at_s * 1000)

    @property
    def is_first(self) -> bool:
        """Return whether this process does the work that only one process has to do."""
        living = (row for row in self._rows() if _is_alive(row[0]))
        return next(living, self._row)[0] == self._row[0]

    def sums(self) -> "Sums":
        """Return the sums of all processes."""
        rows = [row.tolist() for row in self._rows()]
        latest = max(rows, key=lambda row: row[_LEVELS_AT[_Level.LOG_CHECKED_MS]])
        checked_ms, is_sound, sequence = (
            latest[_LEVELS_AT[level]]
            for level in (_Level.LOG_CHECKED_MS, _Level.LOG_IS_SOUND, _Level.LOG_SEQUENCE)
        )
        log = LogState(checked_ms / 1000, bool(is_sound), sequence) if checked_ms else None
        marker_ms = max(row[_LEVELS_AT[_Level.MARKER_MS]] for row in rows)
        processes = len({row[0] for row in rows if _is_alive(row[0])})
        marked_at_s = marker_ms / 1000 if marker_ms else None
        return Sums(log, marked_at_s, processes, [*map(sum, zip(*rows, strict=True))], self._paths)

    def _rows(self) -> list[memoryview]:
        return [self._all[at : at + ROW_CELLS] for at in range(0, len(self._all), ROW_CELLS)]

    def _claim(self, shared: SharedCounts) -> memoryview:
        """Take a row whose owner has ended."""
        with shared.lock:
            for row in self._rows():
                if not _is_alive(row[0]):
                    row[0] = os.getpid()
                    return row
        _log.warning("all rows of the shared counters are in use: requests of this process are not counted")
        return _own_row()


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over all processes of a server since its start."""

    log: LogState | None
    """None before the first check is complete."""
    marked_at_s: float | None
    """When the database's marker was last up to date, in seconds since the epoch; None if it never was."""
    processes: int
    """Number of living processes."""
    _cells: Sequence[int]
    _paths: Sequence[tuple[str, str]]

    def work(self, work: WorkKind) -> int:
        """Return the count of one kind of work."""
        return self._cells[_WORK_AT[work]]

    def events(self) -> dict[EventType, int]:
        """Return the number of committed events by type; also 0, so that the first one is an increase."""
        return {kind: self._cells[at] for kind, at in _EVENTS_AT.items()}

    def transitions(self) -> dict[tuple[Status, Reason], int]:
        """Return the number of transitions by status and reason, also 0: the first one is an increase."""
        return {pair: self._cells[at] for pair, at in _TRANSITIONS_AT.items()}

    def paths(self) -> Iterator[PathCounts]:
        """Return the request counts of each path, including paths without requests."""
        for place, (method, path) in enumerate(self._paths):
            at = _PATHS_AT + place * _OF_A_PATH
            cells = self._cells[at : at + _OF_A_PATH]
            statuses = zip(STATUS_CLASSES, cells, strict=False)
            yield PathCounts(
                method,
                path,
                {name: count for name, count in statuses if count or name in COUNTED_FROM_ZERO},
                cells[len(STATUS_CLASSES) : -1],
                cells[-1] / 1e9,
            )


def _own_row() -> memoryview:
    """Return a row that is not shared with other processes."""
    row = memoryview(bytearray(8 * ROW_CELLS)).cast("Q")
    row[0] = os.getpid()
    return row


def _is_alive(process: int) -> bool:
    if process == 0:
        return False
    with suppress(PermissionError):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True
