"""Shared reading of the event log for all clients of one server process.

The feed reads new events once and keeps the latest ones. Each client reads them at its own speed, and from
the database if it falls behind. There are no queues per client, and without clients nothing is read.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from lifesign.domain.events.chain import GENESIS, Checkpoint, Event
from lifesign.domain.events.event_type import EventType
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log
from lifesign.storage.events.event_news import EventNews, event_news

MAX_RECENT = 1_000
"""Number of events that are kept in memory for all clients."""
MAX_PAGE = 100
"""Maximum of events that one client holds at once."""
RETRY_SECONDS = 1.0
"""Interval of attempts while the database is unreachable."""
LINGER_SECONDS = 5.0
"""Time for which new events are read after the last client has left."""

_log = logging.getLogger("lifesign.registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Filter of events; empty or None matches any."""

    types: frozenset[EventType] = frozenset()
    agent_id: str | None = None
    intent_id: str | None = None

    def takes(self, event: Event, agent_id: str | None) -> bool:
        """Return whether an event matches; `agent_id` is the agent of the event."""
        return (
            (not self.types or event.type in self.types)
            and (self.agent_id is None or agent_id == self.agent_id)
            and (self.intent_id is None or event.intent_id == self.intent_id)
        )


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Matching events, and the sequence number up to which the log was searched for them."""

    events: Sequence[Event]
    position: int


class EventFeed:
    """Provides new events to the clients of one server process; `run` it while there are clients."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._news: EventNews = event_news(database)
        self._recent: list[tuple[Event, str | None]] = []
        self._begin = 0
        """Sequence before the first event of `_recent`."""
        self._end: Checkpoint | None = None
        """Up to where the log was read, None before the first look; another hash there means that another
        past was restored."""
        self._seen = GENESIS
        """The furthest end of the log that a client has read itself, maybe before the feed."""
        self.past = 0
        """Number of times that the log was replaced by another one; clients from before must start again."""
        self._changed = asyncio.Event()
        self._waiting = 0
        """Number of clients that wait for events."""
        self._left_s = 0.0
        """When the last of them went, by the loop's clock."""
        self._is_wanted = asyncio.Event()
        """Cleared while the feed rests."""
        self._is_wanted.set()
        self._has_rested = False
        """Whether events after `_end` are unknown, possibly many."""
        self.is_closed = False

    async def run(self) -> None:
        """Read new events until cancelled, while there are clients; then disconnect them."""
        is_unreachable = False
        try:
            while True:
                await self._news.rest(self._is_wanted)
                try:
                    await self._poll()
                    is_unreachable = False
                except StoreUnavailable as error:
                    if not is_unreachable:
                        _log.warning("events cannot be read for now: %s", error)
                    is_unreachable = True
                    await asyncio.sleep(RETRY_SECONDS)
                except Exception:  # noqa: BLE001 - it is logged
                    # One failed read must not block the clients forever.
                    _log.exception("new events could not be read; it is tried again")
                    await asyncio.sleep(RETRY_SECONDS)
                await self._news.wait()
                self._rest_if_unwanted()
        finally:
            self.close()
            await self._news.close()

    def close(self) -> None:
        """Disconnect all clients."""
        self.is_closed = True
        self._changed.set()

    async def begin(self) -> int:
        """Return the sequence of the last event, from where a client follows. Raises StoreUnavailable."""
        past = self.past
        last = (await self._database.read(event_log.head)).last
        self.note_end(last, past)
        return last.sequence

    def note_end(self, last: Checkpoint, past: int) -> None:
        """Note the end of the log that a client has read when the feed's `past` had this value.

        From then on it is noticed if a backup without that event is restored.
        """
        if self.past == past and last.sequence > self._seen.sequence:
            self._seen = last

    async def page(self, position: int, wanted: EventFilter) -> EventBatch:
        """Return the next wanted events behind `position`, at most `MAX_PAGE`. Raises StoreUnavailable."""
        if self._end is not None and self._begin <= position:
            found = [
                event
                for event, agent_id in self._recent[position - self._begin :]
                if wanted.takes(event, agent_id)
            ][:MAX_PAGE]
            end = self._end.sequence
        else:
            past, known = self.past, self._known
            is_same_past, found, last = await self._database.read(
                lambda transaction: (
                    _contains(transaction, known),
                    event_log.after(
                        transaction,
                        position,
                        limit=MAX_PAGE,
                        types=sorted(wanted.types),
                        agent_id=wanted.agent_id,
                        intent_id=wanted.intent_id,
                    ),
                    event_log.head(transaction).last,
                )
            )
            if not is_same_past:
                if self.past == past:
                    self._restart()
                return EventBatch((), position)
            self.note_end(last, past)
            end = last.sequence
        is_full = len(found) == MAX_PAGE
        return EventBatch(found, found[-1].sequence if is_full else max(position, end))

    async def wait_beyond(
        self, position: int, most_s: float, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Return once there are events after `position`, or after `most_s`.

        Also return when the feed is closed, the log was replaced, or `is_over` is true for the client. A
        change of `is_over` needs a call of `wake`.
        """
        past = self.past
        self._waiting += 1
        self._is_wanted.set()
        try:
            async with asyncio.timeout(most_s):
                while (
                    not self.is_closed
                    and self.past == past
                    and (self._end is None or self._end.sequence <= position)
                    and not is_over()
                ):
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            self._left_s = asyncio.get_running_loop().time()

    def _rest_if_unwanted(self) -> None:
        idle_s = asyncio.get_running_loop().time() - self._left_s
        if not self._waiting and idle_s >= LINGER_SECONDS:
            self._is_wanted.clear()
            self._has_rested = True
            # Erased payloads must not be sent from memory.
            self._forget()

    async def _poll(self) -> None:
        """Read new events, and wake the waiting clients."""
        if self._end is None or self._has_rested:
            await self._skip_to_end()
        while self._end is not None:
            new = await self._database.read(partial(_behind, end=self._end, seen=self._seen))
            if new is None:
                self._restart()
                return
            if not new:
                return
            if any(event.type == EventType.AGENT_ERASED for event, _ in new):
                # The cache may contain a payload that is erased now.
                self._forget()
            self._recent += new
            surplus = max(0, len(self._recent) - MAX_RECENT)
            del self._recent[:surplus]
            self._begin += surplus
            self._end = new[-1][0].checkpoint
            self.wake()
            if len(new) < MAX_RECENT:
                return

    async def _skip_to_end(self) -> None:
        """Start at the end of the log, unless that is near; clients read older events from the database."""
        known = self._known
        is_same_past, last = await self._database.read(
            lambda transaction: (_contains(transaction, known), event_log.head(transaction).last)
        )
        self._has_rested = False
        if not is_same_past:
            self._restart()
        elif self._end is None or last.sequence - self._end.sequence > MAX_RECENT:
            self._end = last
            self._forget()
            self.wake()

    @property
    def _known(self) -> tuple[Checkpoint, ...]:
        """Places that the log contains unless it was replaced."""
        return self._seen, self._end or GENESIS

    def _forget(self) -> None:
        self._recent, self._begin = [], 0 if self._end is None else self._end.sequence

    def _restart(self) -> None:
        """Remove events that were replaced, and disconnect the clients that follow them."""
        _log.warning("the event log was replaced (a backup was restored): all event streams are closed")
        self._recent, self._end, self._seen = [], None, GENESIS
        self.past += 1
        self.wake()

    def wake(self) -> None:
        """Wake all waiting clients, so that they check for new events."""
        self._changed.set()
        self._changed = asyncio.Event()


def _contains(transaction: Transaction, places: Iterable[Checkpoint]) -> bool:
    return all(event_log.contains(transaction, place) for place in places)


def _behind(
    transaction: Transaction, *, end: Checkpoint, seen: Checkpoint
) -> list[tuple[Event, str | None]] | None:
    """Return the next events after `end`, at most MAX_RECENT; None if the log lacks one of both places."""
    is_same_past = event_log.contains(transaction, seen)
    return event_log.behind(transaction, end, limit=MAX_RECENT) if is_same_past else None
