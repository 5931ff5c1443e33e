"""Worker: one process that claims shards, probes their targets when they are due, and reports.

Several tasks run until the worker is stopped or a census is complete: `claims`, `target_feed`, `dispatch`,
`reachability_witnesses`, `reporting` and `self_watch` each have a file; this one starts them and waits for
the end.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from lifesign.domain.targets.target import SHARDS
from lifesign.domain.text.counts import pluralize
from lifesign.prober.definition.lag_limits import SelfCheck
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.errors import PassDelayed
from lifesign.prober.network.clock import SYSTEM_CLOCK, Clock, LedgerClock
from lifesign.prober.network.host_limiter import HostLimiter
from lifesign.prober.probe.session import REQUESTS_IN_TIME
from lifesign.prober.reachability.target_contact import NetworkClasses
from lifesign.prober.reachability.witness_requests import WitnessRequester
from lifesign.prober.registry_exchange.ledger import (
    Ledger,
    LedgerUnreachable,
    WitnessNews,
    WitnessReport,
)
from lifesign.prober.secrets.credential_store import CredentialStore
from lifesign.prober.worker.claims import ClaimRenewer
from lifesign.prober.worker.dispatch import Dispatch, Due, Probes
from lifesign.prober.worker.lag_watch import LagWatch
from lifesign.prober.worker.outbox import MAX_QUEUED_SECONDS, Outbox
from lifesign.prober.worker.progress_counts import Progress, Tally
from lifesign.prober.worker.reachability_witnesses import ReachabilityWitnesses
from lifesign.prober.worker.reporting import Reporter
from lifesign.prober.worker.schedule import CensusPlan, WatchPlan
from lifesign.prober.worker.shards import OwnedShards, Shard
from lifesign.prober.worker.target_feed import TargetFeed
from lifesign.prober.worker.waiting_failures import WaitingFailures

OVERDUE_SECONDS: Final = 10.0
"""Time over the limit after which a probe counts as an internal defect and is ended."""
GRACE_SECONDS: Final = 5.0
"""Time for running probes after the worker gets a signal to end."""
LAST_REPORT_SECONDS: Final = 10.0
"""Time for the ledger to accept the last results."""
LEAVE_SECONDS: Final = 5.0
CREDENTIAL_CHECK_SECONDS: Final = 20.0
"""Interval at which a changed state of a credential makes the worker claim again at once."""
CENSUS_POLL_SECONDS: Final = 0.2
"""Interval at which a census checks whether it is complete."""
MIN_OTHERS_POLL_SECONDS: Final = 0.5
MAX_OTHERS_POLL_SECONDS: Final = 5.0
"""Maximum interval at which a census checks on the other workers once its own shards are done."""
MAX_REREADS: Final = 3
"""Maximum number of times that a census reads all shards again if targets are missing."""
MAX_STALL_SECONDS: Final = 90_000.0
"""A census ends if others hold shards and probed none of the remaining targets for this long. It is an hour
more than the longest interval of a crawl.
"""

_log = logging.getLogger("lifesign.prober")


class ProbeWorker:
    """Probes the targets of its shards, continuously or once for a census.

    `worker_name` is unique among the workers of a ledger. `asks` sends requests to witnesses; without it,
    only the answers of other probes are witnesses. `unanswered` counts lookups that no name server answered.
    `companions` is the number of workers that start at the same time: their share is left to them. A census
    waits `patience_s` for an unreachable ledger; the default is the time for which results are held.
    `credentials` are those that `prober` uses.
    """

    def __init__(
        self,
        ledger: Ledger,
        prober: Probes,
        definition: ProbeDefinition,
        *,
        worker_name: str,
        clock: Clock = SYSTEM_CLOCK,
        asks: WitnessRequester | None = None,
        unanswered: Callable[[], int] = lambda: 0,
        shard_ttl_s: float | None = None,
        companions: int = 0,
        patience_s: float = MAX_QUEUED_SECONDS,
        chance: Callable[[], float] = random.random,
        credentials: CredentialStore | None = None,
    ) -> None:
        self._credentials = CredentialStore() if credentials is None else credentials
        self._claimed_states: Sequence[str | None] = ()
        """States of the credentials in the last claim."""
        limits, cadence = definition.limits, definition.cadence.policy()
        interval_s = definition.cadence.interval_seconds
        policy = definition.witnesses.policy(interval_s)
        self._ledger = ledger
        self._name = worker_name
        self._ledger_clock = LedgerClock(clock)
        self._clock = clock = self._ledger_clock.clock
        self._owned_shards = OwnedShards()
        self._outbox = Outbox()
        self._unanswered = unanswered
        self._patience_s = patience_s
        self._tally = Tally(clock.monotonic_s())
        lag_policy = definition.self_check.policy(definition.timeouts.shortest_s)
        self._check = SelfCheck(clock.monotonic_s(), lag_policy)
        self._failures = WaitingFailures()
        self._limiter: HostLimiter[Due] = HostLimiter(
            concurrency=limits.concurrency,
            per_host=limits.per_host,
            per_address=limits.per_address,
            host_requests_per_second=limits.host_requests_per_second,
        )
        self._reporter = Reporter(
            ledger,
            self._outbox,
            clock,
            lose=self._lose,
            news=self._apply_witness_news,
            interval_s=interval_s,
            chance=chance,
            flush_s=definition.results.flush_seconds,
        )
        self._dispatch = Dispatch(
            prober,
            WatchPlan(cadence),
            self._limiter,
            clock=clock,
            cadence=cadence,
            holdings=self._owned_shards,
            outbox=self._outbox,
            reporter=self._reporter,
            tally=self._tally,
            check=self._check,
            failures=self._failures,
            policy=policy,
            clock_offset_s=lambda: self._ledger_clock.offset_s,
            max_probe_s=REQUESTS_IN_TIME * definition.timeouts.total_seconds + OVERDUE_SECONDS,
        )
        self._witnesses = self._dispatch.intake.witnesses = ReachabilityWitnesses(
            self._failures,
            asks,
            clock,
            class_names=NetworkClasses(definition.networks_allowed).names,
            canaries=definition.canaries_by_class,
            policy=policy,
            interval_s=interval_s,
            witnessed=self._dispatch.intake.note_witnessed,
            unwitnessed=self._dispatch.intake.note_unwitnessed,
        )
        self._keeper = ClaimRenewer(
            ledger,
            self._owned_shards,
            worker_name,
            ttl_s=definition.results.lease_seconds if shard_ttl_s is None else shard_ttl_s,
            held=self._replan,
            lost=self._note_lost,
            clock=self._ledger_clock,
            max_offset_s=policy.max_clock_offset_s,
            witness_report=self._witness_report,
            news=self._witnesses.apply_witness_news,
            other_credentials=self._credentials.note_others,
            chance=chance,
            companions=companions,
        )
        self._feed = TargetFeed(
            ledger,
            self._owned_shards,
            applied=self._dispatch.note_applied,
            note_workers=self._keeper.note_workers,
            chance=chance,
            wall_s=clock.wall_s,
        )
        self._self_watch = LagWatch(
            self._check, clock, turned=self._dispatch.note_turn, each_second=self._dispatch.end_overdue
        )

    @property
    def progress(self) -> Progress:
        """Numbers for people: what the worker has done and is doing."""
        rate_per_s, left = self._tally.rate_per_s(self._clock.monotonic_s()), self._dispatch.plan.left
        if left is not None:
            left += self._limiter.waiting + self._limiter.in_flight
        return Progress(
            shards=len(self._owned_shards.shards),
            targets=self._owned_shards.targets,
            latest=self._owned_shards.results(),
            probed=self._tally.probed,
            classes=dict(self._tally.classes),
            assertions=dict(self._tally.assertions),
            with_failed_assertions=len(self._tally.with_failed_assertions),
            missed=self._tally.missed,
            rate_per_s=rate_per_s,
            in_flight=self._limiter.in_flight,
            waiting=self._limiter.waiting,
            left=left,
            seconds_left=left / rate_per_s if left is not None and rate_per_s else None,
            start_error_p99_ms=self._tally.start_error_p99_ms(),
            held=len(self._outbox),
            reported=self._reporter.reported,
            given_up=self._outbox.given_up,
            is_ledger_unreachable=self._reporter.outage is not None,
            has_begun=self._has_begun,
            slowness=self._check.slowness,
            backed_off=self._dispatch.plan.backed_off,
            unanswered=self._unanswered(),
            waiting_failures=len(self._failures) + self._failures.asked_again,
            unwitnessed=self._tally.unwitnessed,
            witness_rounds=self._witnesses.rounds,
            unreached_classes=self._witnesses.unreached_classes,
            clock_offset_s=self._ledger_clock.offset_s,
            starts=self._tally.starts,
            start_delay_s=self._tally.start_delay_s,
            lag_p99_s=self._check.lag_p99_s(),
        )

    @property
    def _has_begun(self) -> bool:
        """Whether the ledger has returned the worker's shards and their targets."""
        return self._keeper.has_asked.is_set() and (self._feed.has_polled or not self._owned_shards.shards)

    def _apply_witness_news(self, news: WitnessNews) -> None:
        self._witnesses.apply_witness_news(news)

    async def _witness_report(self) -> WitnessReport:
        self._witnesses.has_read_targets = self._has_begun
        credentials = self._credentials.states
        self._claimed_states = [each.state for each in credentials]
        return replace(await self._witnesses.witness_report(), credentials=credentials)

    async def _report_credential_changes(self) -> None:
        """Claim again soon after the state of a credential has changed: a claim reports it."""
        while True:
            await asyncio.sleep(CREDENTIAL_CHECK_SECONDS)
            states = [each.state for each in self._credentials.states]
            # The backoff of an unreachable ledger stays as it is.
            if states != self._claimed_states and self._keeper.outage is None:
                self._keeper.hurry()

    async def run(self, stop: asyncio.Event) -> None:
        """Probe all targets when they are due, until `stop` is set.

        Then report the finished results, and leave.
        """
        await self._live(stop.wait())

    async def run_once(self, since_s: float, stop: asyncio.Event) -> bool:
        """Probe all targets without a result since `since_s` once; return whether none is left.

        `since_s` is the start of the census, in seconds since the epoch: with the same value it continues
        with the remaining targets. False if `stop` was set before the end, or if some targets cannot be
        counted: the workers that hold their shards may not probe them for more than a day. Raise PassDelayed
        if the ledger is unreachable for too long.
        """
        self._dispatch.plan = CensusPlan(since_s)
        counting = asyncio.create_task(self._until_counted(since_s))
        ends = [
            counting,
            asyncio.create_task(stop.wait()),
            outlasted := asyncio.create_task(self._until_outlasted()),
        ]
        try:
            await self._live(asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))
            if outlasted.done():
                raise PassDelayed(outlasted.result(), self._patience_s)
            return counting.done() and counting.result()
        finally:
            await _cancel(ends)

    async def _live(self, until: Coroutine[Any, Any, object]) -> None:
        """Run all parts until one of them is done, or a defect of ours ends it."""
        forever = [
            asyncio.create_task(each.run())
            for each in (self._keeper, self._feed, self._reporter, self._self_watch)
        ]
        if self._credentials:
            forever.append(asyncio.create_task(self._report_credential_changes()))
        others = [asyncio.create_task(until), asyncio.create_task(self._dispatch.has_failed.wait())]
        asking = asyncio.create_task(self._witnesses.ask_canaries())
        try:
            await asyncio.wait([*forever, *others], return_when=asyncio.FIRST_COMPLETED)
            if self._dispatch.failure is not None:
                raise self._dispatch.failure
            for one in (*forever, others[0]):
                if one.done():
                    one.result()
        finally:
            await self._end([*forever, *others, asking])

    async def _end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Wait for running probes, report their results, and release the shards."""
        await self._dispatch.end(GRACE_SECONDS)
        await self._witnesses.close()
        await _cancel(tasks)
        self._reporter.hurry()
        with suppress(LedgerUnreachable, TimeoutError):
            async with asyncio.timeout(LAST_REPORT_SECONDS):
                await self._reporter.flush()
        if len(self._outbox):
            _log.warning("%d results are lost: the registry or database is unreachable", len(self._outbox))
        with suppress(LedgerUnreachable, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._ledger.leave(self._name)

    async def _until_counted(self, since_s: float) -> bool:
        """Return True once every target of all shards was probed by any worker; False if some cannot be."""
        await self._keeper.has_asked.wait()
        others, rereads = _Others(), 0
        while True:
            await asyncio.sleep(CENSUS_POLL_SECONDS)
            if not self._is_idle():
                continue
            if len(self._outbox) or self._reporter.in_hand:
                self._reporter.hurry()
                continue
            unprobed = await self._unprobed(since_s)
            if unprobed == 0:
                return True
            if unprobed and len(self._owned_shards.shards) == SHARDS and self._is_idle():
                # No other worker is probing them.
                if rereads == MAX_REREADS:
                    _log.error(
                        "the census lacks %s, which could not be probed", pluralize(unprobed, "target")
                    )
                    return False
                rereads += 1
                self._owned_shards.mark_all_stale()
                self._feed.hurry()
            wait_s = others.wait_s(unprobed, self._clock.monotonic_s())
            if others.stalled_s(self._clock.monotonic_s()) > MAX_STALL_SECONDS:
                _log.error(
                    "the census lacks %s, which another prober has claimed without reporting results",
                    pluralize(unprobed or 0, "target"),
                )
                return False
            if others.stand_still:
                self._keeper.hurry()
            await asyncio.sleep(wait_s)

    async def _until_outlasted(self) -> str:
        """Return why the ledger is unreachable, once it has been for longer than a census waits."""
        while True:
            await asyncio.sleep(CENSUS_POLL_SECONDS)
            latest_s = asyncio.get_running_loop().time() - self._patience_s
            for outage in (self._reporter.outage, self._keeper.outage):
                if outage is not None and outage.since_s <= latest_s:
                    return outage.why

    async def _unprobed(self, since_s: float) -> int | None:
        try:
            return await self._ledger.unprobed(since_s)
        except LedgerUnreachable:
            return None

    def _is_idle(self) -> bool:
        """Return whether all targets of the worker's own shards were probed."""
        return self._dispatch.is_idle and all(
            shard.is_current for shard in self._owned_shards.shards.values()
        )

    def _replan(self, shards: Sequence[Shard]) -> None:
        self._dispatch.replan(shards)
        if not all(shard.is_current for shard in shards):
            self._feed.hurry()

    def _lose(self, numbers: Iterable[int]) -> None:
        lost = [shard for number in numbers if (shard := self._owned_shards.lose(number)) is not None]
        _log.warning(
            (
                "%d shards (shares of the targets) belong to other workers now: this worker's results "
                "for them do not count"
            ),
            len(lost),
        )
        self._note_lost(lost)

    def _note_lost(self, lost: Sequence[Shard]) -> None:
        self._credentials.forget_targets({slot.url for shard in lost for slot in shard.slots.values()})
        self._tally.forget_targets({slot.subject_id for shard in lost for slot in shard.slots.values()})
        self._dispatch.note_lost(lost)


