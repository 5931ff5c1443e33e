"""Who of those that follow what happens may still do so?

Whoever follows was let in once, and stays for hours. One look a second asks for all of them together
whether their keys or sessions are still good, so that a thousand cost as little as one; before each
delivery everybody is asked what that has found. While nobody follows, nothing is looked at.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from lifesign.storage.engine.database import Database
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable

CHECK_SECONDS: Final = 1.0
"""Between two looks: who is not to follow any more is out about a second later."""
MAX_UNKNOWN_SECONDS: Final = 5.0
"""How long what was found holds while the database is away; then all are let go, and may come back."""

_log = logging.getLogger("lifesign.registry")


class StillValid(Protocol):
    """Says which of some, named by the digests of their keys or tokens, may go on."""

    def __call__(self, transaction: Transaction, digests: Collection[str]) -> Collection[str]:
        """Return them."""
        ...


class CredentialMonitor:
    """What is known of all who follow, in one server process."""

    def __init__(self, database: Database, still_valid: StillValid, wake: Callable[[], None]) -> None:
        """`wake` lets all look around who wait for something to be told."""
        self._database = database
        self._still_valid = still_valid
        self._wake = wake
        self._following: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._known_at_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def following(self, who: str) -> Iterator[None]:
        """Keep an eye on somebody who was let in just now, while it lasts."""
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
        """Whether somebody may go on, as far as is known."""
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
                _log.exception("it cannot be seen who may still follow")
                self._wake()
                continue
            self._known_at_s = begun_at_s
            ended = asked.difference(good)
            # Whoever left and came back meanwhile was let in anew.
            self._ended |= ended.intersection(self._following)
            if ended:
                self._wake()
