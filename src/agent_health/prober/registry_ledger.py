"""Where do targets come from, and where do results go, if a registry far away keeps them?

Any number of machines share the work through it. What goes wrong on the way there is that the ledger is
away; what the registry will never take, such as a result that it holds to be malformed, is raised as it is.
"""

import logging
import time
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from agent_health.client.registry import RegistryClient
from agent_health.client.registry_errors import RegistryError, RegistryRefusal
from agent_health.observation import Observation
from agent_health.observation_batch import MAX_AGE_SECONDS, MAX_OBSERVATIONS
from agent_health.probe_memory import ProbeMemory
from agent_health.prober.ledger import (
    LedgerAway,
    ShardBatch,
    ShardClaim,
    TargetEntry,
    TargetPage,
)
from agent_health.shard_record import ProbeTarget
from agent_health.silence import PROBE_THRESHOLDS

T = TypeVar("T")

# Asked otherwise it might be taken: the batch is at fault, not the way to the registry.
_OUR_FAULT: Final = frozenset({400, 413, 415, 422})
_NEVER_PROBED: Final = ProbeMemory()

_log = logging.getLogger("agent_health.prober")


class RegistryLedger:
    """A ledger on a registry; its client's key is that of a prober."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._newest: dict[int, int] = {}
        """The newest version of each shard that was told of."""
        self._looked_up_to = 0
        """The version up to which all changes are in there."""
        self._left_out = 0
        """How many members it does not know were told of."""

    async def claim(
        self, worker: str, ttl_s: float, held: Mapping[int, int], companions: int = 0
    ) -> list[ShardClaim]:
        """Say that this worker lives, and take its share of the shards. LedgerAway."""
        asking = self._client.shards.claim(worker, held=held, ttl_seconds=ttl_s, companions=companions)
        claimed = await _asked(asking)
        return [
            ShardClaim(
                shard=granted.shard,
                fencing_token=granted.fencing_token,
                # The event loop's clock is the monotonic one.
                expires_at_s=claimed.deadline_s,
            )
            for granted in claimed.grant.shards
        ]

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        """Return a shard's targets, or what changed there. LedgerAway."""
        found = await _asked(self._client.shards.targets(shard, after_version=after_version))
        return TargetPage(
            entries=[_entry(target) for target in found.targets], gone=found.gone, version=found.version
        )

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        """Return which of these shards have changed after the version known of each. LedgerAway."""
        if not versions:
            return []
        told = await _asked(self._client.shards.show(changed_after=self._looked_up_to))
        if told.version < self._looked_up_to:
            # It was restored from a backup, and counts on from there.
            self._newest.clear()
            told = await _asked(self._client.shards.show(changed_after=0))
        self._newest |= {int(shard): version for shard, version in told.changed.items()}
        self._looked_up_to = told.version
        return [
            shard
            for shard, version in versions.items()
            if self._newest.get(shard, 0) > version or version > told.version
        ]

    async def report(self, batches: Sequence[ShardBatch]) -> Collection[int]:
        """Hand over results of several shards; return those whose claim is lost.

        LedgerAway; RegistryRefusal if the registry will never take it as it is.
        """
        lost: set[int] = set()
        for some in _portions(batches):
            reports = [report for batch in some for report in batch.reports]
            tokens = {batch.claim.shard: batch.claim.fencing_token for batch in some}
            answer = await _asked(
                self._client.shards.report(
                    [report.observation for report in reports],
                    memories=[report.memory for report in reports],
                    tokens=tokens,
                    ages_s=[age_of(report.observation) for report in reports],
                    numbers=[number_of(report.observation) for report in reports],
                    interval_s=PROBE_THRESHOLDS.interval_s,
                )
            )
            lost.update(answer.lost)
            self._tell_left_out()
        return lost

    def _tell_left_out(self) -> None:
        """Say once what this registry does not know of what is found."""
        names = self._client.shards.left_out.names
        if len(names) > self._left_out:
            self._left_out = len(names)
            _log.warning("the registry is older than this prober: it is not told %s", ", ".join(names))

    async def unprobed(self, since_s: float) -> int:
        """Return how many targets were not probed since then. LedgerAway."""
        shown = await _asked(self._client.shards.show(unprobed_since=datetime.fromtimestamp(since_s, UTC)))
        return shown.unprobed or 0

    async def say_ill(self, worker: str, lasting_s: float, why: str) -> None:
        """Do nothing: a prober's state suspends no verdict."""

    async def say_well(self, worker: str) -> None:
        """Do nothing either."""

    async def leave(self, worker: str) -> None:
        """Give all shards back. LedgerAway."""
        await _asked(self._client.shards.leave(worker))


def age_of(observation: Observation) -> float:
    """Return how old an observation is, in seconds, by this machine's clock."""
    return min(max(0.0, time.time() - observation.observed_at.timestamp()), MAX_AGE_SECONDS)


def number_of(observation: Observation) -> int:
    """Return a number that rises with the observations of one target."""
    return int(observation.observed_at.timestamp() * 1e6)


async def _asked(question: Awaitable[T]) -> T:
    """Return what the registry answers; LedgerAway if nothing, RegistryRefusal if we are at fault."""
    try:
        return await question
    except RegistryRefusal as refusal:
        if refusal.status in _OUR_FAULT:
            raise
        raise LedgerAway(str(refusal)) from refusal
    except RegistryError as error:
        raise LedgerAway(str(error)) from error


def _portions(batches: Sequence[ShardBatch]) -> Iterator[list[ShardBatch]]:
    """Cut batches into what the registry takes at once; one shard's results stay in their order."""
    some: list[ShardBatch] = []
    room = MAX_OBSERVATIONS
    for batch in batches:
        reports = batch.reports
        while reports:
            taken, reports = reports[:room], reports[room:]
            some.append(replace(batch, reports=taken))
            room -= len(taken)
            if room == 0:
                yield some
                some, room = [], MAX_OBSERVATIONS
    if some:
        yield some


def _entry(target: ProbeTarget) -> TargetEntry:
    return TargetEntry(
        subject_id=target.subject_id,
        url=target.url,
        memory=target.memory or _NEVER_PROBED,
        recheck_at_s=None if target.recheck_at is None else target.recheck_at.timestamp(),
        version=target.version,
    )
