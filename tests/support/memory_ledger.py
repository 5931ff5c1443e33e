"""A ledger that keeps everything in memory, for tests of workers.

It behaves as the registry's: shards are leased with fencing tokens that rise with every grant, no worker
keeps more than a fair share, a renewal never resurrects, a stale token refuses its whole batch, and a result
counts only if its token and its number are higher than those of the last one.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation
from lifesign.domain.targets.target import (
    SHARDS,
    host_of,
    shard_of,
    target_id,
)
from lifesign.prober.network.clock import SYSTEM_CLOCK, Clock
from lifesign.prober.registry_exchange.ledger import (
    NO_NEWS,
    NO_WITNESS_REPORT,
    Granted,
    LedgerUnreachable,
    ProbeReport,
    ReportAnswer,
    ShardBatch,
    ShardClaim,
    TargetEntry,
    TargetPage,
    WitnessNews,
    WitnessReport,
)


@dataclass
class _Lease:
    token: int = 0
    worker: str | None = None
    expires_at_s: float = 0.0


@dataclass
class Grant:
    """A grant: worker, shard, time and token."""

    shard: int
    worker: str
    token: int
    at_s: float


@dataclass(frozen=True)
class Received:
    """One result as it came in."""

    observation: Observation
    at_s: float
    """When it was measured by the ledger's calendar: its receipt minus its age."""
    age_s: float
    token: int
    number: int


def batch_of(claim: ShardClaim, reports: Sequence[ProbeReport], *, first: int = 1) -> ShardBatch:
    """Return a batch of results that were made just now, numbered from `first`."""
    made_at_s = [SYSTEM_CLOCK.boot_s()] * len(reports)
    numbers = [*range(first, first + len(reports))]
    return ShardBatch(claim=claim, reports=reports, numbers=numbers, made_at_s=made_at_s)


