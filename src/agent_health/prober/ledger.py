"""Where do targets come from, and where do results go?

A ledger hands out shards for a while and takes results for them. One stands on a database in the same
process, another on a registry far away; the worker cannot tell which.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent_health.light_value import light_value
from agent_health.observation import Observation, ResultClass
from agent_health.probe_memory import ProbeMemory


@light_value(kw_only=True)
class ShardClaim:
    """A shard that this worker owns for a while."""

    shard: int
    fencing_token: int
    expires_at_s: float
    """On this machine's monotonic clock, counted from the moment at which the claim was asked for."""


@light_value(kw_only=True)
class TargetEntry:
    """One target of a shard, as the ledger knows it."""

    subject_id: str
    """`tgt_…`, or the agent's id where a registered agent is probed by its card's URL."""
    url: str
    """As `read_target` spells it."""
    memory: ProbeMemory
    recheck_at_s: float | None = None
    """When somebody asked for a look now, in seconds since the epoch; None if nobody did."""
    version: int = 0
    """Rises with every change that is not the prober's own report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPage:
    """What a shard holds: all of it, or what changed since a version."""

    entries: Sequence[TargetEntry]
    gone: Sequence[str] = ()
    """Ids that are no targets any more: left their directory, or opted out."""
    version: int = 0
    """Ask for what comes after this one the next time."""


@light_value(kw_only=True)
class ProbeReport:
    """What one probe of one target leaves: what was seen, and what to remember."""

    subject_id: str
    observation: Observation
    memory: ProbeMemory
    requests: int = 1
    """How many it took: its host is left alone for so much longer. Not reported."""

    @property
    def result(self) -> ResultClass:
        """What it came to, beside a card that was read before and not now."""
        has_card = self.memory.card_read_at_s is not None
        return self.observation.result_beside(ResultClass.OK if has_card else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBatch:
    """Results of one shard, in the order in which they were made: all of them count, or none."""

    claim: ShardClaim
    reports: Sequence[ProbeReport]


@dataclass(frozen=True, slots=True)
class Outage:
    """That a ledger is asked in vain."""

    since_s: float
    """On the clock of the event loop."""
    why: str
    """What it said first."""


class LedgerAway(Exception):
    """The ledger cannot be reached or cannot store: what was handed over may be handed over again."""


class Ledger(Protocol):
    """What a worker takes work from and reports to."""

    async def claim(
        self, worker: str, ttl_s: float, held: Mapping[int, int], companions: int = 0
    ) -> list[ShardClaim]:
        """Say that this worker lives; renew what it holds (shard: token), give up surplus, take its share.

        So many companions begin at the same time: the shares of those that are still to come are left free.
        Returns all that it holds from now on; a held shard that is missing is lost or surplus. LedgerAway.
        """
        ...

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        """Return a shard's targets, or with a version what changed after it. LedgerAway."""
        ...

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        """Return which of these shards have changed after the version known of each. LedgerAway.

        One question for all. Version 0 is that of a shard of which nothing is known: it is returned if it
        holds anything.
        """
        ...

    async def report(self, batches: Sequence[ShardBatch]) -> Collection[int]:
        """Hand over results of several shards, each batch whole or not at all. LedgerAway.

        Returns the shards whose claim is lost: nothing of theirs was taken, and nothing ever will be.
        Handing over the same batch twice changes nothing: an observation counts once.
        """
        ...

    async def unprobed(self, since_s: float) -> int:
        """Return how many targets, of all shards, were not probed since then (epoch). LedgerAway."""
        ...

    async def say_ill(self, worker: str, lasting_s: float, why: str) -> None:
        """Say that this prober does not trust its own eyes for so long. LedgerAway."""
        ...

    async def say_well(self, worker: str) -> None:
        """Take that back. LedgerAway."""
        ...

    async def leave(self, worker: str) -> None:
        """Give all shards back, so that others take them at once. LedgerAway."""
        ...
