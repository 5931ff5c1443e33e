"""Watch of writes: whether changes fail at present."""

import logging
import time
from collections.abc import Callable, Sequence
from math import inf

from lifesign.domain.events.event import EventDraft
from lifesign.storage.errors import DatabaseReplaced, StoreUnavailable

_log = logging.getLogger("lifesign.registry")

Listener = Callable[[Sequence[EventDraft]], None]
"""Receives the events that one transaction has appended to the log; it must not raise."""

WARN_AGAIN_SECONDS = 60.0
"""Interval of log lines about changes that fail."""


def ignore_events(_appended: Sequence[EventDraft]) -> None:
    """Ignore the events."""


class WriteWatch:
    """Remembers whether changes of the database fail, and logs when that begins and ends."""

    def __init__(self) -> None:
        self.listener: Listener = ignore_events
        """Hears, in the event loop, of all that this process appends to the event log."""
        self.failure: StoreUnavailable | None = None
        """Failure of the last change; None if it was stored, or failed for another reason."""
        self.mismatch: str | None = None
        """Reason why the database is not the one with which the server started. While set, all changes are
        refused.
        """
        self._warned_at_s = -inf
        self._is_warned = False

    def failed(self, failure: StoreUnavailable) -> None:
        """Record a failed change; it is logged once, and again each WARN_AGAIN_SECONDS while changes fail."""
        self.failure = failure
        now_s = time.monotonic()
        if now_s - self._warned_at_s >= WARN_AGAIN_SECONDS:
            self._warned_at_s, self._is_warned = now_s, True
            _log.warning("changes cannot be stored: %s", failure)

    def refuse_mismatch(self) -> None:
        """Raise DatabaseReplaced while the database is not the one that the server began with."""
        if self.mismatch is not None:
            raise DatabaseReplaced(self.mismatch)

    def succeeded(self) -> None:
        """Record that a change was stored; log it if an earlier failure was logged."""
        self.failure = None
        if self._is_warned:
            self._is_warned = False
            _log.warning("changes are stored again")
