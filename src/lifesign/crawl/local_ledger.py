"""Ledger on a local database, without a server.

A crawl without a registry has its own database, with a registry's schema, and runs the same functions in this
process. `lifesign serve` shows its agents with their verdicts.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeVar

from lifesign.crawl.local_registry import LocalRegistry
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.credentials import places_of
from lifesign.domain.models.observation_batch import MIN_INTERVAL_SECONDS, ObservationAnswer, ObservationBatch
from lifesign.domain.models.shards import ShardClaimRequest, ShardGrant
from lifesign.domain.targets.target import StatedKind
from lifesign.errors import LifesignError
from lifesign.prober.network.clock import SYSTEM_CLOCK, Clock
from lifesign.prober.registry_exchange.ledger import (
    NO_WITNESS_REPORT,
    Granted,
    LedgerUnreachable,
    ReportAnswer,
    ShardBatch,
    ShardClaim,
    TargetEntry,
    TargetPage,
    WitnessReport,
)
from lifesign.prober.registry_exchange.registry_ledger import ages_s, interfaces_of, news_of
from lifesign.registry.probing.accept_observations import accept_observations
from lifesign.registry.probing.claim_shards import LeavingWorker, claim_shards, leave_shards
from lifesign.registry.request_handling.operation import TransactionFunction
from lifesign.registry.targets.feed_targets import remembered
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.probing import probe_results
from lifesign.storage.targets import target_rows
from lifesign.storage.targets.target_rows import FeedRow

MAX_SHARD_TARGETS: Final = 2_000_001
"""One shard may contain all targets, if one host serves them."""

T = TypeVar("T")


class LocalLedger:
    """Source of a worker's targets, and destination of its results, in a database that it opens itself."""

    living_workers: ClassVar[frozenset[str] | None] = None
    """Not known: all workers are processes of one crawl."""

    def __init__(self, database: Database, clock: Clock = SYSTEM_CLOCK) -> None:
        self._registry = LocalRegistry(database, Role.PROBER)
        self._clock = clock
        self._asked: list[tuple[int, int | None]] = []
        """Shards to read, each with the version after which to read."""
        self._reading: asyncio.Task[list[TargetPage]] | None = None
        """Task that reads them at the next turn of the event loop."""

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        standing: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        """Report that this worker is alive, and claim its share of the shards. Raises LedgerUnreachable."""
        requested_at_s = self._clock.boot_s()
        requested = ShardClaimRequest(
            worker=worker,
            ttl_seconds=ttl_s,
            held=dict(held),
            companions=companions,
            reached_classes=None if standing.reached_classes is None else list(standing.reached_classes),
            wanted_witnesses=dict(standing.wanted),
            interval_s=max(MIN_INTERVAL_SECONDS, standing.interval_s),
            sent_at=self._now(),
            credentials=places_of(standing.credentials),
        )
        grant = await self._do(claim_shards, body=requested)
        assert isinstance(grant, ShardGrant)  # noqa: S101 - it is what the function answers
        return Granted(
            claims=[
                ShardClaim(
                    shard=granted.shard,
                    fencing_token=granted.fencing_token,
                    expires_at_s=requested_at_s + ttl_s,
                )
                for granted in grant.shards
            ],
            news=news_of(grant.silent_classes, grant.confirmed_classes, grant.witnesses),
            reason=grant.reason,
            missing_credentials=[each.other for each in grant.missing_credentials],
            working_credentials=[each.other for each in grant.working_credentials],
        )

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        """Return the targets of a shard; with a version, the later changes. Raises LedgerUnreachable.

        All requests of one turn of the event loop are read in one transaction, which costs more than the rows
        of one shard.
        """
        if self._reading is None:
            self._asked = []
            self._reading = asyncio.create_task(self._read_shards())
        place, reading = len(self._asked), self._reading
        self._asked.append((shard, after_version))
        pages = await asyncio.shield(reading)
        return pages[place]

    async def _read_shards(self) -> list[TargetPage]:
        requested, self._reading = self._asked, None
        return await self._read(lambda transaction: _pages(transaction, requested))

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        """Return which of these shards have changed since the given version of each.

        Raises LedgerUnreachable.
        """
        if not versions:
            return []
        oldest = min(versions.values())
        newest = await self._read(lambda transaction: target_rows.newest_versions(transaction, oldest))
        return [shard for shard, version in versions.items() if newest.get(shard, 0) > version]

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        """Store results of several shards. Raises LedgerUnreachable."""
        reports = [report for batch in batches for report in batch.reports]
        if not reports:
            return ReportAnswer()
        # This process created them: nothing is left to check.
        body = ObservationBatch.model_construct(
            observations=[report.observation for report in reports],
            memories=[report.memory for report in reports],
            interfaces=interfaces_of(batches),
            shard=None,
            fencing_token=None,
            tokens={batch.claim.shard: batch.claim.fencing_token for batch in batches},
            ages_s=ages_s(batches, self._clock),
            numbers=[number for batch in batches for number in batch.numbers],
            interval_s=max(MIN_INTERVAL_SECONDS, interval_s),
            sent_at=self._now(),
        )
        answer = await self._do(accept_observations, body=body)
        assert isinstance(answer, ObservationAnswer)  # noqa: S101 - it is what the function answers
        return ReportAnswer(lost=answer.lost, news=news_of(answer.silent_classes, answer.confirmed_classes))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_s(), UTC)

    async def unprobed(self, since_s: float) -> int:
        """Return the number of targets without a probe since this time. Raises LedgerUnreachable."""
        return await self._read(lambda transaction: probe_results.count_unprobed(transaction, since_s))

    async def leave(self, worker: str) -> None:
        """Release all shards of a worker. Raises LedgerUnreachable."""
        await self._do(leave_shards, query=LeavingWorker(worker=worker))

    async def _do(self, function: TransactionFunction, *, body: Any = None, query: Any = None) -> Any:
        """Run one function, and return its result. Raises LedgerUnreachable."""
        try:
            return await self._registry.do(function, body=body, query=query)
        except LifesignError as error:
            raise LedgerUnreachable(str(error)) from error

    async def _read(self, function: Callable[[Transaction], T]) -> T:
        try:
            return await self._registry.read(function)
        except LifesignError as error:
            raise LedgerUnreachable(str(error)) from error


def _pages(transaction: Transaction, requested: Sequence[tuple[int, int | None]]) -> list[TargetPage]:
    """Return the targets of these shards, or the changes since a version."""
    until = target_rows.last_version(transaction)
    whole = target_rows.feed_shards(
        transaction, sorted({shard for shard, after in requested if after is None})
    )
    pages = []
    for shard, after in requested:
        if after is None:
            rows = whole[shard]
        else:
            limit = MAX_SHARD_TARGETS
            rows = target_rows.feed(transaction, shard, after=after, until=until, place=None, limit=limit)
        pages.append(
            TargetPage(
                entries=[_entry(row) for row in rows if not row.is_gone],
                gone=[row.subject_id for row in rows if row.is_gone],
                version=until,
            )
        )
    return pages


def _entry(row: FeedRow) -> TargetEntry:
    return TargetEntry(
        subject_id=row.subject_id,
        url=row.url,
        memory=remembered(row),
        recheck_at_s=row.recheck_at_s,
        version=row.place.version,
        confirmed_at_s=row.confirmed_at_s,
        thresholds_s=row.thresholds_s,
        entered_at_s=row.entered_at_s,
        kind=None if row.kind is None else StatedKind(row.kind),
    )
