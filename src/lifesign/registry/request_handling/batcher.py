"""Batching of requests into transactions.

While one batch is processed, the next one collects requests. It waits a moment longer for callers that were
answered just now: the busier the server, the larger the batches and the lower the cost per request. A single
request does not wait.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable

MAX_WAITING = 20_000
"""Maximum of waiting requests; further ones are refused with a retry time."""

GATHER_SECONDS = 0.005
"""Maximum time between two groups on a server with several callers."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batcher(Generic[Asked, Answer]):
    """Collects requests while earlier ones are executed; then executes up to `most` in one transaction."""

    def __init__(
        self,
        database: Database,
        function: Callable[[Transaction, Sequence[Asked]], Sequence[Answer]],
        *,
        most: int,
    ) -> None:
        self._database = database
        self._function = function
        self._most = most
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._working: asyncio.Task[None] | None = None
        self._expected = 0
        """Number of waiting requests that complete a group."""
        self._is_gathered = asyncio.Event()

    async def ask(self, requests: Asked) -> Answer:
        """Return the function's answer to one request after the commit.

        Raise StoreUnavailable if the database is unreachable, or too many requests wait. A caller that
        disconnects undoes nothing.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable("too many requests are waiting for the database")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((requests, answer))
        if len(self._waiting) == self._expected:
            self._is_gathered.set()
        # One group at a time: two halves cost more than a whole, and the event log accepts one at a time.
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await answer

    async def close(self) -> None:
        """Return once all waiting requests are executed."""
        while self._working is not None:
            await asyncio.shield(self._working)

    async def _work(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._carry_out(group)
                if len(group) > 1:
                    await self._gather(len(group))
        finally:
            self._working = None

    async def _gather(self, answered: int) -> None:
        """Wait until as many callers wait besides the present ones as were just answered."""
        self._expected = min(self._most, len(self._waiting) + answered)
        if len(self._waiting) < self._expected:
            self._is_gathered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._is_gathered.wait()

    async def _carry_out(self, group: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        requests = [one for one, _ in group]
        try:
            answers = await self._database.write(lambda transaction: self._function(transaction, requests))
        except Exception as error:  # noqa: BLE001 - it is handed to all who wait, and the next group goes on
            refused = group
            if isinstance(error, StoreUnavailable):
                # Requests that arrived meanwhile have waited too: they do not wait for a second batch to
                # fail.
                refused, self._waiting = [*group, *self._waiting], []
            for _, waiting in refused:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), answer in zip(group, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)
