"""Recorder of an agent's interactions. The only clock inside the agent.

`AgentHealth` is all that an agent without ASGI needs; the middleware uses it too. It counts.
`HealthReporter` computes the document from the counts, and `DocumentPublisher` decides when.
"""

import sys
import threading
from math import isfinite
from pathlib import Path

from lifesign.domain.health.document import HealthDocument
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.latency_histogram import LONGEST_LATENCY_NS, bin_of, clamped
from lifesign.domain.health.outcome import SIDES, Outcome, outcome_named
from lifesign.domain.health.rolling_window import WindowWriter
from lifesign.errors import InvalidValue
from lifesign.middleware.document_publisher import DocumentPublisher
from lifesign.middleware.health_reporter import HealthReporter
from lifesign.middleware.interaction import Interaction
from lifesign.middleware.process_recorders import add_recorder
from lifesign.middleware.published_document import PublishedDocument
from lifesign.middleware.recorder_log import RecorderLog
from lifesign.middleware.settings import Moment, RecorderSettings
from lifesign.middleware.window_storage import RecorderClock, Windows, check_state_dir, open_windows

_STREAMS = len(Outcome)
"""The lane behind the outcomes: how many of them were streams."""
_INSPECTIONS = _STREAMS + 1
"""The lanes behind that one: how many answers were inspected, and why others were not."""
_INSPECTED = _INSPECTIONS + Inspection.INSPECTED
_TOOL_RESULTS = _INSPECTIONS + Inspection.TOOL_RESULT
_MOST_PENDING = 256
"""Maximum number of quick answers that are added to the window at once: that takes 30 µs."""

QUICK_NS = (1 << 30) - 1
"""Maximum latency of the fast path, about 1 s: the largest number that CPython handles in its fast way."""


