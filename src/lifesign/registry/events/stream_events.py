"""Stream of the event log (`GET /api/v1/events/stream`).

Server-Sent Events: `id:` is the sequence. A client that reconnects with `Last-Event-ID` misses nothing and
gets nothing twice, from any server process.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from typing import Annotated

from pydantic import Field
from pydantic_core import to_json
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lifesign.domain.access.permissions import Permission, Principal, is_current, may_for_any_agent
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest, NotAllowed
from lifesign.domain.events.chain import Checkpoint, Event
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.errors import LifesignError
from lifesign.registry.errors import TooManyRequests, TooManyStreams
from lifesign.registry.events.credential_monitor import CredentialMonitor
from lifesign.registry.events.event_feed import EventFeed, EventFilter
from lifesign.registry.events.read_events import EventQueryFilter, agent_to_read, check_position
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.registry.request_handling.execution import (
    OperationDispatcher,
    authenticate,
    checked_query,
    headers_in,
)
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows

STREAM_PATH = "/api/v1/events/stream"
MAX_STREAMS = 1_000
"""Per server process."""
MAX_STREAMS_OF_KEY = 100
PING_SECONDS = 10.0
"""Interval of comments without events. Proxies close connections that are silent for a minute."""
SEND_SECONDS = 20.0
"""Time limit for a client to receive one event."""
END_SECONDS = 2.0
"""Time for a stream to end after the server gets a signal to end."""
WAIT_SECONDS = 10.0
"""Time after which a key with too many streams may try again."""
LAST_EVENT_ID = "last-event-id"
MAX_DIGITS = 20
"""Maximum of digits of a `Last-Event-ID`."""

_log = logging.getLogger("lifesign.registry")


class StreamQuery(EventQueryFilter):
    """The query of `GET /api/v1/events/stream`."""

    after: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    """Begin after this sequence; absent: with events from now on. `Last-Event-ID` takes precedence."""


class EventStreams:
    """Answers `GET /api/v1/events/stream`."""

    def __init__(self, dispatcher: OperationDispatcher, feed: EventFeed) -> None:
        self._dispatcher = dispatcher
        self.feed = feed
        self.open: Counter[bytes] = Counter()
        """Number of streams by the digest of the key."""
        self.standing = CredentialMonitor(dispatcher.database, _still_valid, feed.wake)

    @property
    def open_streams(self) -> int:
        """Number of clients that follow the events."""
        return self.open.total()

    async def answer(self, request: Request) -> Response:
        """Begin a stream."""
        try:
            digest = self._dispatcher.digest_of_caller(headers_in(request.scope))
            self._dispatcher.check_rate(digest)
            try:
                query, after = _parse_query(request)
                is_resumed = LAST_EVENT_ID in headers_in(request.scope)
            except LifesignError as fault:
                return error_response(await self._dispatcher.refusal(digest, fault, _check_may_read))

            def begin(transaction: Transaction) -> tuple[Principal, Checkpoint]:
                caller = authenticate(transaction, digest)
                _check_may_read(caller)
                last = event_log.head(transaction).last
                check_position(after or 0, last.sequence)
                if after or is_resumed:
                    _check_not_archived(after or 0, event_log.archived_sequence(transaction))
                return caller, last

            past = self.feed.past
            caller, last = await self._dispatcher.database.read(begin)
            self.feed.note_end(last, past)
            if caller.agent_id is not None:
                self._dispatcher.heard.note()
            wanted = EventFilter(
                types=frozenset(query.type),
                agent_id=agent_to_read(caller, query.agent_id),
                intent_id=query.intent_id,
            )
            self._check_room(digest)
        except LifesignError as error:
            return error_response(error)
        position = last.sequence if after is None else after
        return _CountingStream(self, self._events(position, past, wanted, digest), digest)

    def _check_room(self, digest: bytes) -> None:
        if self.open[digest] >= MAX_STREAMS_OF_KEY:
            raise TooManyRequests(WAIT_SECONDS)
        if self.open_streams >= MAX_STREAMS:
            raise TooManyStreams(MAX_STREAMS)

    async def _events(
        self, position: int, past: int, wanted: EventFilter, digest: bytes
    ) -> AsyncIterator[ServerSentEvent]:
        """Yield events after `position` until the key is no longer valid or the server stops.

        It also ends when a backup is restored: then `position`, which was read at the feed's `past`, has
        another meaning.
        """
        key = digest.hex()

        def is_over() -> bool:
            return not self.standing.is_good(key)

        yield _liveness_signal(position)
        spoken_at_s = time.monotonic()
        while not self.feed.is_closed and self.feed.past == past and not is_over():
            try:
                page = await self.feed.page(position, wanted)
            except StoreUnavailable:
                # The client returns, possibly to another server, and continues at its position.
                return
            for event in page.events:
                if is_over():
                    return
                yield _sent(event)
                spoken_at_s = time.monotonic()
            position = page.position
            silence_s = time.monotonic() - spoken_at_s
            if silence_s >= PING_SECONDS:
                yield _liveness_signal(position)
                spoken_at_s = time.monotonic()
            elif not page.events:
                await self.feed.wait_beyond(position, PING_SECONDS - silence_s, is_over)


class _ServerStops:
    """Notified of the server's shutdown, before the app is."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed

    def set(self) -> None:
        self._feed.close()


