"""Decision cache: decisions about agents, with an expiry and an upper bound."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from lifesign.domain.observation.decision import Decision

MAX_DECISIONS: Final = 1000
"""Maximum number of agents whose decision is kept; the least recently used one is dropped."""


@dataclass(frozen=True, slots=True)
class _CachedDecision:
    decision: Decision
    stored_at_s: float
    expires_at_s: float


class DecisionCache:
    """Caches decisions by URL. Threads may share it. Times are seconds of a monotonic clock."""

    def __init__(self, *, max_decisions: int = MAX_DECISIONS) -> None:
        """`max_decisions`: 1 or more."""
        self._max_decisions = max_decisions
        self._cached: OrderedDict[str, _CachedDecision] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, url: str, now_s: float) -> Decision | None:
        """Return the decision about a URL; None if there is none, or if it has expired.

        The time since it was stored is subtracted from `retry_after_seconds`.
        """
        with self._lock:
            cached = self._cached.get(url)
            if cached is None:
                return None
            if now_s >= cached.expires_at_s:
                del self._cached[url]
                return None
            self._cached.move_to_end(url)
        wait_seconds = cached.decision.retry_after_seconds
        if wait_seconds is None:
            return cached.decision
        passed_seconds = int(now_s - cached.stored_at_s)
        return replace(cached.decision, retry_after_seconds=max(wait_seconds - passed_seconds, 0))

    def put(self, url: str, decision: Decision, now_s: float, lifetime_seconds: float) -> None:
        """Store a decision for this lifetime; nothing is stored if that is 0."""
        with self._lock:
            self._cached.pop(url, None)
            if lifetime_seconds <= 0:
                return
            self._cached[url] = _CachedDecision(decision, now_s, now_s + lifetime_seconds)
            if len(self._cached) > self._max_decisions:
                self._cached.popitem(last=False)
