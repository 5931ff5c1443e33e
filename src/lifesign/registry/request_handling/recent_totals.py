"""Totals of agents that matched a filter recently.

Counting ten thousand agents takes ten times as long as finding and writing a page of a hundred, and clients
that look for a free agent repeat the same query. A total is used for five seconds. After that, one caller
counts again while the others still get the old total.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from math import inf

from lifesign.storage.agents.search import AgentFilter

EXACT_UP_TO = 1_000
"""Up to this number, agents are counted for every request, so that no page has more items than its total."""
CACHE_SECONDS = 5.0
USABLE_SECONDS = 10.0
"""Maximum age of a total that is used while one caller counts it again. Above it, each caller counts."""
MAX_TOTALS = 256
"""Maximum of cached totals, one per filter; the oldest one is dropped."""


class RecentTotals:
    """Cached numbers of agents that match filters; one per server process, for all its threads."""

    def __init__(self) -> None:
        self._counted: OrderedDict[AgentFilter, tuple[int, float]] = OrderedDict()
        self._being_counted: set[AgentFilter] = set()
        self._lock = threading.Lock()

    def total(self, wanted: AgentFilter, now_s: float, count: Callable[[], int]) -> int:
        """Return the number of matches: a cached total, or the result of `count`."""
        with self._lock:
            total, at_s = self._counted.get(wanted, (0, -inf))
            may_be_s = USABLE_SECONDS if wanted in self._being_counted else CACHE_SECONDS
            # A clock that was set back makes nothing good for longer.
            if 0 <= now_s - at_s < may_be_s:
                return total
            self._being_counted.add(wanted)
        try:
            total = count()
            self._keep(wanted, total, now_s)
        finally:
            with self._lock:
                self._being_counted.discard(wanted)
        return total

    def _keep(self, wanted: AgentFilter, total: int, at_s: float) -> None:
        with self._lock:
            self._counted.pop(wanted, None)
            if total > EXACT_UP_TO:
                self._counted[wanted] = (total, at_s)
            if len(self._counted) > MAX_TOTALS:
                self._counted.popitem(last=False)