class AgentHealth:
    """Counts an agent's interactions over a rolling window and creates its health document.

    Safe to use from many threads. After a fork the child starts its own counts, as a separate worker.
    Recording takes about a microsecond and raises only for wrong arguments.

    Settings (InvalidValue for a wrong one):

    agent_id: stable name, best the URL of the agent's card (draft 4.2).
    window_seconds: length of the window in seconds, 86400 by default; 300 to 604800 (draft 4.4).
    refresh_seconds: the published document is computed at most once in so many seconds, 60 by default;
        1 to 3600 (draft 7).
    baseline_p99_ms: the declared p99 latency in milliseconds, above 0, up to one hour; slower than
        three times this is degraded (draft 4.3). None, the default: latency does not count.
    counting: which outcomes count on which side of the ratio: "interactions" (default), "literal" or
        "server_faults". See `lifesign.domain.health.outcome`.
    state_dir: directory in which all worker processes share their windows, which survive restarts
        there. None, the default: each process reports for itself and forgets. Created if absent,
        readable by its owner only; 1.5 MB for each worker. POSIX only.
    model_changed_at: when the agent's model last changed: a datetime with a zone, or a function that
        returns one (or None) whenever the document is computed (draft 4.5).
    capabilities_updated_at: when the agent's card last changed, likewise (draft 4.5).
    clock: for tests, a clock that is set by hand.
    """

    def __init__(
        self,
        *,
        agent_id: str,
        window_seconds: float = 86_400,
        refresh_seconds: float = 60,
        baseline_p99_ms: float | None = None,
        counting: str = "interactions",
        state_dir: str | Path | None = None,
        model_changed_at: Moment = None,
        capabilities_updated_at: Moment = None,
        clock: RecorderClock | None = None,
    ) -> None:
        self.settings = RecorderSettings.checked(
            agent_id=agent_id,
            window_seconds=window_seconds,
            refresh_seconds=refresh_seconds,
            baseline_p99_ms=baseline_p99_ms,
            counting=counting,
            state_dir=state_dir,
            model_changed_at=model_changed_at,
            capabilities_updated_at=capabilities_updated_at,
        )
        self.clock = clock or RecorderClock()
        self._is_sampled = tuple(side is not None for side in SIDES[self.settings.counting].values())
        if self.settings.state_dir is not None:
            self.count_quick_answer = self._count_quick_answer_at_once  # type: ignore[method-assign]
            self.count_inspected_answer = self._count_inspected_answer_at_once  # type: ignore[method-assign]
            self.count_tool_result = self._count_tool_result_at_once  # type: ignore[method-assign]
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            # Without the GIL an increment is no longer one step.
            self.count = self._count_locked  # type: ignore[method-assign]
            self.count_quick_answer = self._count_answer_locked  # type: ignore[method-assign]
            self.count_inspected_answer = self._count_inspected_locked  # type: ignore[method-assign]
            self.count_tool_result = self._count_tool_result_locked  # type: ignore[method-assign]
        self._has_noted_compressed = False
        self._log = RecorderLog(self.settings.agent_id, self.clock)
        self.reporter = HealthReporter(self.settings, self._log)
        self.publisher = DocumentPublisher(self.settings, self.clock, self.reporter, self._log)
        self._begin()
        check_state_dir(self.settings.state_dir)
        add_recorder(self)

    def record(
        self,
        outcome: Outcome | str = Outcome.ANSWERED,
        *,
        latency_ms: float,
        first_byte_ms: float | None = None,
    ) -> None:
        """Count one interaction that has just ended.

        `outcome` is an `Outcome` or its name in lower case ("answered", "task_failed", ...); `latency_ms` is
        its duration in milliseconds; `first_byte_ms` the duration until the first byte of a streamed answer.
        Your records count as inspected, except "not_inspected". Raise InvalidValue for an unknown outcome and
        a latency that is no number; negative latencies count as 0, those above an hour as an hour.
        """
        known = outcome_named(outcome)
        latency_ns = _nanoseconds("latency_ms", latency_ms)
        first_byte_ns = None if first_byte_ms is None else _nanoseconds("first_byte_ms", first_byte_ms)
        is_inspected = self._is_sampled[known] or known is Outcome.TOOL_ERROR
        inspection = Inspection.INSPECTED if is_inspected else None
        if known is Outcome.NOT_INSPECTED:
            inspection = Inspection.UNSPECIFIED
        try:
            self.count(known, latency_ns, first_byte_ns, self.clock.monotonic_ns(), inspection)
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            self.log_failure("an interaction could not be counted")

    def interaction(self) -> Interaction:
        """Return a context manager, also a decorator, that counts its block as one interaction.

        An exception counts as `raised`, a TimeoutError as `timed_out`, a cancellation of the task as
        `abandoned`, and is raised unchanged. In the body, set `outcome` for another outcome, and call
        `first_byte()` when a streamed answer begins.
        """
        return Interaction(self)

    def document(self) -> HealthDocument:
        """Compute and return the present health document of all workers."""
        with self._lock:
            now_ns = self.clock.monotonic_ns()
            self._catch_up(now_ns)
            self.reporter.count_overdue(now_ns)
            return self.reporter.report(self._opened(now_ns), now_ns, self.clock.wall_ns())

    def published(self, now_ns: int) -> PublishedDocument:
        """Return the published document: at most `refresh_seconds` old, and the same in all workers.

        `now_ns` is the time of this recorder's monotonic clock. If the document cannot be made, it
        says `unknown`.
        """
        current = self.publisher.current(now_ns)
        if current is not None:
            return current
        with self._lock:
            try:
                self._catch_up(now_ns)
            except Exception:  # noqa: BLE001 - the endpoint must answer: this fails again, and says so
                return self.publisher.refresh(self._opened, now_ns)
            return self.publisher.settled() or self.publisher.refresh(self._opened, now_ns)

    def seconds_to_refresh(self, now_ns: int) -> int:
        """Return for how many whole seconds the published document remains valid, at least 0."""
        return self.publisher.seconds_to_refresh(now_ns)

    def count(
        self,
        outcome: int,
        latency_ns: int | None,
        first_byte_ns: int | None,
        now_ns: int,
        inspection: int | None = None,
    ) -> None:
        """Count one interaction: the fast form of `record`, in nanoseconds and without checks. May raise.

        Without a latency it is in the ratios, and in no percentile.
        """
        if now_ns >= self._due_ns:
            self._catch_up_locked(now_ns)
        if latency_ns is not None and self._is_sampled[outcome]:
            self._latencies[bin_of(clamped(latency_ns))] += 1
            if first_byte_ns is not None:
                self._first_bytes[bin_of(clamped(first_byte_ns))] += 1
                self._counts[_STREAMS] += 1
        if inspection is not None:
            self._counts[_INSPECTIONS + inspection] += 1
        self._counts[outcome] += 1

    def count_quick_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one good answer that needs no inspection, and took 0 to QUICK_NS.

        It is added to the window together with others, before the window is read or the slot ends.
        """
        if now_ns >= self._due_ns:
            self._catch_up_locked(now_ns)
        pending_ns = self._pending_ns
        pending_ns.append(latency_ns)
        if len(pending_ns) >= _MOST_PENDING:
            self._count_pending_locked()

    def count_inspected_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one good answer that was inspected, and took 0 to QUICK_NS."""
        if now_ns >= self._due_ns:
            self._catch_up_locked(now_ns)
        pending_ns = self._pending_inspected_ns
        pending_ns.append(latency_ns)
        if len(pending_ns) >= _MOST_PENDING:
            self._count_pending_locked()

    def count_tool_result(self, latency_ns: int, now_ns: int) -> None:
        """Count one good result of an MCP tool that took 0 to QUICK_NS."""
        if now_ns >= self._due_ns:
            self._catch_up_locked(now_ns)
        pending_ns = self._pending_tools_ns
        pending_ns.append(latency_ns)
        if len(pending_ns) >= _MOST_PENDING:
            self._count_pending_locked()

    def begin_request(self) -> None:
        """Record that a request has begun. If this worker is killed first, the next worker counts it.

        May raise.
        """
        now_ns = self.clock.monotonic_ns()
        if now_ns >= self._due_ns:
            # A lost request is counted in the newest slot.
            self._catch_up_locked(now_ns)
        self._opened(now_ns).open_requests[0] += 1

    def end_request(self) -> None:
        """Record that a request from `begin_request` was counted, or never will be."""
        windows = self._windows
        # No request of this window is open if it was closed meanwhile.
        if windows is not None and windows.open_requests[0]:
            windows.open_requests[0] -= 1

    def note_compressed(self, encoding: str) -> None:
        """Log once that answers cannot be inspected because they are compressed."""
        if not self._has_noted_compressed:
            self._has_noted_compressed = True
            self._log.compressed_answer(encoding)

    def open(self) -> None:
        """Open the shared files now instead of at the first interaction, since the disk may be slow."""
        try:
            with self._lock:
                self._catch_up(self.clock.monotonic_ns())
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            self.log_failure("the windows could not be opened")

    def close(self) -> None:
        """Close shared files, which keep their counts. Counts that are only in memory are lost."""
        with self._lock:
            if self._windows is not None:
                self._windows.open_requests[0] = 0
                self._windows.close()
            self._begin()

    def begin_in_child(self) -> None:
        """Start again as a separate worker, in a child process after a fork."""
        if self._windows is not None:
            self._windows.close()
        self._begin()

    def log_failure(self, what: str) -> None:
        """Log the current exception; the same `what` at most once a minute."""
        self._log.failure(what)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._windows: Windows | None = None
        self.reporter.begin()
        self.publisher.begin()
        self._pending_ns: list[int] = []
        """Latencies of quick answers that are not yet in the window."""
        self._pending_inspected_ns: list[int] = []
        """The same for inspected answers."""
        self._pending_tools_ns: list[int] = []
        """The same for good results of MCP tools."""
        self._due_ns = 0
        """When `count` must look up: the slot ends, or the document is due. 0 until it is open."""

    def _count_locked(
        self,
        outcome: int,
        latency_ns: int | None,
        first_byte_ns: int | None,
        now_ns: int,
        inspection: int | None = None,
    ) -> None:
        with self._lock:
            AgentHealth.count(self, outcome, latency_ns, first_byte_ns, now_ns, inspection)

    def _count_quick_answer_at_once(self, latency_ns: int, now_ns: int) -> None:
        """Count where a kill of this process loses nothing that was counted."""
        if now_ns >= self._due_ns:
            self._catch_up_locked(now_ns)
        self._latencies[bin_of(latency_ns)] += 1
        self._counts[0] += 1

    def _count_inspected_answer_at_once(self, latency_ns: int, now_ns: int) -> None:
        if now_ns >= self._due_ns:
            self._catch_up_locked(now_ns)
        self._latencies[bin_of(latency_ns)] += 1
        self._counts[_INSPECTED] += 1
        self._counts[0] += 1

    def _count_tool_result_at_once(self, latency_ns: int, now_ns: int) -> None:
        if now_ns >= self._due_ns:
            self._catch_up_locked(now_ns)
        self._latencies[bin_of(latency_ns)] += 1
        self._counts[_TOOL_RESULTS] += 1
        self._counts[0] += 1

    def _count_pending_locked(self) -> None:
        with self._lock:
            self._count_pending()

    def _count_pending(self) -> None:
        """Add the pending answers to the window. The lock is held; other threads may add more meanwhile."""
        latencies = self._latencies
        for pending in (self._pending_ns, self._pending_inspected_ns, self._pending_tools_ns):
            pending_ns = pending[:]
            del pending[: len(pending_ns)]
            for latency_ns in pending_ns:
                latencies[bin_of(latency_ns)] += 1
            if pending is self._pending_inspected_ns:
                self._counts[_INSPECTED] += len(pending_ns)
            elif pending is self._pending_tools_ns:
                self._counts[_TOOL_RESULTS] += len(pending_ns)
            self._counts[0] += len(pending_ns)

    def _count_answer_locked(self, latency_ns: int, now_ns: int) -> None:
        self._count_locked(Outcome.ANSWERED, latency_ns, None, now_ns)

    def _count_inspected_locked(self, latency_ns: int, now_ns: int) -> None:
        self._count_locked(Outcome.ANSWERED, latency_ns, None, now_ns, Inspection.INSPECTED)

    def _count_tool_result_locked(self, latency_ns: int, now_ns: int) -> None:
        self._count_locked(Outcome.ANSWERED, latency_ns, None, now_ns, Inspection.TOOL_RESULT)

    def _opened(self, now_ns: int) -> Windows:
        if self._windows is None:
            windows = open_windows(self.settings, self.clock, now_ns)
            now_ns += windows.offset_ns
            self._writer = WindowWriter(windows.block, self.settings.window_ns, now_ns)
            self._open_lanes()
            self._windows = windows
        return self._windows

    def _catch_up_locked(self, now_ns: int) -> None:
        """Note the agent's status before another interaction is counted: it was valid until now."""
        with self._lock:
            self._catch_up(now_ns)

    def _open_lanes(self) -> None:
        self._counts = self._writer.counts
        self._latencies = self._writer.latencies
        self._first_bytes = self._writer.first_bytes

    def _catch_up(self, now_ns: int) -> None:
        """Open the windows, the slot and the document that are due. The lock is held."""
        publisher = self.publisher
        is_new = self._windows is None
        windows = self._opened(now_ns)
        if is_new:
            publisher.postpone(now_ns)
        self._count_pending()
        if publisher.is_on_grid and publisher.is_due(now_ns):
            # Before a slot is opened: it is made as of the last grid point.
            publisher.refresh(self._opened, now_ns)
        if now_ns + windows.offset_ns >= self._writer.ends_ns:
            self._writer.open_slot(now_ns + windows.offset_ns)
            self._open_lanes()
        if not publisher.is_on_grid and publisher.is_due(now_ns):
            publisher.refresh(self._opened, now_ns)
        self._due_ns = min(self._writer.ends_ns - windows.offset_ns, publisher.due_ns(now_ns))


def _nanoseconds(name: str, milliseconds: object) -> int:
    if isinstance(milliseconds, int) or (isinstance(milliseconds, float) and isfinite(milliseconds)):
        return int(min(max(milliseconds, 0), LONGEST_LATENCY_NS / 1e6) * 1e6)
    raise InvalidValue(name, milliseconds, "a number of milliseconds")
