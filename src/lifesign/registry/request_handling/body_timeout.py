"""Time limit for request bodies, for thousands of requests per second.

One timer serves all bodies that are being read: a timeout for each would cost a tenth of a heartbeat.
"""

import asyncio
from types import TracebackType

from lifesign.registry.errors import BodyTooSlow

MAX_BODY_SECONDS = 30.0
"""Time limit for the whole of a request's body."""
CHECK_SECONDS = 1.0
"""Additional time until a slow body is noticed."""


class BodyTime:
    """Aborts requests whose body takes too long; one object per event loop."""

    def __init__(self) -> None:
        self._reading: dict[asyncio.Task[object], float] = {}
        self._expired: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        """The current task begins to read."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a body is read in a task
        loop = asyncio.get_running_loop()
        self._reading[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(CHECK_SECONDS, self._check)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """End the wait for a body; raise BodyTooSlow if this timer aborted it, and only then."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - as above
        self._reading.pop(task, None)
        if task not in self._expired:
            return
        self._expired.discard(task)
        if task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise BodyTooSlow(MAX_BODY_SECONDS) from None

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        late_s = loop.time() - MAX_BODY_SECONDS
        late = [task for task, began_s in self._reading.items() if began_s <= late_s]
        for task in late:
            del self._reading[task]
            self._expired.add(task)
            task.cancel()
        # Without a body that is being read there is no timer: an idle server sleeps.
        self._timer = loop.call_later(CHECK_SECONDS, self._check) if self._reading else None
