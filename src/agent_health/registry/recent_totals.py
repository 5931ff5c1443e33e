"""How many agents matched a moment ago?

To count ten thousand takes ten times as long as to find and to write a page of a hundred, and those who
look for somebody free ask the same again and again. What has been counted is good for five seconds.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from agent_health.storage.agent_search import AgentFilter

EXACT_UP_TO = 1_000
"""No more than these are counted whenever they are asked for: no page ever holds more than its total."""
GOOD_FOR_SECONDS = 5.0
MAX_TOTALS = 256
"""That are remembered, each of another filter; the one that was counted first gives way."""


class RecentTotals:
    """What one server process has counted; its threads may ask at once."""

    def __init__(self) -> None:
        self._counted: OrderedDict[AgentFilter, tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def total(self, wanted: AgentFilter, now_s: float, count: Callable[[], int]) -> int:
        """Return how many match: what was counted a moment ago, or what `count` says now."""
        with self._lock:
            total, at_s = self._counted.get(wanted, (0, now_s))
        # A clock that was set back makes nothing good for longer.
        if total and 0 <= now_s - at_s < GOOD_FOR_SECONDS:
            return total
        total = count()
        with self._lock:
            self._counted.pop(wanted, None)
            if total > EXACT_UP_TO:
                self._counted[wanted] = (total, now_s)
            if len(self._counted) > MAX_TOTALS:
                self._counted.popitem(last=False)
        return total