class _CountingStream(EventSourceResponse):
    """A stream that is counted while it is open. Ends without a message for a reader that reads nothing."""

    def __init__(self, streams: EventStreams, content: AsyncIterator[ServerSentEvent], digest: bytes) -> None:
        super().__init__(
            content,
            # We ping ourselves: between two events, never between an event and its place.
            ping=0,
            sep="\n",
            send_timeout=SEND_SECONDS,
            # The server only needs `set` of an event.
            shutdown_event=_ServerStops(streams.feed),  # type: ignore[arg-type]
            shutdown_grace_period=END_SECONDS,
        )
        self._open_streams = streams.open
        self._standing = streams.standing
        self._digest = digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._open_streams[self._digest] += 1
        try:
            with self._standing.following(self._digest.hex()):
                await super().__call__(scope, receive, send)
        except SendTimeoutError:
            _log.info("an event stream is closed: its client accepted no data for %g s", SEND_SECONDS)
        finally:
            self._open_streams[self._digest] -= 1
            if not self._open_streams[self._digest]:
                del self._open_streams[self._digest]


def _still_valid(transaction: Transaction, digests: Collection[str]) -> set[str]:
    """Return those keys, by their digests, that are valid now."""
    found = key_rows.of_digests(transaction, digests)
    return {key.digest.hex() for key in found if is_current(key, transaction.now_s)}


def _check_may_read(caller: Principal) -> None:
    if not may_for_any_agent(caller, Permission.READ_EVENTS):
        raise NotAllowed(caller.role, Permission.READ_EVENTS, None)


def _check_not_archived(after: int, archived_sequence: int) -> None:
    """Refuse a position whose following events are archived: the stream would miss them unnoticed."""
    if after < archived_sequence:
        expected = f"events up to {archived_sequence} are archived: read them there, and continue after them"
        raise InvalidRequest([Finding("archived", "/after", expected)])


def _parse_query(request: Request) -> tuple[StreamQuery, int | None]:
    """Return the parsed query, and the position after which to begin. Raises InvalidRequest."""
    query = checked_query(StreamQuery, request)
    assert isinstance(query, StreamQuery)  # noqa: S101 - just read as one
    last_event_id = headers_in(request.scope).get(LAST_EVENT_ID)
    return query, query.after if last_event_id is None else _sequence_in(last_event_id)


def _sequence_in(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:MAX_DIGITS]) <= MAX_NUMBER):
        expected = "Last-Event-ID: expected the id of an event of this stream"
        raise InvalidRequest([Finding("invalid_event_id", "", expected)])
    return int(text[:MAX_DIGITS])


def _sent(event: Event) -> ServerSentEvent:
    return ServerSentEvent(
        to_json(event.members()).decode(), event=event.type.value, id=str(event.sequence), sep="\n"
    )


def _liveness_signal(position: int) -> ServerSentEvent:
    """Return an event without content for this position: the client stores the position and emits nothing."""
    return ServerSentEvent(comment="nothing new", id=str(position), sep="\n")
