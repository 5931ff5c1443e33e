"""Exponential back-off with jitter for an unreachable peer.

The wait grows with each failure, and is random for each client: clients that lost a peer together must not
return together.
"""

from collections.abc import Callable
from typing import Final

FIRST_WAIT_SECONDS: Final = 1.0
MAX_WAIT_SECONDS: Final = 30.0
"""Maximum wait until a client notices that the peer is reachable again."""


class Backoff:
    """Waits between attempts, which double with each failure in a row and are partly random."""

    def __init__(
        self,
        chance: Callable[[], float],
        *,
        first_wait_s: float = FIRST_WAIT_SECONDS,
        max_wait_s: float = MAX_WAIT_SECONDS,
    ) -> None:
        self.tries = 0
        self._first_wait_s = first_wait_s
        self._chance = chance
        self._max_wait_s = max_wait_s

    def wait_s(self) -> float:
        """Count a failure; return how long to wait: a random time of at least half the present maximum."""
        wait_s = min(self._max_wait_s, self._first_wait_s * 2.0 ** min(self.tries, 10))
        self.tries += 1
        return wait_s * (0.5 + 0.5 * self._chance())

    def over(self) -> None:
        """Start with the shortest wait again, because an attempt succeeded."""
        self.tries = 0
