"""Rules of other origins' robots.txt, for destinations of cards and redirects.

The rules of a target's own origin are remembered with the target (`robots_of_target`). Any number of targets
may lead to another origin: its rules are cached for all of them, in this process, for a day. A gateway on the
prober's side may have answered: rules that disallow a request are read again soon, and a file without rules
must be read twice before it replaces rules.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from yarl import URL

from lifesign.domain.observation.results import ResultClass
from lifesign.domain.probing.cadence import ROBOTS_EVERY_S, Cadence
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.robots_rules import RobotsRules, may_fetch, needs_second_reading, rules_in

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
    in_row: int
    """Number of readings in a row with these rules; 0 if the last one found none in place of them."""
    size: int
    """Approximate size of the rules, in bytes."""


class OtherOrigins:
    """Caches robots.txt rules of origins other than the target's, for all probes of a process."""

    def __init__(self, cadence: Cadence, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._cadence = cadence
        self._max_kept_bytes = max_kept_bytes
        self._known: OrderedDict[URL, _KnownOrigin] = OrderedDict()
        self._kept = 0
        self._being_read: dict[URL, asyncio.Event] = {}

    async def rules(self, url: URL, at_s: float, read: Read) -> RobotsRules | str:
        """Return the robots.txt rules of a URL's origin; or why the origin must not be requested.

        They are empty if they cannot be read. `at_s` is the time now, in seconds since the epoch. Concurrent
        probes wait for one reading.
        """
        origin = url.origin()
        reading = self._being_read.get(origin)
        if reading is not None:
            await reading.wait()
        if (known := self._fresh(origin, url.raw_path_qs, at_s)) is not None:
            return known.robots
        is_read = self._being_read[origin] = asyncio.Event()
        try:
            fetched = await read(origin)
        finally:
            is_read.set()
            if self._being_read.get(origin) is is_read:
                del self._being_read[origin]
        if fetched.result is ResultClass.RATE_LIMITED or fetched.is_put_off:
            return fetched.reason
        known = _after_reading(self._known.get(origin), rules_in(fetched), at_s)
        # If the origin did not answer, it is requested again at the next opportunity.
        if fetched.is_reached:
            self._keep(origin, known)
        return known.robots

    def _fresh(self, origin: URL, path: str, at_s: float) -> _KnownOrigin | None:
        known = self._known.get(origin)
        if known is None:
            return None
        is_permitted = known.in_row and may_fetch(known.robots, path)
        fresh_s = ROBOTS_EVERY_S if is_permitted else self._cadence.robots_wait_s(known.in_row)
        # Probes that began before the reading use it too: each of theirs would count as a further one.
        if not -self._cadence.interval_s <= at_s - known.read_at_s < fresh_s:
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


def _after_reading(known: _KnownOrigin | None, robots: RobotsRules | None, at_s: float) -> _KnownOrigin:
    """Return what is known of an origin after a reading; `robots` is None if it contained no answer."""
    if known is not None and (robots is None or robots == known.robots):
        return replace(known, read_at_s=at_s, in_row=known.in_row + 1)
    robots = robots or RobotsRules()
    if known is not None and needs_second_reading(robots, known.in_row):
        return replace(known, read_at_s=at_s, in_row=0)
    return _KnownOrigin(robots, at_s, 1, _size(robots))


def _size(robots: RobotsRules) -> int:
    pieces = (piece for rule in robots.rules for piece in rule.pieces)
    # They are ASCII: one byte a character.
    texts = sum(_PIECE_BYTES + len(piece) for piece in pieces)
    return _ORIGIN_BYTES + _RULE_BYTES * len(robots.rules) + texts
