"""Size of the next call, so that a narrow link or a slow peer can take it in time.

After a failed call the next one is smaller: if the size was the reason, the same call would fail again.
Successful calls become larger again, but not so large that they fail.
"""

from typing import Final

QUICK_SECONDS: Final = 1.0
"""Duration of a full call below which the next one may be twice as large."""
SLOW_SECONDS: Final = 2.5
"""Duration of a full call from which the next one is no larger. A try of a call ends after 5 s."""


class BatchSize:
    """Number of items in the next call."""

    def __init__(self, largest: int, *, smallest: int = 1) -> None:
        self.most = largest
        """Maximum number of items in the next call."""
        self._largest = largest
        self._smallest = smallest

    def failed(self, count: int) -> None:
        """Record that a call with so many items failed. Calls may run at the same time."""
        self.most = max(self._smallest, min(self.most, count // 2))

    def succeeded(self, count: int, took_s: float) -> None:
        """Record that a call with so many items succeeded."""
        if count < self.most or took_s >= SLOW_SECONDS:
            return
        more = self.most if took_s < QUICK_SECONDS else 1 + self.most // 10
        self.most = min(self._largest, self.most + more)
