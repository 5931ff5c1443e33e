"""Repeated check of the credentials of connected event clients.

A client is authenticated once and may stay for hours. One query a second checks the keys and sessions of all
clients together, so that a thousand cost as little as one. The result is consulted before each delivery.
Without clients there is no query.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable

CHECK_SECONDS: Final = 1.0
"""Interval of checks: a client with a revoked credential is disconnected about a second later."""
MAX_UNKNOWN_SECONDS: Final = 5.0
"""Time for which a result is valid while the database is unreachable. Then all clients are disconnected."""

_log = logging.getLogger("lifesign.registry")


class StillValid(Protocol):
    """Function that returns which of these digests of keys or tokens are still valid."""

    def __call__(self, transaction: Transaction, digests: Collection[str]) -> Collection[str]:
        """Return the digests that are still valid."""
        ...


class CredentialMonitor:
    """Checks the validity of the credentials of all clients of one server process."""

    def __init__(self, database: Database, still_valid: StillValid, wake: Callable[[], None]) -> None:
        """`wake` wakes all clients that wait for events."""
        self._database = database
        self._still_valid = still_valid
        self._wake = wake
        self._following: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._known_at_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def following(self, who: str) -> Iterator[None]:
        """Check the credential with the digest `who` regularly until the block ends."""
        self._following[who] += 1
        if self._looking is None:
            self._known_at_s = time.monotonic()
            self._looking = asyncio.create_task(self._recheck())
        try:
            yield
        finally:
            self._following[who] -= 1
            if not self._following[who]:
                del self._following[who]
                self._ended.discard(who)
            if not self._following and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def is_good(self, who: str) -> bool:
        """Return whether the credential with the digest `who` is valid, as far as known."""
        is_known = time.monotonic() - self._known_at_s <= MAX_UNKNOWN_SECONDS
        return is_known and who not in self._ended

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            asked = frozenset(self._following)
            begun_at_s = time.monotonic()
            try:
                good = await self._database.read(partial(self._still_valid, digests=asked))
            except StoreUnavailable:
                if begun_at_s - self._known_at_s > MAX_UNKNOWN_SECONDS:
                    self._wake()
                continue
            except Exception:  # noqa: BLE001 - it is logged, and those who follow are let go in time
                _log.exception("could not check whether the keys of open event streams are still valid")
                self._wake()
                continue
            self._known_at_s = begun_at_s
            ended = asked.difference(good)
            # A client that reconnected meanwhile was authenticated again.
            self._ended |= ended.intersection(self._following)
            if ended:
                self._wake()
