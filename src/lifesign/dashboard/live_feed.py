"""Live feed for a thousand open pages (`GET /live`).

One loop reads new events and renders them once, and all open pages get these bytes, each at its own speed,
without queues. A page that falls too far behind, or reconnects too late, gets a notice and continues from
now. Without open pages, nothing is read.
"""

import asyncio
import logging
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Final

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lifesign.dashboard.errors import NotLoggedIn
from lifesign.dashboard.event_lines import NOTABLE, EventLine, line_of, lines_of
from lifesign.dashboard.fleet_facts import FleetCountCache, FleetCounts
from lifesign.dashboard.login_sessions import SESSION_COOKIE, digest_of_token, digests_still_good
from lifesign.dashboard.page_handler import PageHandler, caller_of
from lifesign.dashboard.responses import HEADERS
from lifesign.domain.events.chain import Event
from lifesign.registry.errors import TooManyStreams
from lifesign.registry.events.credential_monitor import CredentialMonitor
from lifesign.registry.events.event_feed import EventFeed, EventFilter
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log

PATH: Final = "/live"
MAX_WATCHERS: Final = 2_000
"""Per server process."""
MAX_WATCHERS_OF_ADDRESS: Final = 1_000
"""A proxy may stand for many visitors."""
MAX_CHUNKS: Final = 500
"""Number of chunks that are kept for slow pages."""
MAX_LINES_AT_ONCE: Final = 50
"""Maximum number of events per read. If there are more, the last ones are sent."""
MAX_CAUGHT_UP: Final = 100
"""Maximum number of events that a reconnected page gets."""
POLL_SECONDS: Final = 0.25
PING_SECONDS: Final = 15.0
SEND_SECONDS: Final = 20.0
"""Time after which a page that receives nothing is closed."""
TICK_SECONDS: Final = 1.0
COUNTS_SECONDS: Final = 3.0
"""Interval at which the counts of the fleet are sent."""
RETRY_SECONDS: Final = 2.0

