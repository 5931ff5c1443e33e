"""Health document as of a moment, from the counts of all workers and the operator's settings."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from lifesign.domain.health.document import HealthDocument
from lifesign.domain.health.document_builder import OperatorFacts, no_report, self_report
from lifesign.domain.health.rolling_window import WindowReader
from lifesign.middleware.recorder_log import RecorderLog
from lifesign.middleware.settings import Moment, RecorderSettings, moment_now
from lifesign.middleware.window_storage import Windows

_EPOCH = datetime.fromtimestamp(0, UTC)


class HealthReporter:
    """Computes the health document of an agent. The recorder's lock is held during each call."""

    def __init__(self, settings: RecorderSettings, log: RecorderLog) -> None:
        self._settings = settings
        self._log = log
        self.count_overdue: Callable[[int], None] = _count_none
        """Called with the monotonic time before a document is made, or taken from another worker, to count
        requests that may never end.
        """
        self.is_inspecting = True
        """Whether bodies are inspected; the document says so."""
        self._has_warned_of_removed_files = False
        self.begin()

    def begin(self) -> None:
        """Begin with windows that are not open yet."""
        self._reader = WindowReader(self._settings.window_ns)
        self.last_healthy_ms = 0
        """When the agent was last seen healthy, in ms since 1970; 0 is never."""

    def report(self, windows: Windows, now_ns: int, wall_ns: int) -> HealthDocument:
        """Return the document as of a moment, given on both clocks. May raise."""
        if windows.is_removed():
            # Each worker may have read the files of other workers than the next one.
            if not self._has_warned_of_removed_files:
                self._has_warned_of_removed_files = True
                self._log.removed_files()
            return self.unknown(wall_ns)
        time_ns = now_ns + windows.offset_ns
        notice = windows.published_document()
        healthy_ms = max(self.last_healthy_ms, notice.last_healthy_ms if notice else 0)
        totals = self._reader.totals(windows.blocks(time_ns), time_ns)
        document = self_report(
            self._declared(),
            totals,
            now=_utc(wall_ns),
            uptime_seconds=max(0.0, (time_ns - windows.oldest_living_start_ns()) / 1e9),
            last_healthy_at=datetime.fromtimestamp(healthy_ms / 1000, UTC) if healthy_ms else None,
        )
        healthy_at = document.health.last_healthy_at
        self.last_healthy_ms = (healthy_at - _EPOCH) // timedelta(milliseconds=1) if healthy_at else 0
        return document

    def unknown(self, wall_ns: int) -> HealthDocument:
        """Return the document that says only that the status is unknown."""
        return no_report(self._settings.agent_id, _utc(wall_ns))

    def _declared(self) -> OperatorFacts:
        settings = self._settings
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
            self._log.failure(f"{name} returned no time and is left out")
            return None


def _count_none(now_ns: int) -> None:
    """Count nothing: without the middleware, only interactions that have ended are known."""


def _utc(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC)
