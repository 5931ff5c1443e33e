"""Pool of open connections, some of which wait for another request to the same address."""

import asyncio
from typing import Final

from lifesign.prober.network.connection import HttpConnection, Place

WAIT_SECONDS: Final = 2.0
"""Minimum time that a connection waits for the next request of its probe; up to twice as long."""
MAX_AGE_SECONDS: Final = 60.0
"""Age from which a connection takes no further request: the name of its host may lead elsewhere now."""
MAX_WAITING: Final = 200
"""Maximum number of idle connections; the oldest one is closed first."""
CLOSE_SECONDS: Final = 1.0
"""Time limit for closing connections."""


class ConnectionPool:
    """Keeps open connections for later requests to the same host."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: set[HttpConnection] = set()
        self._closing: dict[HttpConnection, asyncio.Future[None]] = {}
        """Connections that wait for their peer to close, each with its end."""
        self._waiting: dict[HttpConnection, None] = {}
        """Connections that wait, the oldest first."""
        self._waiting_at: dict[Place, list[HttpConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, line: HttpConnection) -> None:
        """Add a new connection, so that `close` ends it too."""
        self._lines.add(line)

    def waiting_at(self, place: Place) -> HttpConnection | None:
        """Return an open connection for this host and port; None if there is none.

        The peer may have ended it.
        """
        while lines := self._waiting_at.get(place):
            line = lines[-1]
            self._wait_no_more(line)
            if _is_usable(line):
                return line
            self.cut(line)
        return None

    def give_back(self, line: HttpConnection) -> None:
        """Keep a connection after its answer was read, unless it is too old or the peer ends it."""
        line.expire_at(None)
        line.rest()
        now_s = self._loop.time()
        if not _is_usable(line) or now_s - line.made_at_s >= MAX_AGE_SECONDS:
            self._close(line)
            return
        line.waits_since_s = now_s
        self._waiting[line] = None
        self._waiting_at.setdefault(line.place, []).append(line)
        if len(self._waiting) > MAX_WAITING:
            self._close_oldest()
        if self._timer is None:
            self._timer = self._loop.call_later(WAIT_SECONDS, self._sweep)

    def cut(self, line: HttpConnection) -> None:
        """End a connection at once."""
        line.expire_at(None)
        line.abort()
        self._lines.discard(line)

    async def close(self) -> None:
        """End all connections."""
        if self._timer is not None:
            self._timer.cancel()
        ends = [line.closed for line in self._lines if line.is_connected()]
        ends += self._closing.values()
        for line in [*self._lines, *self._closing]:
            self.cut(line)
        self._waiting.clear()
        self._waiting_at.clear()
        left = [end for end in ends if end is not None]
        if left:
            await asyncio.wait(left, timeout=CLOSE_SECONDS)

    def _close(self, line: HttpConnection) -> None:
        """Close a connection; the peer of a TLS connection has a moment to close it too."""
        end = line.closed
        line.close()
        self._lines.discard(line)
        if end is not None:
            self._closing[line] = end
            end.add_done_callback(lambda _: self._forget(line))

    def _forget(self, line: HttpConnection) -> None:
        end = self._closing.pop(line)
        # The failure of an unused connection is not reported; asyncio would log it.
        if not end.cancelled():
            end.exception()

    def _close_oldest(self) -> None:
        line = next(iter(self._waiting))
        self._wait_no_more(line)
        self._close(line)

    def _wait_no_more(self, line: HttpConnection) -> None:
        del self._waiting[line]
        lines = self._waiting_at[line.place]
        lines.remove(line)
        if not lines:
            del self._waiting_at[line.place]

    def _sweep(self) -> None:
        """Close connections that were idle for too long."""
        self._timer = None
        last_s = self._loop.time() - WAIT_SECONDS
        while self._waiting and next(iter(self._waiting)).waits_since_s <= last_s:
            self._close_oldest()
        if self._waiting:
            self._timer = self._loop.call_later(WAIT_SECONDS, self._sweep)


def _is_usable(line: HttpConnection) -> bool:
    return line.is_connected() and not line.should_close
