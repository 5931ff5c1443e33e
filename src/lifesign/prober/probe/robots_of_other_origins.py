"""Rules of other origins' robots.txt, for destinations of cards and redirects.

The rules of a target's own origin are remembered with the target (`robots_of_target`). Any number of targets
may lead to another origin: its rules are cached for all of them, in this process, for a day.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from yarl import URL

from lifesign.domain.observation.results import ResultClass
from lifesign.domain.probing.cadence import ROBOTS_EVERY_S
from lifesign.prober.network.fetch import Fetched
from lifesign.prober.probe.robots_rules import RobotsRules, rules_in

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Approximate maximum of all origins with their rules; the least recently used are dropped and read again."""
_ORIGIN_BYTES: Final = 1_000
_RULE_BYTES: Final = 200
_PIECE_BYTES: Final = 64
"""Size of each piece in CPython, beside its characters."""

Read = Callable[[URL], Awaitable[Fetched]]
"""Asks an origin for its robots.txt."""


@dataclass(frozen=True, slots=True)
class _KnownOrigin:
    robots: RobotsRules
    read_at_s: float
    """Time of the last request, in seconds since the epoch."""
    size: int
    """Approximate size of the rules, in bytes."""


class OtherOrigins:
    """Caches robots.txt rules of origins other than the target's, for all probes of a process."""

    def __init__(self, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._known: OrderedDict[URL, _KnownOrigin] = OrderedDict()
        self._kept = 0
        self._being_read: dict[URL, asyncio.Event] = {}

    async def rules(self, origin: URL, at_s: float, read: Read) -> RobotsRules | str:
        """Return an origin's robots.txt rules, empty if they cannot be read; or why it must not be requested.

        `at_s` is the time now, in seconds since the epoch. Concurrent probes wait for one reading.
        """
        reading = self._being_read.get(origin)
        if reading is not None:
            await reading.wait()
        if (known := self._fresh(origin, at_s)) is not None:
            return known.robots
        is_read = self._being_read[origin] = asyncio.Event()
        try:
            fetched = await read(origin)
        finally:
            is_read.set()
            if self._being_read.get(origin) is is_read:
                del self._being_read[origin]
        if fetched.result is ResultClass.RATE_LIMITED:
            return fetched.reason
        before = self._known.get(origin)
        robots = rules_in(fetched) or (RobotsRules() if before is None else before.robots)
        # If the origin did not answer, it is requested again at the next opportunity.
        if fetched.is_reached:
            self._keep(origin, _KnownOrigin(robots, at_s, _size(robots)))
        return robots

    def _fresh(self, origin: URL, at_s: float) -> _KnownOrigin | None:
        known = self._known.get(origin)
        if known is None or not 0 <= at_s - known.read_at_s < ROBOTS_EVERY_S:
            return None
        self._known.move_to_end(origin)
        return known

    def _keep(self, origin: URL, known: _KnownOrigin) -> None:
        before = self._known.pop(origin, None)
        self._kept += known.size - (0 if before is None else before.size)
        self._known[origin] = known
        while self._kept > self._max_kept_bytes and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._kept -= forgotten.size


def _size(robots: RobotsRules) -> int:
    pieces = (piece for rule in robots.rules for piece in rule.pieces)
    # They are ASCII: one byte a character.
    texts = sum(_PIECE_BYTES + len(piece) for piece in pieces)
    return _ORIGIN_BYTES + _RULE_BYTES * len(robots.rules) + texts
