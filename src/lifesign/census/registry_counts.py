"""Counts for a census from a registry's API, and their period."""

from collections import Counter
from typing import TYPE_CHECKING

from lifesign.census.document import Census
from lifesign.census.report import CensusFacts, HostCount, RunFacts, compute_census, platform_of
from lifesign.census.stored_counts import census_of, ended_of, generation_of, latencies_of, layers_of
from lifesign.client import RegistryClient
from lifesign.domain.common.clock_skew import last_not_ahead
from lifesign.domain.models.census import CensusRun
from lifesign.domain.targets.target import TargetKind
from lifesign.storage.probing.result_history import SECONDS_PER_HOUR, hour_of

if TYPE_CHECKING:
    from lifesign.domain.observation.results import ResultClass

__all__ = ["census_at", "census_of"]


async def census_at(client: RegistryClient, name: str | None) -> Census:
    """Take the census of a registry, as `census_of` does. Raises RegistryError."""
    known = await client.census.counts(name=name)
    if name is None and known.runs:
        name = known.runs[0].name
    last = last_not_ahead(known.runs, lambda run: run.began_at.timestamp(), known.made_at.timestamp())
    counts = known if last is None else await client.census.counts(run=last.run_id, name=name)
    since_s, until_s = counts.since.timestamp(), counts.until.timestamp()
    if not known.runs:
        since_s = hour_of(since_s) * SECONDS_PER_HOUR
    sums = [(row.layer.value, row.result.value, row.bucket, row.count) for row in counts.probes]
    shown = [
        (
            row.kind or TargetKind.A2A,
            ended_of([row.discovery, row.transport, row.readiness, row.message]),
            row.count,
        )
        for row in counts.shown
    ]
    return compute_census(
        CensusFacts(
            name=name or "",
            made_at_s=counts.made_at.timestamp(),
            since_s=since_s if sums else None,
            until_s=until_s if sums else None,
            evidence_at_s=None if counts.evidence_at is None else counts.evidence_at.timestamp(),
            old=counts.old,
            hosts=await _platforms_at(client, None if last is None else last.run_id),
            directories=[(row.directory, row.result, row.count) for row in counts.directories],
            kinds=[(row.kind, row.result, row.count) for row in counts.kinds],
            layers=layers_of(sums, shown),
            latencies=latencies_of(sums),
            health=counts.health,
            shown=shown,
            gone=counts.gone,
            deadlines=None if last is None else last.deadlines,
            not_read=() if last is None else last.not_read,
            runs=[_run_of(run) for run in counts.runs],
        )
    )


async def _platforms_at(client: RegistryClient, run: str | None) -> list[HostCount]:
    """Return the counts of all hosts, summed up by platform as they come: there may be a million."""
    counted: Counter[tuple[str, ResultClass | None, str | None]] = Counter()
    async for row in client.census.hosts(run=run):
        counted[platform_of(row.host), row.result, generation_of(row.protocol_version)] += row.count
    return [HostCount(*key, count) for key, count in counted.items()]


def _run_of(run: CensusRun) -> RunFacts:
    return RunFacts(
        began_at_s=run.began_at.timestamp(),
        ended_at_s=None if run.ended_at is None else run.ended_at.timestamp(),
        counts={row.result: row.count for row in run.counts},
    )
