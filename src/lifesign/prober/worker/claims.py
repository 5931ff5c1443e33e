"""Claims of a worker: it acquires shards and renews them.

A worker regularly reports that it is alive, which shards it holds, and which network classes it reaches. Its
own deadline counts from the time of its request: however long the answer takes, no other worker can have the
shard sooner. Each answer contains the ledger's time and the witnesses that it knows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from lifesign.domain.common.backoff import Backoff
from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.tasks.lease import TTL_SECONDS
from lifesign.prober.network.clock import Clock, LedgerClock
from lifesign.prober.registry_exchange.ledger import (
    Granted,
    Ledger,
    LedgerUnreachable,
    Outage,
    WitnessNews,
    WitnessReport,
    outage_text,
)
from lifesign.prober.worker.shards import OwnedShards, Shard

SHARD_TTL_SECONDS: Final = float(TTL_SECONDS)
"""Lifetime of a shard lease; the shards of a killed worker move after this time."""
RENEW_RATIO: Final = 0.6
"""Share of that time after which leases are renewed (protocol 6)."""
RENEW_JITTER_RATIO: Final = 0.05
FIRST_RETRY_SECONDS: Final = 0.5
"""Wait after shards were won or lost; it doubles until the distribution is stable."""
JOIN_SECONDS: Final = 10.0
"""Time for which the share of workers that start at the same time stays reserved before they join."""
CLAIM_GAP_SECONDS: Final = 5.0
"""Shortest time between a claim and another one because a worker joined or ended."""
MAX_CLAIMS_PER_SECOND: Final = 20.0
"""Maximum number of such claims of all workers together."""
REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "reaches_less": "another prober reaches all network classes that this one reaches, and more",
        "no_progress": "this prober reported too few results for two intervals, and another one reports",
        "too_many_grants": "the key of this prober was granted too many shards lately; more follow with time",
    }
)
"""Reasons of a registry to withhold shards from a worker, for people."""

_log = logging.getLogger("lifesign.prober")


def takeover_s(ttl_s: float) -> float:
    """Return after how many seconds at most others hold the shards of a worker that was killed.

    Its claims end `ttl_s` after their renewal, and the others claim again when they renew theirs.
    """
    return ttl_s * (1 + RENEW_RATIO * (1 + RENEW_JITTER_RATIO))


class ClaimRenewer:
    """Claims shards for a worker, and renews their leases, until it is cancelled."""

    def __init__(
        self,
        ledger: Ledger,
        holdings: OwnedShards,
        worker: str,
        *,
        ttl_s: float,
        lost: Callable[[Sequence[Shard]], None],
        held: Callable[[Sequence[Shard]], None],
        clock: LedgerClock,
        max_offset_s: float,
        witness_report: Callable[[], Awaitable[WitnessReport]],
        news: Callable[[WitnessNews], None],
        other_credentials: Callable[[Sequence[OtherCredential], Sequence[OtherCredential]], None],
        chance: Callable[[], float],
        companions: int = 0,
    ) -> None:
        """`witness_report` returns the facts about witnesses, `news` receives the ledger's reply.

        `other_credentials` receives the credentials that other workers have and this one lacks, and those
        that worked later than its own.

        A machine whose calendar differs from the ledger's by more than `max_offset_s` is reported.
        """
        self.has_asked = asyncio.Event()
        """Set once the ledger has answered."""
        self.outage: Outage | None = None
        """Present if the ledger does not answer."""
        self._ledger = ledger
        self._owned_shards = holdings
        self._worker = worker
        self._ttl_s = ttl_s
        self._lost = lost
        self._held = held
        self._ledger_clock = clock
        self._clock: Clock = clock.clock
        self._max_offset_s = max_offset_s
        self._is_clock_wrong = False
        self._witness_report = witness_report
        self._news = news
        self._other_credentials = other_credentials
        self._reason: str | None = None
        """Last reason of the ledger to withhold all shards."""
        self._chance = chance
        self._away = Backoff(chance)
        self._settling_s = FIRST_RETRY_SECONDS
        self._hurry = asyncio.Event()
        self._companions = companions
        self._joined_by_s = 0.0
        self._workers: frozenset[str] | None = None
        self._asked_at_s = 0.0
        """When the last claim began, in seconds of the event loop."""

    def hurry(self) -> None:
        """Send the next claim at once, because other shards may be free now."""
        self._hurry.set()

    def note_workers(self, workers: frozenset[str] | None) -> None:
        """Send the next claim soon if a worker joined or ended: this changes the share of each worker.

        Otherwise its shards would have no worker until the next renewal. Call it again and again: shortly
        after a claim, a change is noted later. `workers`: holders of all living workers; None: not known.
        """
        if workers is None or workers == self._workers:
            return
        if self._workers is not None:
            gap_s = max(CLAIM_GAP_SECONDS, len(workers) / MAX_CLAIMS_PER_SECOND)
            since_s = asyncio.get_running_loop().time() - self._asked_at_s
            if self.outage is not None or since_s < gap_s:
                return
            self.hurry()
        self._workers = workers

    async def run(self) -> None:
        """Claim shards and renew their leases until cancelled."""
        self._joined_by_s = asyncio.get_running_loop().time() + JOIN_SECONDS
        while True:
            try:
                await self._ask()
                wait_s = min(self._settling_s, self._renew_s())
                self._settling_s *= 2
                self._away.over()
                self.outage = None
            except LedgerUnreachable as error:
                if self.outage is None:
                    self.outage = Outage(asyncio.get_running_loop().time(), str(error))
                    what = outage_text(error)
                    _log.warning(
                        "%s: this worker cannot claim or renew shards, which are shares of the targets (%s)",
                        what,
                        error,
                    )
                wait_s = self._away.wait_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()
            self._hurry.clear()

    def _renew_s(self) -> float:
        jitter = RENEW_JITTER_RATIO * (2 * self._chance() - 1)
        return self._ttl_s * RENEW_RATIO * (1 + jitter)

    async def _ask(self) -> None:
        self._asked_at_s = asyncio.get_running_loop().time()
        before = self._owned_shards.tokens()
        companions = self._awaited()
        witness_report = await self._witness_report()
        requested_at_s = self._clock.boot_s()
        granted = await self._ledger.claim(self._worker, self._ttl_s, before, companions, witness_report)
        self._adopt_time(granted, requested_at_s)
        self._report_reason(granted.reason)
        self._news(granted.news)
        self._other_credentials(granted.missing_credentials, granted.working_credentials)
        held, lost = self._owned_shards.take(granted.claims)
        if self._owned_shards.tokens() != before:
            self._settling_s = FIRST_RETRY_SECONDS
            _log.info("this worker got %d shards (shares of the targets) and lost %d", len(held), len(lost))
        self._lost(lost)
        self._held(held)
        self.has_asked.set()

    def _adopt_time(self, granted: Granted, requested_at_s: float) -> None:
        """Keep the ledger's time, and report a calendar of this machine that is wrong."""
        if granted.now_s is None:
            return
        self._ledger_clock.note(granted.now_s, requested_at_s, self._clock.boot_s())
        offset_s = self._ledger_clock.offset_s
        is_wrong = abs(offset_s) > self._max_offset_s
        if is_wrong and not self._is_clock_wrong:
            side = "ahead of" if offset_s > 0 else "behind"
            _log.error("this machine's clock is %.0f s %s the registry's: set it", abs(offset_s), side)
        elif self._is_clock_wrong and not is_wrong:
            _log.warning("this machine's clock agrees with the registry's again")
        self._is_clock_wrong = is_wrong

    def _report_reason(self, reason: str | None) -> None:
        """Report once that the ledger took all shards, and why."""
        if reason is not None and reason != self._reason:
            _log.error(
                "the registry gives this prober no targets: %s (%s)",
                REASONS.get(reason, "the ledger says"),
                reason,
            )
        elif reason is None and self._reason is not None:
            _log.warning("the registry gives this prober targets again")
        self._reason = reason

    def _awaited(self) -> int:
        """Return the number of companions that may still join."""
        return self._companions if asyncio.get_running_loop().time() < self._joined_by_s else 0
