"""How are shards won, and kept?

A worker says again and again that it lives, and what it holds. Its own deadline counts from when it asked:
whatever the answer's journey takes, nobody else can have the shard sooner.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from agent_health.away import Away
from agent_health.lease import TTL_SECONDS
from agent_health.prober.ledger import Ledger, LedgerAway, Outage, ShardClaim
from agent_health.prober.shards import Holdings, Shard
from agent_health.shard_share import fair_share

SHARD_TTL_SECONDS: Final = float(TTL_SECONDS)
"""How long a shard is ours without a word; so much later do the shards of a killed worker move."""
RENEW_RATIO: Final = 0.6
"""Of that time, after which we ask anew (protocol 6)."""
RENEW_JITTER_RATIO: Final = 0.05
FIRST_ASK_SECONDS: Final = 0.5
"""Who has just won or lost some is not settled: it asks again after this, and twice as long, and so on."""
JOIN_SECONDS: Final = 10.0
"""How long nobody takes the share of those who begin at the same time, and have not joined yet."""

_log = logging.getLogger("agent_health.prober")


class ClaimKeeper:
    """Asks for shards, for ever."""

    def __init__(
        self,
        ledger: Ledger,
        holdings: Holdings,
        worker: str,
        *,
        ttl_s: float,
        lost: Callable[[Sequence[Shard]], None],
        held: Callable[[Sequence[Shard]], None],
        chance: Callable[[], float],
        companions: int = 0,
    ) -> None:
        self.has_asked = asyncio.Event()
        """Set once the ledger has answered."""
        self.outage: Outage | None = None
        """That it does not answer."""
        self._ledger = ledger
        self._holdings = holdings
        self._worker = worker
        self._ttl_s = ttl_s
        self._lost = lost
        self._held = held
        self._chance = chance
        self._away = Away(chance)
        self._settling_s = FIRST_ASK_SECONDS
        self._hurry = asyncio.Event()
        self._companions = companions
        self._joined_by_s = 0.0

    def hurry(self) -> None:
        """Ask at once: somebody else's shards may be free by now."""
        self._hurry.set()

    async def run(self) -> None:
        """Win and keep shards until cancelled."""
        self._joined_by_s = asyncio.get_running_loop().time() + JOIN_SECONDS
        while True:
            try:
                await self._ask()
                wait_s = min(self._settling_s, self._renew_s())
                self._settling_s *= 2
                self._away.over()
                self.outage = None
            except LedgerAway as error:
                if self.outage is None:
                    self.outage = Outage(asyncio.get_running_loop().time(), str(error))
                    _log.warning("the ledger is away: no shard can be claimed or renewed (%s)", error)
                wait_s = self._away.wait_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()
            self._hurry.clear()

    def _renew_s(self) -> float:
        jitter = RENEW_JITTER_RATIO * (2 * self._chance() - 1)
        return self._ttl_s * RENEW_RATIO * (1 + jitter)

    async def _ask(self) -> None:
        before = self._holdings.tokens()
        companions = self._awaited()
        claims = await self._ledger.claim(self._worker, self._ttl_s, before, companions)
        held, lost = self._holdings.take(_leave_room(claims, companions))
        if self._holdings.tokens() != before:
            self._settling_s = FIRST_ASK_SECONDS
            _log.info("%d shards are ours, %d are not any more", len(held), len(lost))
        self._lost(lost)
        self._held(held)
        self.has_asked.set()

    def _awaited(self) -> int:
        """Return how many companions may still be about to join."""
        return self._companions if asyncio.get_running_loop().time() < self._joined_by_s else 0


def _leave_room(claims: Sequence[ShardClaim], companions: int) -> Sequence[ShardClaim]:
    """Leave to companions what an older registry grants for all that: the highest numbers."""
    return (
        sorted(claims, key=lambda claim: claim.shard)[: fair_share(companions + 1)] if companions else claims
    )