class _Others:
    """Progress of other workers that still have a part of a census, and the time of the next check."""

    def __init__(self) -> None:
        self.stand_still = True
        """Whether no result was stored since the last check: a worker may have left or died."""
        self._first: tuple[float, int] | None = None
        self._left: int | None = None
        self._fewest: tuple[float, int] | None = None

    def stalled_s(self, now_s: float) -> float:
        """Return for how many seconds the number of targets left has not decreased."""
        return 0.0 if self._fewest is None else now_s - self._fewest[0]

    def wait_s(self, unprobed: int | None, now_s: float) -> float:
        """Record how many targets are left (None: unknown); return how long to wait for the next count.

        The wait is half of the time that the remaining targets take at the current rate, or a quarter of the
        time since the first check if that is less.
        """
        if unprobed is None:
            return MAX_OTHERS_POLL_SECONDS
        self.stand_still = self._left is None or unprobed >= self._left
        self._left = unprobed
        if self._fewest is None or unprobed < self._fewest[1]:
            self._fewest = now_s, unprobed
        first_s, first = self._first = self._first or (now_s, unprobed)
        waited_s, done = now_s - first_s, first - unprobed
        wait_s = waited_s / 4 if done <= 0 else min(waited_s / 4, unprobed * waited_s / done / 2)
        return min(max(wait_s, MIN_OTHERS_POLL_SECONDS), MAX_OTHERS_POLL_SECONDS)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End tasks, and wait until they have ended."""
    ending = [task for task in tasks if task.cancel()]
    if ending:
        await asyncio.wait(ending)