@dataclass
class MemoryLedger:
    """A ledger that many workers share; with `is_unreachable` none can reach it."""

    clock: Clock
    is_unreachable: bool = False
    entries: dict[str, TargetEntry] = field(default_factory=dict)
    leases: dict[int, _Lease] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    seen: dict[str, list[Observation]] = field(default_factory=dict)
    """Results of each target, each once."""
    refused: list[ShardBatch] = field(default_factory=list)
    """Batches whose token was stale."""
    calls: list[int] = field(default_factory=list)
    """How many results each report had."""
    received: dict[str, list[Received]] = field(default_factory=dict)
    """The same, with what the ledger knows of it."""
    standings: list[tuple[str, WitnessReport]] = field(default_factory=list)
    """The workers' reports with their claims."""
    news: WitnessNews = NO_NEWS
    """Told with each answer."""
    reason: str | None = None
    """Why workers get no shards, if they get none."""
    wall_s: Callable[[], float] | None = None
    """The ledger's own calendar; None: that of the workers' machine, which is not sent."""
    indigestible: set[str] = field(default_factory=set)
    """Targets whose results cannot be taken, by a defect."""
    on_report: Callable[[ShardBatch], None] | None = None
    _version: int = 0
    _versions: dict[int, int] = field(default_factory=dict)
    _shards: dict[int, set[str]] = field(default_factory=dict)
    _gone: dict[str, tuple[int, int]] = field(default_factory=dict)

    # Actions of a test

    def add(self, *urls: str, memory: ProbeMemory | None = None) -> None:
        """List targets."""
        for url in urls:
            self._put(TargetEntry(subject_id=target_id(url), url=url, memory=memory or ProbeMemory()))

    def remove(self, url: str) -> None:
        """Let a target leave."""
        shard = self._raise_version(url)
        del self.entries[target_id(url)]
        self._shards[shard].remove(target_id(url))
        self._gone[target_id(url)] = (shard, self._version)

    def request_recheck(self, url: str) -> None:
        """Ask for a look now."""
        self._put(replace(self.entries[target_id(url)], recheck_at_s=self.now_s()))

    def confirm(self, url: str) -> None:
        """Confirm that a target may be down."""
        self._put(replace(self.entries[target_id(url)], confirmed_at_s=self.now_s()))

    def now_s(self) -> float:
        """Return the ledger's time."""
        return (self.wall_s or self.clock.wall_s)()

    def observations(self, url: str) -> list[Observation]:
        """Return the reported observations of a target."""
        return self.seen.get(target_id(url), [])

    def memory(self, url: str) -> ProbeMemory:
        """Return the memory of a target."""
        return self.entries[target_id(url)].memory

    def held_by(self, worker: str) -> set[int]:
        """Return which shards a worker holds now."""
        now_s = self.clock.boot_s()
        return {
            n for n, lease in self.leases.items() if lease.worker == worker and lease.expires_at_s > now_s
        }

    # Requests of a worker

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        standing: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        self._reach()
        now_s = self.clock.boot_s()
        self.workers = {name: until_s for name, until_s in self.workers.items() if until_s > now_s}
        self.workers[worker] = now_s + ttl_s
        self.standings.append((worker, standing))
        share = 0 if self.reason else math.ceil(SHARDS / max(len(self.workers), companions + 1))
        kept: list[int] = []
        for number in sorted(self.held_by(worker)):
            lease = self.leases[number]
            if held.get(number) == lease.token and len(kept) < share:
                lease.expires_at_s = now_s + ttl_s
                kept.append(number)
            else:
                # Surplus, or the answer that granted it was lost.
                lease.worker = None
        for number in range(SHARDS):
            if len(kept) >= share:
                break
            lease = self.leases.setdefault(number, _Lease())
            if lease.worker is None or lease.expires_at_s <= now_s:
                lease.token, lease.worker, lease.expires_at_s = lease.token + 1, worker, now_s + ttl_s
                self.grants.append(Grant(number, worker, lease.token, now_s))
                kept.append(number)
        claims = [
            ShardClaim(shard=n, fencing_token=self.leases[n].token, expires_at_s=now_s + ttl_s) for n in kept
        ]
        wall_time_s = None if self.wall_s is None else self.wall_s()
        return Granted(claims=claims, news=self.news, now_s=wall_time_s, reason=self.reason)

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        self._reach()
        after = after_version or 0
        lie_there = [self.entries[subject_id] for subject_id in self._shards.get(shard, ())]
        gone = [i for i, (where, version) in self._gone.items() if where == shard and version > after]
        return TargetPage(
            entries=[entry for entry in lie_there if entry.version > after],
            gone=gone if after_version else (),
            version=self._versions.get(shard, 0),
        )

    @property
    def living_workers(self) -> frozenset[str]:
        now_s = self.clock.boot_s()
        return frozenset(name for name, until_s in self.workers.items() if until_s > now_s)

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        self._reach()
        return [shard for shard, version in self._versions.items() if version > versions.get(shard, version)]

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        self._reach()
        assert interval_s > 0
        for batch in batches:
            assert len(batch.reports) == len(batch.numbers) == len(batch.made_at_s)
            if self.on_report is not None:
                self.on_report(batch)
        if any(report.subject_id in self.indigestible for batch in batches for report in batch.reports):
            raise ValueError("this cannot be taken")
        self.calls.append(sum(len(batch.reports) for batch in batches))
        lost = [batch for batch in batches if not self._is_held(batch)]
        self.refused += lost
        for batch in batches:
            if batch in lost:
                continue
            token = batch.claim.fencing_token
            for report, number, made_at_s in zip(batch.reports, batch.numbers, batch.made_at_s, strict=True):
                age_s = self.clock.boot_s() - made_at_s
                at_s = self.now_s() - age_s
                self._take(report, Received(report.observation, at_s, age_s, token, number))
        return ReportAnswer(lost=[batch.claim.shard for batch in lost], news=self.news)

    async def unprobed(self, since_s: float) -> int:
        self._reach()
        return sum((entry.memory.probed_at_s or 0.0) < since_s for entry in self.entries.values())

    async def leave(self, worker: str) -> None:
        self._reach()
        self.workers.pop(worker, None)
        for lease in self.leases.values():
            if lease.worker == worker:
                lease.worker = None

    def _reach(self) -> None:
        if self.is_unreachable:
            raise LedgerUnreachable("no answer")

    def _raise_version(self, url: str) -> int:
        self._version += 1
        shard = shard_of(host_of(url))
        self._versions[shard] = self._version
        return shard

    def _put(self, entry: TargetEntry) -> None:
        shard = self._raise_version(entry.url)
        self._shards.setdefault(shard, set()).add(entry.subject_id)
        self.entries[entry.subject_id] = replace(entry, version=self._version)

    def _is_held(self, batch: ShardBatch) -> bool:
        lease = self.leases.get(batch.claim.shard, _Lease())
        return (
            lease.worker is not None
            and lease.token == batch.claim.fencing_token
            and lease.expires_at_s > self.clock.boot_s()
        )

    def _take(self, report: ProbeReport, received: Received) -> None:
        subject_id, memory = report.subject_id, report.memory
        entry = self.entries.get(subject_id)
        before = self.received.setdefault(subject_id, [])
        order = received.token, received.number
        if entry is None or any(order <= (one.token, one.number) for one in before[-1:]):
            return
        before.append(received)
        self.seen.setdefault(subject_id, []).append(report.observation)
        asked = entry.recheck_at_s
        is_done = asked is not None and memory.probed_at_s is not None and asked <= memory.probed_at_s
        self.entries[subject_id] = replace(entry, memory=memory, recheck_at_s=None if is_done else asked)
