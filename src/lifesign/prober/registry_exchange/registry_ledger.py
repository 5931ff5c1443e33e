"""Ledger on a remote registry.

Any number of machines share the work through it. Failures of the connection mean that the ledger is
unreachable. Errors that a retry cannot repair, such as a malformed result, are raised unchanged.
"""

import logging
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from lifesign.client.registry import RegistryClient
from lifesign.client.registry_errors import RegistryError, RegistryRefusal, is_final
from lifesign.domain.models.observation_batch import (
    MAX_AGE_SECONDS,
    MAX_OBSERVATIONS,
    MIN_INTERVAL_SECONDS,
    ReportOutcome,
)
from lifesign.domain.models.shards import HandedOutWitness, ProbeTarget
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.parsing.bounded_json import marks_of
from lifesign.domain.published_interface.published import Form
from lifesign.prober.network.clock import SYSTEM_CLOCK, Clock
from lifesign.prober.registry_exchange.ledger import (
    NO_NEWS,
    NO_WITNESS_REPORT,
    Granted,
    LedgerRefused,
    LedgerUnreachable,
    ReportAnswer,
    ShardBatch,
    ShardClaim,
    TargetEntry,
    TargetPage,
    WitnessNews,
    WitnessReport,
)

T = TypeVar("T")

# Statuses of a request that is at fault itself: the registry may accept a smaller or another batch.
_OUR_FAULT: Final = frozenset({400, 413, 415, 422})
MAX_INTERFACES_BYTES: Final = 2_097_152
"""Interfaces in one call, as JSON: a quarter of the registry's limit."""
MAX_INTERFACES_MARKS: Final = 150_000
"""Maximum number of `{`, `[` and `,` in them: less than a third of the registry's limit."""
_NEVER_PROBED: Final = ProbeMemory()

_log = logging.getLogger("lifesign.prober")


