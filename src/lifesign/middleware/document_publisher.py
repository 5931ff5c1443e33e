"""Publication of the health document: one document for all workers, for `refresh_seconds` each.

The worker that first needs a new document makes and publishes it; the others adopt it. Only the worker that
holds the right to publish may do so. A worker that does not get the right waits for no other.
"""

from collections.abc import Callable

from lifesign.middleware.health_reporter import HealthReporter
from lifesign.middleware.published_document import PublishedDocument
from lifesign.middleware.recorder_log import RecorderLog
from lifesign.middleware.settings import RecorderSettings
from lifesign.middleware.window_storage import RecorderClock, Windows

_RETRY_NS = 50_000_000

OpenWindows = Callable[[int], Windows]
"""Returns the windows, which it opens first if they are not open, by the monotonic time. May raise."""


class DocumentPublisher:
    """Keeps the published document of one worker, and renews it.

    The recorder's lock is held during each call, except for `current` and `seconds_to_refresh`.
    """

    def __init__(
        self,
        settings: RecorderSettings,
        clock: RecorderClock,
        reporter: HealthReporter,
        log: RecorderLog,
    ) -> None:
        self._clock = clock
        self._refresh_ns = settings.refresh_ns
        self._reporter = reporter
        self._log = log
        self.is_on_grid = False
        """Whether the published document depends only on the wall clock as long as the status stays the same.
        Then it is computed for the last multiple of `refresh_seconds` since 1970, and changes at the next
        one. This is coarse mode.
        """
        self.begin()

    def begin(self) -> None:
        """Begin without a document, with windows that are not open yet."""
        self._held: PublishedDocument | None = None
        self._is_refreshing = False
        self._refresh_due_ns = 0
        self._held_from_ns = self._held_until_ns = 0
        """Coarse mode: start and end of the cached document's validity by the wall clock."""
        self._is_provisional = False
        """Coarse mode: whether the held document was made at the grid point itself, to which more data may
        belong.
        """
        self._look_again_ns: int | None = None
        """Coarse mode: time of the next check for a document of another worker."""

    def current(self, now_ns: int) -> PublishedDocument | None:
        """Return the document if it is surely valid at this time; None if that needs the lock."""
        # Read before `_held`, as a refresh in another thread sets both first and `_held` last.
        is_current = now_ns < self._refresh_due_ns and not self._is_refreshing
        held = self._held
        return held if is_current and not self.is_on_grid else None

    def settled(self) -> PublishedDocument | None:
        """Return the document, valid or not; None if there is none, or more data may belong to it."""
        return None if self._is_provisional else self._held

    def seconds_to_refresh(self, now_ns: int) -> int:
        """Return for how many whole seconds the document remains valid, at least 0."""
        left_ns = (
            self._held_until_ns - self._clock.wall_ns() if self.is_on_grid else self._refresh_due_ns - now_ns
        )
        return left_ns // 1_000_000_000 if left_ns > 0 else 0

    def postpone(self, now_ns: int) -> None:
        """Let the first refresh be due one interval after the windows were opened."""
        self._refresh_due_ns = now_ns + self._refresh_ns

    def is_due(self, now_ns: int) -> bool:
        """Return whether a refresh is due: the cached document may not be that of this interval."""
        if not self.is_on_grid:
            return now_ns >= self._refresh_due_ns
        wall_ns = self._clock.wall_ns()
        if not self._held_from_ns <= wall_ns < self._held_until_ns:
            return True
        if self._is_provisional:
            return wall_ns > self._held_from_ns
        return self._look_again_ns is not None and now_ns >= self._look_again_ns

    def due_ns(self, now_ns: int) -> int:
        """Return the monotonic time from which `is_due` must be asked again."""
        if not self.is_on_grid:
            return self._refresh_due_ns
        look_again_ns = now_ns if self._is_provisional else self._look_again_ns
        return min(self._refresh_due_ns, look_again_ns or self._refresh_due_ns)

    def refresh(self, open_windows: OpenWindows, now_ns: int) -> PublishedDocument:
        """Adopt the document of another worker, or make and publish one.

        If that fails, the document says `unknown`.
        """
        # First of all: an operator's function may record, or ask for the document, in its turn.
        is_nested, self._is_refreshing = self._is_refreshing, True
        self._refresh_due_ns = now_ns + self._refresh_ns
        wall_ns = self._clock.wall_ns()
        if self.is_on_grid:
            self._held_from_ns = wall_ns // self._refresh_ns * self._refresh_ns
            self._held_until_ns = self._held_from_ns + self._refresh_ns
            self._refresh_due_ns = now_ns + self._held_until_ns - wall_ns
            if self._is_provisional:
                self._held = None
            self._is_provisional = wall_ns == self._held_from_ns
            self._look_again_ns = None
        if is_nested:
            return self._unknown(now_ns)
        try:
            windows = open_windows(now_ns)
            # The document of another worker shows these from its next refresh on.
            self._reporter.count_overdue(
                now_ns - (wall_ns - self._held_from_ns) if self.is_on_grid else now_ns
            )
            if self.is_on_grid:
                notice = self._renewed_on_grid(windows, now_ns, wall_ns)
            else:
                notice = self._renewed(windows, now_ns, wall_ns)
        except Exception:  # noqa: BLE001 - the endpoint must answer, whatever is wrong with the windows
            self._log.failure("the health document could not be made; it says `unknown`")
            notice = self._unknown(now_ns)
        finally:
            self._is_refreshing = False
        self._held = notice
        return notice

    def _unknown(self, now_ns: int) -> PublishedDocument:
        wall_ns = self._held_from_ns if self.is_on_grid else self._clock.wall_ns()
        document = self._reporter.unknown(wall_ns).to_json()
        return PublishedDocument(now_ns, self._refresh_due_ns, 0, document)

    def _renewed(self, windows: Windows, now_ns: int, wall_ns: int) -> PublishedDocument:
        """Return a document that is valid for one interval from now, or that of another worker."""
        offset_ns = windows.offset_ns
        time_ns = now_ns + offset_ns
        with windows.publishing() as is_ours:
            notice = windows.published_document()
            if notice is not None and time_ns < notice.expires_ns <= time_ns + self._refresh_ns:
                self._refresh_due_ns = notice.expires_ns - offset_ns
                return notice
            held = self._held
            if not is_ours and held is not None and time_ns < held.expires_ns + self._refresh_ns:
                # Another worker is about to publish: the cached document is good for that moment.
                self._refresh_due_ns = now_ns + _RETRY_NS
                return held
            document = self._reporter.report(windows, now_ns, wall_ns).to_json()
            expires_ns = time_ns + self._refresh_ns
            if not is_ours:
                # Good for one refresh, unless another worker is about to publish after all.
                expires_ns = time_ns
                self._refresh_due_ns = now_ns + _RETRY_NS
            notice = PublishedDocument(time_ns, expires_ns, self._reporter.last_healthy_ms, document)
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
                document = self._reporter.report(windows, grid_point_ns, self._held_from_ns).to_json()
                time_ns = now_ns + windows.offset_ns
                healthy_ms = self._reporter.last_healthy_ms
                notice = PublishedDocument(time_ns, self._held_until_ns, healthy_ms, document)
            if self._is_provisional:
                return notice
            if is_ours:
                windows.publish(notice)
            else:
                # Another worker is about to publish, and this one does not wait for it.
                self._look_again_ns = now_ns + _RETRY_NS
            return notice
