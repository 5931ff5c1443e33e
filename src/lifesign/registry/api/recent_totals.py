"""How many agents matched a moment ago?

To count ten thousand takes ten times as long as to find and to write a page of a hundred, and those who
look for somebody free ask the same again and again. What has been counted is good for five seconds. Then one
who asks counts anew, and nobody else waits for that: they are told the old total once more.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from math import inf

from lifesign.storage.agents.search import AgentFilter

EXACT_UP_TO = 1_000
"""No more than these are counted whenever they are asked for: no page ever holds more than its total."""
CACHE_SECONDS = 5.0
USABLE_SECONDS = 10.0
"""How old a total may be that is told while somebody counts it anew; beyond, everybody counts."""
MAX_TOTALS = 256
"""That are remembered, each of another filter; the one that was counted first gives way."""


class RecentTotals:
    """What one server process has counted; its threads may ask at once."""

    def __init__(self) -> None:
        self._counted: OrderedDict[AgentFilter, tuple[int, float]] = OrderedDict()
        self._being_counted: set[AgentFilter] = set()
        self._lock = threading.Lock()

    def total(self, wanted: AgentFilter, now_s: float, count: Callable[[], int]) -> int:
        """Return how many match: what was counted a moment ago, or what `count` says now."""
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
