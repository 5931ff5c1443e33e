"""Notification of waiting claims about queued tasks.

One reader of the event feed serves all waiting claims of a server process, and does nothing without new
events. Tasks that other server processes queue are in the same log.
"""

import asyncio
import logging

from lifesign.domain.events.chain import Event
from lifesign.domain.events.event_type import EventType
from lifesign.domain.tasks.task_states import TaskStatus
from lifesign.registry.events.event_feed import EventFeed, EventFilter
from lifesign.storage.errors import StoreUnavailable

RETRY_SECONDS = 1.0
"""Interval of attempts while the database is unreachable."""
PATIENCE_SECONDS = 60.0
"""Duration of one wait for events."""

_WANTED = EventFilter(types=frozenset({EventType.TASK_CREATED, EventType.TASK_LIFECYCLE}))
_log = logging.getLogger("lifesign.registry")


class TaskNotifier:
    """Wakes waiting claims when a task may have been queued; `run` one per server process."""

    def __init__(self, feed: EventFeed) -> None:
        self.number = 0
        """Rises whenever a task may have been queued."""
        self._feed = feed
        self._changed = asyncio.Event()
        self._waiting = 0
        self._is_wanted = asyncio.Event()

    async def run(self) -> None:
        """Follow the log while claims wait, until cancelled, or until the feed is closed."""
        while not self._feed.is_closed:
            await self._is_wanted.wait()
            try:
                await self._follow()
            except StoreUnavailable:
                # The feed logs it.
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - it is logged
                _log.exception("events of tasks could not be read")
                await asyncio.sleep(RETRY_SECONDS)

    async def wait_beyond(self, number: int) -> None:
        """Return once a task may have been queued since `number` was read."""
        self._waiting += 1
        self._is_wanted.set()
        try:
            while self.number <= number:
                await self._changed.wait()
        finally:
            self._waiting -= 1

    async def _follow(self) -> None:
        """Notify claims of new tasks while claims wait and the log is the same one."""
        past = self._feed.past
        position = await self._feed.begin()
        # Tasks that were queued until now.
        self._notify()
        while self._feed.past == past and not self._feed.is_closed:
            if not self._waiting:
                self._is_wanted.clear()
                return
            page = await self._feed.page(position, _WANTED)
            if any(_is_queued(event) for event in page.events):
                self._notify()
            if page.position == position:
                await self._feed.wait_beyond(position, PATIENCE_SECONDS)
            position = page.position

    def _notify(self) -> None:
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _is_queued(event: Event) -> bool:
    is_new = event.type is EventType.TASK_CREATED
    return is_new or event.payload.get("new_status") == TaskStatus.QUEUED