class RegistryLedger:
    """A ledger that a registry keeps. The client's key must have the role prober."""

    def __init__(self, client: RegistryClient, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._clock = clock
        self._has_warned_of_ignored = False
        self._newest: dict[int, int] = {}
        """Version of the latest change of each shard's targets, as the registry reported it."""
        self._looked_up_to = 0
        """The version up to which all changes are in there."""
        self.living_workers: frozenset[str] | None = None
        """Holders of the living workers as of the last call of `changed`."""

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        standing: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        """Report that the worker is alive, and claim its share of the shards. Raises LedgerUnreachable."""
        asking = self._client.shards.claim(
            worker,
            held=held,
            ttl_seconds=ttl_s,
            companions=companions,
            reached_classes=standing.reached_classes,
            wanted_witnesses=standing.wanted,
            interval_s=max(MIN_INTERVAL_SECONDS, standing.interval_s),
            credentials=standing.credentials,
        )
        claimed = await _query(asking)
        grant = claimed.grant
        return Granted(
            claims=[
                ShardClaim(
                    shard=granted.shard,
                    fencing_token=granted.fencing_token,
                    expires_at_s=claimed.deadline_s,
                )
                for granted in grant.shards
            ],
            news=news_of(grant.silent_classes, grant.confirmed_classes, grant.witnesses),
            now_s=claimed.registry_now_s,
            reason=grant.reason,
            missing_credentials=[each.other for each in grant.missing_credentials],
            working_credentials=[each.other for each in grant.working_credentials],
        )

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        """Return a shard's targets; with `after_version`, only later changes. Raises LedgerUnreachable."""
        found = await _query(self._client.shards.targets(shard, after_version=after_version))
        return TargetPage(
            entries=[_entry(target) for target in found.targets], gone=found.gone, version=found.version
        )

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        """Return which of these shards have changed since the known versions.

        Raises LedgerUnreachable.
        """
        if not versions:
            return []
        reply = await _query(self._client.shards.show(changed_after=self._looked_up_to))
        if reply.version < self._looked_up_to:
            # It was restored from a backup, and counts on from there.
            self._newest.clear()
            reply = await _query(self._client.shards.show(changed_after=0))
        self._newest |= {int(shard): version for shard, version in reply.changed.items()}
        self._looked_up_to = reply.version
        self.living_workers = frozenset(each.holder for each in reply.probers)
        return [
            shard
            for shard, version in versions.items()
            if self._newest.get(shard, 0) > version or version > reply.version
        ]

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        """Send results of several shards to the registry.

        LedgerUnreachable; RegistryRefusal if the registry will never accept them in this form.
        """
        lost: set[int] = set()
        news = NO_NEWS
        for some in _portions(batches):
            reports = [report for batch in some for report in batch.reports]
            interfaces = interfaces_of(some)
            tokens = {batch.claim.shard: batch.claim.fencing_token for batch in some}
            answer = await _query(
                self._client.shards.report(
                    [report.observation for report in reports],
                    memories=[report.memory for report in reports],
                    interfaces=interfaces,
                    tokens=tokens,
                    ages_s=partial(ages_s, some, self._clock),
                    numbers=[number for batch in some for number in batch.numbers],
                    interval_s=max(MIN_INTERVAL_SECONDS, interval_s),
                )
            )
            lost.update(answer.lost)
            news = news_of(answer.silent_classes, answer.confirmed_classes)
            self._warn_of_ignored(answer.counts.get(ReportOutcome.IGNORED, 0), len(reports))
        return ReportAnswer(lost=lost, news=news)

    def _warn_of_ignored(self, ignored: int, reported: int) -> None:
        """Log once that the registry ignores all results of a batch, until it accepts some again."""
        is_all = 0 < ignored == reported
        if is_all and not self._has_warned_of_ignored:
            _log.warning(
                "the registry ignored all %d results of a batch: they count as repeated or late", ignored
            )
        self._has_warned_of_ignored = is_all

    async def unprobed(self, since_s: float) -> int:
        """Return how many targets have no result since a time (epoch). Raises LedgerUnreachable."""
        shown = await _query(self._client.shards.show(unprobed_since=datetime.fromtimestamp(since_s, UTC)))
        return shown.unprobed or 0

    async def leave(self, worker: str) -> None:
        """Release all shards of the worker. Raises LedgerUnreachable."""
        await _query(self._client.shards.leave(worker))


async def _query(question: Awaitable[T]) -> T:
    """Return the registry's answer; LedgerUnreachable without one, LedgerRefused if it refuses.

    RegistryRefusal if we are at fault.
    """
    try:
        return await question
    except RegistryRefusal as refusal:
        if refusal.status in _OUR_FAULT:
            raise
        raise (LedgerRefused if is_final(refusal) else LedgerUnreachable)(str(refusal)) from refusal
    except RegistryError as error:
        raise LedgerUnreachable(str(error)) from error


def ages_s(batches: Sequence[ShardBatch], clock: Clock) -> list[float]:
    """Return the present age of each result, in seconds."""
    now_s = clock.boot_s()
    made_at_s = (at_s for batch in batches for at_s in batch.made_at_s)
    return [min(max(0.0, now_s - at_s), MAX_AGE_SECONDS) for at_s in made_at_s]


def interfaces_of(batches: Sequence[ShardBatch]) -> list[Form | None] | None:
    """Return the newly read interface of each result, None for a result without; None if there are none."""
    if not any(batch.interfaces for batch in batches):
        return None
    return [
        None if interface is None else interface.form
        for batch in batches
        for interface in batch.interfaces or [None] * len(batch.reports)
    ]


def news_of(
    silent_classes: Collection[str],
    confirmed_classes: Mapping[str, datetime],
    witnesses: Sequence[HandedOutWitness] = (),
) -> WitnessNews:
    """Return what an answer of the registry says about witnesses."""
    return WitnessNews(
        silent_classes=frozenset(silent_classes),
        confirmed_at_s={name: at.timestamp() for name, at in confirmed_classes.items()},
        handed_out=[(witness.network_class, witness.url) for witness in witnesses],
    )


def _portions(batches: Sequence[ShardBatch]) -> Iterator[list[ShardBatch]]:
    """Split batches into portions that the registry accepts; results of one shard stay in order."""
    some: list[ShardBatch] = []
    count = size = marks = 0
    for batch in batches:
        first = 0
        for place in range(len(batch.reports)):
            interface = batch.interfaces[place] if batch.interfaces else None
            added = 0 if interface is None else len(interface.text)
            added_marks = 0 if interface is None else marks_of(interface.text.encode())
            if (
                count == MAX_OBSERVATIONS
                or size + added > MAX_INTERFACES_BYTES
                or marks + added_marks > MAX_INTERFACES_MARKS
            ):
                if place > first:
                    some.append(_part(batch, first, place))
                yield some
                some, count, size, marks, first = [], 0, 0, 0, place
            count += 1
            size += added
            marks += added_marks
        some.append(_part(batch, first, len(batch.reports)))
    if some:
        yield some


def _part(batch: ShardBatch, first: int, until: int) -> ShardBatch:
    if first == 0 and until == len(batch.reports):
        return batch
    return replace(
        batch,
        reports=batch.reports[first:until],
        numbers=batch.numbers[first:until],
        made_at_s=batch.made_at_s[first:until],
        interfaces=batch.interfaces[first:until],
    )


def _entry(target: ProbeTarget) -> TargetEntry:
    return TargetEntry(
        subject_id=target.subject_id,
        url=target.url,
        memory=target.memory or _NEVER_PROBED,
        recheck_at_s=None if target.recheck_at is None else target.recheck_at.timestamp(),
        version=target.version,
        confirmed_at_s=None if target.confirmed_at is None else target.confirmed_at.timestamp(),
        thresholds_s=target.thresholds_s,
        entered_at_s=None if target.entered_at is None else target.entered_at.timestamp(),
        kind=target.kind,
    )
