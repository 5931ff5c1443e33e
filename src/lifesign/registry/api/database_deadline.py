"""How long is a caller kept waiting for the database?

One that is frozen, or behind a network that swallows everything, refuses nothing: a transaction would wait
for as long as a statement may take, and whoever comes next for its connection besides. What runs beside
the requests, such as sweeps and archives, has that time; callers are told sooner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Any, TypeVar

from lifesign.errors import LifesignError
from lifesign.storage.engine.database import Database
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable

T = TypeVar("T")
Run = Callable[[Callable[[Transaction], T]], Awaitable[T]]

_log = logging.getLogger("lifesign.registry")


class DeadlineDatabase:
    """A database that gives an answer within `most_s`, if only that there is none yet.

    A function that has begun by then goes on: a long one would never come to its end otherwise. There are no
    more of these than the database has connections; whoever still waits for one is given up.
    """

    def __init__(self, database: Database, most_s: float) -> None:
        self.url = database.url
        self.writes = database.writes
        self._database = database
        self._most_s = most_s
        self._going_on: set[asyncio.Future[Any]] = set()
        """Deeds whose callers were told. The event loop alone would not keep them."""

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function that changes nothing, in one snapshot. StoreUnavailable after `most_s`."""
        return await self._in_time(self._database.read, function)

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function and return once it is committed; whatever it raises undoes it.

        StoreUnavailable after `most_s`, or if the database is away, full or locked for too long.
        """
        try:
            return await self._in_time(self._database.write, function)
        except StoreUnavailable as failure:
            self.writes.failed(failure)
            raise

    def check_files(self) -> None:
        """Raise DatabaseReplaced if its file, or one of its companions, was removed or replaced."""
        self._database.check_files()

    async def close(self) -> None:
        """Let all connections go; functions that wait are finished first."""
        await self._database.close()

    async def _in_time(self, run: Run[T], function: Callable[[Transaction], T]) -> T:
        # Taken by the function as it begins, in whatever thread, or by its caller who goes: by one of them.
        turn = Lock()
        has_begun = False

        def begin(transaction: Transaction) -> T:
            nonlocal has_begun
            # Once begun, it may be tried again.
            if not (has_begun or turn.acquire(blocking=False)):
                raise StoreUnavailable("whoever asked was told that nothing was changed")
            has_begun = True
            return function(transaction)

        running: asyncio.Future[T] = asyncio.ensure_future(run(begin))
        try:
            await asyncio.wait({running}, timeout=self._most_s)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if running.done():
            return running.result()
        self._going_on.add(running)
        running.add_done_callback(self._forget)
        consequence = "what was asked for may be done all the same"
        if turn.acquire(blocking=False):
            running.cancel()
            consequence = "nothing was changed"
        raise StoreUnavailable(f"the database has not answered within {self._most_s:g} s: {consequence}")

    def _forget(self, ended: asyncio.Future[Any]) -> None:
        """Take note of the end of a function whose caller was told before."""
        self._going_on.discard(ended)
        failure = None if ended.cancelled() else ended.exception()
        if not isinstance(failure, LifesignError | None):
            _log.error("a request failed after it was answered", exc_info=failure)
