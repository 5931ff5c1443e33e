"""Ledger whose results are also written to a file of observations."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from lifesign.prober.evidence.results_writer import ResultsWriter
from lifesign.prober.registry_exchange.ledger import (
    NO_WITNESS_REPORT,
    Granted,
    Ledger,
    ReportAnswer,
    ShardBatch,
    TargetPage,
    WitnessReport,
)


class FiledLedger:
    """A ledger that also writes the results to a file, once another ledger has accepted them."""

    def __init__(self, ledger: Ledger, writer: ResultsWriter) -> None:
        self._ledger = ledger
        self._writer = writer

    @property
    def living_workers(self) -> frozenset[str] | None:
        """See `Ledger.living_workers`."""
        return self._ledger.living_workers

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        standing: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        """See `Ledger.claim`."""
        return await self._ledger.claim(worker, ttl_s, held, companions, standing)

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        """See `Ledger.targets`."""
        return await self._ledger.targets(shard, after_version)

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        """See `Ledger.changed`."""
        return await self._ledger.changed(versions)

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        """See `Ledger.report`. A file that cannot be written changes no answer."""
        answer = await self._ledger.report(batches, interval_s)
        taken = [
            report.observation
            for batch in batches
            if batch.claim.shard not in answer.lost
            for report in batch.reports
        ]
        await asyncio.to_thread(self._writer.add, taken)
        return answer

    async def unprobed(self, since_s: float) -> int:
        """See `Ledger.unprobed`."""
        return await self._ledger.unprobed(since_s)

    async def leave(self, worker: str) -> None:
        """See `Ledger.leave`."""
        await self._ledger.leave(worker)
