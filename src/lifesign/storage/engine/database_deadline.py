"""Deadline for database work on behalf of a caller.

A frozen database, or one behind a network that drops packets, refuses nothing: a transaction would wait for
the whole statement timeout, and so would the next user of its connection. Background work such as sweeps and
archives has that time; callers get an earlier answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Any, TypeVar

from lifesign.errors import LifesignError
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable

T = TypeVar("T")
Run = Callable[[Callable[[Transaction], T]], Awaitable[T]]

_log = logging.getLogger("lifesign.registry")


class DeadlineDatabase:
    """A database that answers within `most_s`, if necessary with an error.

    A function that has begun by then continues: a long one would otherwise never finish. At most as many of
    them run as the database has connections; a function that still waits for a connection is cancelled.
    """

    def __init__(self, database: Database, most_s: float) -> None:
        self.url = database.url
        self.writes = database.writes
        self._database = database
        self._most_s = most_s
        self._going_on: set[asyncio.Future[Any]] = set()
        """Running transactions whose callers already got an answer. The event loop itself would not keep
        them.
        """

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function that changes nothing, in one snapshot. StoreUnavailable after `most_s`."""
        return await self._in_time(self._database.read, function, if_begun="nothing was changed")

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function and return after the commit; any exception rolls it back.

        Raise StoreUnavailable after `most_s`, or if the database is unreachable, full or locked for too long.
        """
        try:
            return await self._in_time(
                self._database.write, function, if_begun="the change may be made nevertheless"
            )
        except StoreUnavailable as failure:
            self.writes.failed(failure)
            raise

    async def check_files(self) -> None:
        """Raise DatabaseReplaced if a file of the database was removed, replaced or truncated."""
        await self._database.check_files()

    async def close(self) -> None:
        """Close all connections after the functions that wait have run."""
        await self._database.close()

    async def _in_time(self, run: Run[T], function: Callable[[Transaction], T], *, if_begun: str) -> T:
        # Taken either by the function when it begins, in any thread, or by its caller when it gives up.
        turn = Lock()
        has_begun = False

        def begin(transaction: Transaction) -> T:
            nonlocal has_begun
            # Once begun, it may be tried again.
            if not (has_begun or turn.acquire(blocking=False)):
                raise StoreUnavailable("the caller already got the answer that nothing was changed")
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
        consequence = if_begun
        if turn.acquire(blocking=False):
            running.cancel()
            consequence = "nothing was changed"
        raise StoreUnavailable(f"the database has not answered within {self._most_s:g} s: {consequence}")

    def _forget(self, ended: asyncio.Future[Any]) -> None:
        """Handle the end of a function whose caller was answered before."""
        self._going_on.discard(ended)
        failure = None if ended.cancelled() else ended.exception()
        if not isinstance(failure, LifesignError | None):
            _log.error(
                "a database operation failed after its request had been answered with an error",
                exc_info=failure,
            )