_NOTABLE: Final = frozenset(NOTABLE)
_PING: Final = b":\n\n"
_HEADERS: Final = {**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
_log = logging.getLogger("lifesign.dashboard")


class LiveFeed:
    """Streams events and counts to open pages, at `/live`; one per server process."""

    def __init__(
        self, desk: PageHandler, feed: EventFeed, facts: FleetCountCache, stops: asyncio.Event
    ) -> None:
        self.desk = desk
        self._feed = feed
        self._stops = stops
        """Set when the server stops, if it reports that."""
        self._facts = facts
        self._chunks: list[bytes] = []
        self._first = 0
        """Number of the first chunk that is kept."""
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self.watchers: Counter[str] = Counter()
        """Number of open pages by client address."""
        self._standing = CredentialMonitor(desk.database, digests_still_good, self._wake)
        self.is_closed = False

    @property
    def end(self) -> int:
        """The number that the next chunk gets."""
        return self._first + len(self._chunks)

    async def answer(self, request: Request) -> Response:
        """Start the stream after the event that the browser got last."""

        async def begin() -> Response:
            self.desk.count(request)
            after = _position(request)
            address = caller_of(request)
            if self.watchers.total() >= MAX_WATCHERS or self.watchers[address] >= MAX_WATCHERS_OF_ADDRESS:
                raise TooManyStreams(MAX_WATCHERS)
            # Subscribe first, so that no event between this read and the stream is lost.
            number = self.end

            def read(transaction: Transaction) -> tuple[list[EventLine], int]:
                last = event_log.last_sequence(transaction)
                first = max(last - MAX_CAUGHT_UP, event_log.archived_sequence(transaction))
                if after is None or not first <= after <= last:
                    return [], last
                missed = event_log.after(transaction, after, limit=MAX_CAUGHT_UP)
                return lines_of(transaction, missed), last

            try:
                _, (missed, last) = await self.desk.context(
                    request, lambda context: read(context.transaction)
                )
            except NotLoggedIn:
                # A stream is not redirected: the script learns from the status that the session has ended.
                return Response(status_code=403, headers=HEADERS)
            begun = (
                b"".join(map(_line, missed)) if missed else _event_chunk("missed", str(last).encode(), last)
            )
            token = self.desk.token_in(request, SESSION_COOKIE)
            session = "" if self.desk.is_open else digest_of_token(token)
            return _Watching(self, begun, number, address, session)

        return await self.desk.guarded(request, begin)

    async def run(self) -> None:
        """Send events until cancelled."""
        beside = [asyncio.create_task(self._tick()), asyncio.create_task(self._count())]
        try:
            while True:
                await self._wanted.wait()
                try:
                    await self._follow()
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_SECONDS)
                except Exception:  # noqa: BLE001 - it is logged, and those who watch go on watching
                    _log.exception("the dashboard's live feed failed; it continues with the next event")
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            for task in beside:
                task.cancel()
            self.close()

    def close(self) -> None:
        """Disconnect all watchers."""
        self.is_closed = True
        self._wake()

    def after(self, number: int) -> bytes | None:
        """Return the chunks from this number on; None if they are no longer kept."""
        return None if number < self._first else b"".join(self._chunks[number - self._first :])

    async def wait(self) -> None:
        """Return once there is another chunk."""
        await self._changed.wait()

    def lets(self, session: str) -> bool:
        """Return whether the visitor of a session may continue; empty: reading is open to everyone."""
        return not self.is_closed and (not session or self._standing.is_good(session))

    @contextmanager
    def watched(self, address: str, session: str) -> Iterator[None]:
        """Count an open page until the block ends."""
        self.watchers[address] += 1
        self._wanted.set()
        try:
            with self._standing.following(session) if session else nullcontext():
                yield
        finally:
            self.watchers[address] -= 1
            if not self.watchers[address]:
                del self.watchers[address]
            if not self.watchers:
                self._wanted.clear()

    async def _follow(self) -> None:
        """Send events while there are open pages and the log is the same one."""
        past = self._feed.past
        position = await self._feed.begin()
        while self._wanted.is_set() and self._feed.past == past and not self._feed.is_closed:
            await self._feed.wait_beyond(position, PING_SECONDS)
            page = await self._feed.page(position, EventFilter())
            if page.events:
                self._send_chunks(map(_line, await self._lines(page.events[-MAX_LINES_AT_ONCE:])))
            position = page.position
            await asyncio.sleep(POLL_SECONDS)

    async def _lines(self, events: Sequence[Event]) -> list[EventLine]:
        """Return the texts of events, with the names of keys unless the database is unreachable."""
        try:
            return await self.desk.database.read(lambda transaction: lines_of(transaction, events))
        except StoreUnavailable:
            return [line_of(event, {}) for event in events]

    async def _tick(self) -> None:
        """Send a keep-alive, and disconnect all watchers as soon as the server ends."""
        pinged_at_s = time.monotonic()
        while not self.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stops.wait()
            if self._stops.is_set() or _is_server_ending() or self._feed.is_closed:
                self.close()
                return
            if (now_s := time.monotonic()) - pinged_at_s >= PING_SECONDS:
                pinged_at_s = now_s
                self._send_chunks([_PING])

    async def _count(self) -> None:
        """Send the counts of the fleet after a change."""
        sent: tuple[FleetCounts, int] | None = None
        while True:
            await asyncio.sleep(COUNTS_SECONDS)
            if not self.watchers:
                continue
            try:
                counts = await self._facts.agents.get(), await self._facts.waiting.get()
            except StoreUnavailable:
                continue
            except Exception:  # noqa: BLE001 - it is logged, and counted again
                _log.exception("the agents could not be counted for open pages of the dashboard")
                continue
            if counts != sent:
                sent = counts
                self._send_chunks([_counts(*counts)])

    def _send_chunks(self, chunks: Iterable[bytes]) -> None:
        self._chunks.append(b"".join(chunks))
        surplus = max(0, len(self._chunks) - MAX_CHUNKS)
        del self._chunks[:surplus]
        self._first += surplus
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Watching(Response):
    """One open page."""

    def __init__(self, feed: LiveFeed, begun: bytes, number: int, address: str, session: str) -> None:
        self.status_code = 200
        self.init_headers(_HEADERS)
        self._feed = feed
        self._begun = begun
        self._number = number
        self._address = address
        self._session = session

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send chunks until the client disconnects."""
        disconnected = asyncio.create_task(_until_gone(receive))
        try:
            with self._feed.watched(self._address, self._session):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send(send, self._begun or _PING)
                await self._send_chunks(send, disconnected)
        except TimeoutError:
            _log.info(
                "the live feed of a page is closed: its browser accepted no data for %g s", SEND_SECONDS
            )
        finally:
            disconnected.cancel()

    async def _send_chunks(self, send: Send, gone: "asyncio.Task[None]") -> None:
        feed = self._feed
        while feed.lets(self._session) and not gone.done():
            sent = feed.after(self._number)
            if sent is None:
                # The browser reconnects by itself, and gets the missing events.
                break
            self._number = feed.end
            if sent:
                await self._send(send, sent)
            else:
                await feed.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": data, "more_body": True})


def _is_server_ending() -> bool:
    """Return whether uvicorn is stopping, if the server does not report it: it first waits for open pages."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _position(request: Request) -> int | None:
    """Return the event after which to continue; None if the browser sends none, or an invalid one."""
    position = request.headers.get("last-event-id", request.query_params.get("after", ""))
    return int(position) if position.isascii() and position.isdecimal() and len(position) <= 18 else None


def _line(line: EventLine) -> bytes:
    members = {**line.members(), "is_notable": line.type in _NOTABLE}
    return _event_chunk("line", to_json(members), line.sequence)


def _counts(counts: FleetCounts, waiting: int) -> bytes:
    members = {"total": counts.total, "waiting": waiting}
    members |= {f"status {status}": count for status, count in counts.by_status.items()}
    members |= {f"health {health}": count for health, count in counts.by_health.items()}
    return _event_chunk("counts", to_json(members))


def _event_chunk(name: str, data: bytes, sequence: int | None = None) -> bytes:
    place = b"" if sequence is None else b"id: %d\n" % sequence
    return b"%sevent: %s\ndata: %s\n\n" % (place, name.encode(), data)
