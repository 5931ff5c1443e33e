"""Recorder of an agent's interactions. The only clock inside the agent.

`AgentHealth` is all that an agent without ASGI needs; the middleware uses it too.
"""

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path

from lifesign.domain.health.document import HealthDocument
from lifesign.domain.health.document_builder import OperatorFacts, no_report, self_report
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.latency_histogram import LONGEST_LATENCY_NS, bin_of, clamped
from lifesign.domain.health.outcome import SIDES, Outcome, outcome_named
from lifesign.domain.health.rolling_window import WindowReader, WindowWriter
from lifesign.errors import InvalidValue
from lifesign.middleware.interaction import Interaction
from lifesign.middleware.published_document import PublishedDocument
from lifesign.middleware.settings import Moment, RecorderSettings, moment_now
from lifesign.middleware.window_storage import (
    RecorderClock,
    Windows,
    check_state_dir,
    open_windows,
)

_log = logging.getLogger("lifesign")

_EPOCH = datetime.fromtimestamp(0, UTC)
_STREAMS = len(Outcome)
"""The lane behind the outcomes: how many of them were streams."""
_INSPECTIONS = _STREAMS + 1
"""The lanes behind that one: how many answers were inspected, and why others were not."""
_INSPECTED = _INSPECTIONS + Inspection.INSPECTED
_TOOL_RESULTS = _INSPECTIONS + Inspection.TOOL_RESULT
_MOST_PENDING = 256
"""Maximum number of quick answers that are added to the window at once: that takes 30 µs."""
_RETRY_NS = 50_000_000
_LOG_INTERVAL_NS = 60_000_000_000
_MAX_SHOWN_CHARS = 40

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
        self._log_due_ns: dict[str, int] = {}
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
        self.count_overdue: Callable[[int], None] | None = None
        """Called with the monotonic time before a document is made, or taken from another worker, to count
        requests that may never end.
        """
        self.is_inspecting = True
        """Whether bodies are inspected; the document says so."""
        self.is_on_grid = False
        """Whether the published document depends only on the wall clock as long as the status stays the same.
        Then it is computed for the last multiple of `refresh_seconds` since 1970, and changes at the next
        one.
        """
        self._has_noted_compressed = False
        self._has_warned_of_removed_files = False
        self._begin()
        check_state_dir(self.settings.state_dir)
        _recorders.add(self)

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
            self._count_overdue(now_ns)
            return self._report(self._opened(now_ns), now_ns, self.clock.wall_ns())

    def published(self, now_ns: int) -> PublishedDocument:
        """Return the published document: at most `refresh_seconds` old, and the same in all workers.

        `now_ns` is the time of this recorder's monotonic clock. If the document cannot be made, it
        says `unknown`.
        """
        # Read before `_held`, as a refresh in another thread sets both first and `_held` last.
        is_current = now_ns < self._refresh_due_ns and not self._is_refreshing
        held = self._held
        if held is not None and is_current and not self.is_on_grid:
            return held
        with self._lock:
            try:
                self._catch_up(now_ns)
            except Exception:  # noqa: BLE001 - the endpoint must answer: this fails again, and says so
                return self._refresh(now_ns)
            held = None if self._is_provisional else self._held
            return held or self._refresh(now_ns)

    def seconds_to_refresh(self, now_ns: int) -> int:
        """Return for how many whole seconds the published document remains valid, at least 0."""
        left_ns = (
            self._held_until_ns - self.clock.wall_ns() if self.is_on_grid else self._refresh_due_ns - now_ns
        )
        return left_ns // 1_000_000_000 if left_ns > 0 else 0

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
            _log.warning(
                (
                    "lifesign: %s: an answer was compressed (content-encoding %r) before the middleware "
                    "saw it, and is counted as not_inspected. Put AgentHealthMiddleware inside the "
                    "compression. This is logged once."
                ),
                self.settings.agent_id,
                encoding[:_MAX_SHOWN_CHARS],
            )

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
        now_ns = self.clock.monotonic_ns()
        if now_ns >= self._log_due_ns.get(what, 0):
            self._log_due_ns[what] = now_ns + _LOG_INTERVAL_NS
            _log.exception("lifesign: %s (this error is not logged again for a minute)", what)

    def _warn_of_removed_files(self) -> None:
        if not self._has_warned_of_removed_files:
            self._has_warned_of_removed_files = True
            _log.warning(
                (
                    "lifesign: %s: the files in the state directory were removed; the status is unknown "
                    "until all workers have been restarted"
                ),
                self.settings.agent_id,
            )

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._windows: Windows | None = None
        self._reader = WindowReader(self.settings.window_ns)
        self._held: PublishedDocument | None = None
        self._is_refreshing = False
        self._healthy_ms = 0
        self._refresh_due_ns = 0
        self._held_from_ns = self._held_until_ns = 0
        """Coarse mode: start of the cached document's validity by the wall clock."""
        self._is_provisional = False
        """Coarse mode: whether the held document was made at the grid point itself, to which more data may
        belong.
        """
        self._look_again_ns: int | None = None
        """Coarse mode: time of the next check for a document of another worker."""
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
        is_new = self._windows is None
        windows = self._opened(now_ns)
        if is_new:
            self._refresh_due_ns = now_ns + self.settings.refresh_ns
        self._count_pending()
        if self.is_on_grid and self._is_off_grid(now_ns):
            # Before a slot is opened: it is made as of the last grid point.
            self._refresh(now_ns)
        if now_ns + windows.offset_ns >= self._writer.ends_ns:
            self._writer.open_slot(now_ns + windows.offset_ns)
            self._open_lanes()
        if not self.is_on_grid and now_ns >= self._refresh_due_ns:
            self._refresh(now_ns)
        self._due_ns = min(self._writer.ends_ns - windows.offset_ns, self._refresh_due_ns)
        if self.is_on_grid:
            look_again_ns = now_ns if self._is_provisional else self._look_again_ns
            self._due_ns = min(self._due_ns, look_again_ns or self._due_ns)

    def _is_off_grid(self, now_ns: int) -> bool:
        """Return whether the cached document may not be that of the last grid point."""
        wall_ns = self.clock.wall_ns()
        if not self._held_from_ns <= wall_ns < self._held_until_ns:
            return True
        if self._is_provisional:
            return wall_ns > self._held_from_ns
        return self._look_again_ns is not None and now_ns >= self._look_again_ns

    def _refresh(self, now_ns: int) -> PublishedDocument:
        """Adopt the document of another worker, or make and publish one."""
        # First of all: an operator's function may record, or ask for the document, in its turn.
        is_nested, self._is_refreshing = self._is_refreshing, True
        self._refresh_due_ns = now_ns + self.settings.refresh_ns
        wall_ns = self.clock.wall_ns()
        if self.is_on_grid:
            self._held_from_ns = wall_ns // self.settings.refresh_ns * self.settings.refresh_ns
            self._held_until_ns = self._held_from_ns + self.settings.refresh_ns
            self._refresh_due_ns = now_ns + self._held_until_ns - wall_ns
            if self._is_provisional:
                self._held = None
            self._is_provisional = wall_ns == self._held_from_ns
            self._look_again_ns = None
        if is_nested:
            return self._unknown(now_ns)
        try:
            windows = self._opened(now_ns)
            # The document of another worker shows these from its next refresh on.
            self._count_overdue(now_ns - (wall_ns - self._held_from_ns) if self.is_on_grid else now_ns)
            if self.is_on_grid:
                notice = self._renewed_on_grid(windows, now_ns, wall_ns)
            else:
                notice = self._renewed(windows, now_ns, wall_ns)
        except Exception:  # noqa: BLE001 - the endpoint must answer, whatever is wrong with the windows
            self.log_failure("the health document could not be made; it says `unknown`")
            notice = self._unknown(now_ns)
        finally:
            self._is_refreshing = False
        self._held = notice
        return notice

    def _unknown(self, now_ns: int) -> PublishedDocument:
        wall_ns = self._held_from_ns if self.is_on_grid else self.clock.wall_ns()
        document = no_report(self.settings.agent_id, _utc(wall_ns)).to_json()
        return PublishedDocument(now_ns, self._refresh_due_ns, 0, document)

    def _renewed(self, windows: Windows, now_ns: int, wall_ns: int) -> PublishedDocument:
        offset_ns = windows.offset_ns
        time_ns = now_ns + offset_ns
        with windows.publishing() as is_ours:
            notice = windows.published_document()
            if notice is not None and time_ns < notice.expires_ns <= time_ns + self.settings.refresh_ns:
                self._refresh_due_ns = notice.expires_ns - offset_ns
                return notice
            held = self._held
            if not is_ours and held is not None and time_ns < held.expires_ns + self.settings.refresh_ns:
                # Another worker is about to publish: the cached document is good for that moment.
                self._refresh_due_ns = now_ns + _RETRY_NS
                return held
            document = self._report(windows, now_ns, wall_ns)
            expires_ns = time_ns + self.settings.refresh_ns
            if not is_ours:
                # Good for one refresh, unless another worker is about to publish after all.
                expires_ns = time_ns
                self._refresh_due_ns = now_ns + _RETRY_NS
            notice = PublishedDocument(time_ns, expires_ns, self._healthy_ms, document.to_json())
            if is_ours:
                windows.publish(notice)
            return notice

    def _renewed_on_grid(self, windows: Windows, now_ns: int, wall_ns: int) -> PublishedDocument:
        """Return a document that is valid until the next grid point, with the state of the last one.

        Each worker calls this before it counts anything after a grid point. So the worker that publishes
        knows nothing later.
        """
        with windows.publishing() as is_ours:
            notice = windows.published_document()
            if notice is not None and notice.expires_ns == self._held_until_ns:
                return notice
            notice = self._held
            if notice is None or notice.expires_ns != self._held_until_ns:
                grid_point_ns = now_ns - (wall_ns - self._held_from_ns)
                document = self._report(windows, grid_point_ns, self._held_from_ns).to_json()
                time_ns = now_ns + windows.offset_ns
                notice = PublishedDocument(time_ns, self._held_until_ns, self._healthy_ms, document)
            if self._is_provisional:
                return notice
            if is_ours:
                windows.publish(notice)
            else:
                # Another worker is about to publish, and this one does not wait for it.
                self._look_again_ns = now_ns + _RETRY_NS
            return notice

    def _report(self, windows: Windows, now_ns: int, wall_ns: int) -> HealthDocument:
        """Return the document as of a moment, given on both clocks."""
        if windows.is_removed():
            # Each worker may have read the files of other workers than the next one.
            self._warn_of_removed_files()
            return no_report(self.settings.agent_id, _utc(wall_ns))
        time_ns = now_ns + windows.offset_ns
        notice = windows.published_document()
        healthy_ms = max(self._healthy_ms, notice.last_healthy_ms if notice else 0)
        totals = self._reader.totals(windows.blocks(time_ns), time_ns)
        document = self_report(
            self._declared(),
            totals,
            now=_utc(wall_ns),
            uptime_seconds=max(0.0, (time_ns - windows.oldest_living_start_ns()) / 1e9),
            last_healthy_at=datetime.fromtimestamp(healthy_ms / 1000, UTC) if healthy_ms else None,
        )
        healthy_at = document.health.last_healthy_at
        self._healthy_ms = (healthy_at - _EPOCH) // timedelta(milliseconds=1) if healthy_at else 0
        return document

    def _count_overdue(self, now_ns: int) -> None:
        if self.count_overdue is not None:
            self.count_overdue(now_ns)

    def _declared(self) -> OperatorFacts:
        settings = self.settings
        return OperatorFacts(
            agent_id=settings.agent_id,
            window_seconds=settings.window_seconds,
            counting=settings.counting,
            baseline_p99_ms=settings.baseline_p99_ms,
            model_changed_at=self._moment("model_changed_at", settings.model_changed_at),
            capabilities_updated_at=self._moment("capabilities_updated_at", settings.capabilities_updated_at),
            is_inspecting=self.is_inspecting,
        )

    def _moment(self, name: str, moment: Moment) -> datetime | None:
        try:
            return moment_now(moment)
        except Exception:  # noqa: BLE001 - an operator's function must not take the document down
            self.log_failure(f"{name} returned no time and is left out")
            return None


def _utc(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC)


def _nanoseconds(name: str, milliseconds: object) -> int:
    if isinstance(milliseconds, int) or (isinstance(milliseconds, float) and isfinite(milliseconds)):
        return int(min(max(milliseconds, 0), LONGEST_LATENCY_NS / 1e6) * 1e6)
    raise InvalidValue(name, milliseconds, "a number of milliseconds")


def living_recorders() -> list[AgentHealth]:
    """Return all recorders of this process, sorted by the names of their agents."""
    return sorted(_recorders, key=lambda recorder: recorder.settings.agent_id)


_recorders: "weakref.WeakSet[AgentHealth]" = weakref.WeakSet()


def _reset_in_child() -> None:
    """Leave the parent's window to the parent: its counts are in its file, not in ours."""
    for recorder in _recorders:
        recorder.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
