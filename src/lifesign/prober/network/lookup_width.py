"""Number of names that are looked up at once."""

from typing import Final

MAX_LOOKUPS_AT_ONCE: Final = 1_000
FIRST_LOOKUPS_AT_ONCE: Final = 100
MIN_LOOKUPS_AT_ONCE: Final = 20
LOOKUPS_PER_SAMPLE: Final = 50
"""Number of lookups after which the limit of concurrent lookups is adjusted."""


class LookupWidth:
    """Limit of concurrent lookups of names, which adapts to what the name servers can bear.

    Some name servers answer fifty queries at once and drop the others. Names without a server get lost too:
    a stranger may have listed thousands of them, and the lookups of others must not wait for them.
    """

    def __init__(self) -> None:
        self.at_once = min(FIRST_LOOKUPS_AT_ONCE, MAX_LOOKUPS_AT_ONCE)
        self.is_overloaded = False
        """Whether the name servers drop queries that they could answer, as far as known."""
        self._seen = self._lost = 0

    def note(self, *, is_lost: bool) -> bool:
        """Record whether the answer to a lookup was lost, and raise the limit if few were.

        Return whether so many were lost that the name servers may be overloaded.
        """
        self._seen += 1
        self._lost += is_lost
        if self._seen < LOOKUPS_PER_SAMPLE:
            return False
        if self._lost * 10 < self._seen:
            self.is_overloaded = False
            self.at_once = min(self.at_once * 2, MAX_LOOKUPS_AT_ONCE)
        is_suspect = self._lost * 3 > self._seen
        self._seen = self._lost = 0
        return is_suspect

    def note_check(self, *, is_overloaded: bool) -> None:
        """Record whether the name servers are overloaded, and halve the limit if they are."""
        self.is_overloaded = is_overloaded
        if is_overloaded:
            self.at_once = max(self.at_once // 2, MIN_LOOKUPS_AT_ONCE)
