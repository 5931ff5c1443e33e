"""Dispatch of probes: a target that is due joins the queue of its host, and is probed in a task of its own.

The schedule decides when a target is due; the intake decides the consequences of a result. A target whose
failure has a witness is probed again before all others. A probe that did not take place is reported as not
measured.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Final, Protocol

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason
from lifesign.domain.observation.witness_rule import WitnessPolicy
from lifesign.domain.probing.cadence import Cadence, believed, last_alive_s
from lifesign.domain.targets.target import is_on_origin_of
from lifesign.prober.definition.lag_limits import SelfCheck
from lifesign.prober.network.clock import Clock
from lifesign.prober.network.host_limiter import AddressBusy, HostLimiter, Permit
from lifesign.prober.registry_exchange.ledger import ProbeReport, TargetEntry
from lifesign.prober.worker import inconclusive
from lifesign.prober.worker.intake import FinishedProbe, Intake
from lifesign.prober.worker.outbox import Outbox
from lifesign.prober.worker.progress_counts import Tally
from lifesign.prober.worker.reporting import Reporter
from lifesign.prober.worker.schedule import Plan
from lifesign.prober.worker.shards import ApplyResult, OwnedShards, Shard, TargetSlot
from lifesign.prober.worker.waiting_failures import WaitingFailure, WaitingFailures

TICK_SECONDS: Final = 0.01
"""Targets that are due within the same tick start together: a wake-up for each would cost too much."""
MAX_OFFERED: Final = 2_000
"""Number of targets that join their queues at a time; the event loop runs between two such groups."""
BEGUN_AT_ONCE: Final = 16
"""Probes that begin between two turns of the event loop. If a thousand did, they would delay each other's
answers: the measurement would be of our own queue, not of the targets, and each step of each probe would find
cold processor caches.
"""
LOOK_AHEAD_RATIO: Final = 2
"""A census keeps up to so many times its concurrency ready to start."""
SLOW_DOWN_FACTOR: Final = 4
"""Factor by which a census reduces its concurrency each time it is too slow for its deadlines."""
MIN_CONCURRENCY: Final = 10
"""Minimum concurrency of a census that is too slow."""
MAX_CLOCK_STEP_SECONDS: Final = 5.0
"""Difference between calendar and monotonic clock that means that the clock was set, or the machine slept."""

_log = logging.getLogger("lifesign.prober")

Due = tuple[TargetSlot, float]
"""A target that is due, and since when."""


class Probes(Protocol):
    """Probes one target: a `Prober`, or a replacement in tests."""

    async def probe(self, entry: TargetEntry, at_s: float) -> ProbeReport:
        """Probe a target now; `at_s` is the present time. AddressBusy if its address is at the limit."""
        ...


class Dispatch:
    """Starts the probes of a worker when they are due, and passes on their results."""

    def __init__(
        self,
        prober: Probes,
        plan: Plan,
        pace: HostLimiter[Due],
        *,
        clock: Clock,
        cadence: Cadence,
        holdings: OwnedShards,
        outbox: Outbox,
        reporter: Reporter,
        tally: Tally,
        check: SelfCheck,
        failures: WaitingFailures,
        policy: WitnessPolicy,
        clock_offset_s: Callable[[], float],
        max_probe_s: float,
    ) -> None:
        """`clock_offset_s` returns the difference between the machine's calendar and the ledger's."""
        self.plan = plan
        self.intake = Intake(
            plan=lambda: self.plan,
            planned=self._note_planned,
            asks_again=self._repeat_request,
            clock=clock,
            cadence=cadence,
            reporter=reporter,
            tally=tally,
            check=check,
            failures=failures,
            policy=policy,
            clock_offset_s=clock_offset_s,
        )
        self.failure: BaseException | None = None
        """Internal defect that ends the work; `has_failed` is set then."""
        self.has_failed = asyncio.Event()
        self._prober = prober
        self._limiter = pace
        self._concurrency = pace.concurrency
        self._clock = clock
        self._cadence = cadence
        self._owned_shards = holdings
        self._outbox = outbox
        self._tally = tally
        self._failures = failures
        self._max_probe_s = max_probe_s
        self._to_ask_again: dict[TargetSlot, WaitingFailure] = {}
        """Failures that have a witness, until the second request of their targets ends."""
        self._running: dict[asyncio.Task[None], float] = {}
        """Probes under way and when they began, in that order."""
        self._overdue: set[asyncio.Task[None]] = set()
        self._apart_s = clock.wall_s() - clock.monotonic_s()
        """The difference of the two clocks at the last check."""
        self._apart_from_boot_s = clock.wall_s() - clock.boot_s()
        """The same for the clock that also runs while the machine sleeps."""
        self._replanning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at_s = inf
        self._is_pumping_soon = False
        self._is_ending = False

    @property
    def is_idle(self) -> bool:
        """Whether no probe runs or waits to start now."""
        return not (self.plan.left or self._limiter.waiting or self._limiter.in_flight or self._failures)

    async def end(self, grace_s: float) -> None:
        """Start no more probes. Running ones may continue for `grace_s`; then they are cancelled."""
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        if self._replanning is not None:
            self._replanning.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)

    def pump(self) -> None:
        """Start the probes that may start now."""
        if self._is_ending:
            return
        try:
            wait_s = self._begin_due()
        except Exception as error:  # noqa: BLE001 - nobody awaits this, and whoever runs us must hear of it
            self._fail(error)
            return
        if wait_s is not None:
            self._wake_in(wait_s)

    def end_overdue(self) -> None:
        """Cancel probes that take too long. Called once a second."""
        oldest_s = self._clock.monotonic_s() - self._max_probe_s
        for task, began_s in self._running.items():
            if began_s > oldest_s:
                break
            self._overdue.add(task)
            task.cancel()
        self.pump()

    def note_applied(self, shard: Shard, applied: ApplyResult) -> None:
        """Schedule the added and changed targets of a shard; remove those that are gone."""
        for slot in applied.gone:
            self.plan.remove(slot)
        self._outbox.drop(applied.overtaken)
        self._outbox.release(shard.number)
        wall_s = self._clock.wall_s()
        for slot, memory in applied.to_plan:
            self._note_known(slot, memory)
            if not slot.is_busy:
                self.plan.add(slot, memory, wall_s)
        # Many shards are read at once: together they begin as few targets in a turn of the event loop as one
        # would.
        self._pump_soon()

    def _note_known(self, slot: TargetSlot, memory: ProbeMemory) -> None:
        """Add a target that answered another worker as a witness."""
        alive_at_s, network_class = last_alive_s(memory), memory.network_class
        if alive_at_s is None or network_class is None or memory.failures_in_row:
            return
        if memory.not_before_s is None and not memory.is_excluded:
            # Another prober may have written the memory: it must not lead to another origin.
            known = (url for url in (memory.card_url, memory.health_url) if url is not None)
            url = next((url for url in known if is_on_origin_of(url, slot.url)), slot.url)
            self.intake.witnesses.note_known(slot.host, network_class, url, alive_at_s)

    def replan(self, shards: Iterable[Shard]) -> None:
        """Schedule the targets again that became due while the lease of their shard had expired."""
        wall_s = self._clock.wall_s()
        for shard in shards:
            if not shard.is_current:
                continue
            self._outbox.release(shard.number)
            if shard.has_parked:
                shard.has_parked = False
                for slot in shard.slots.values():
                    if slot.due_at_s is None and not slot.is_busy:
                        self.plan.add(slot, slot.recall(), wall_s)
        self.pump()

    def note_lost(self, shards: Iterable[Shard]) -> None:
        """Remove the targets of lost shards. Their running probes are cancelled and not reported."""
        for shard in shards:
            for slot in shard.slots.values():
                self.plan.remove(slot)
            # Each of them refers to its shard: they would keep one another alive.
            shard.slots.clear()
            self._outbox.release(shard.number)

    def note_turn(self, slowness: str | None) -> None:
        """Start fewer probes at the same time while the prober is slow (`slowness`). Only for a census."""
        if not self.plan.keeps_ticks:
            least = min(MIN_CONCURRENCY, self._concurrency)
            slow = max(self._concurrency // SLOW_DOWN_FACTOR, least)
            self._limiter.concurrency = self._concurrency if slowness is None else slow
        self.pump()

    def _is_clock_set(self, apart_s: float) -> bool:
        """Return whether the calendar was set and not all targets are rescheduled yet: all may seem due."""
        step_s, self._apart_s = apart_s - self._apart_s, apart_s
        before_s, from_boot_s = self._apart_from_boot_s, self._clock.wall_s() - self._clock.boot_s()
        self._apart_from_boot_s = from_boot_s
        if abs(step_s) > MAX_CLOCK_STEP_SECONDS and self._owned_shards.targets:
            _log.warning("the clock was set by %.0f s: all targets are rescheduled", step_s)
            if self._replanning is not None:
                self._replanning.cancel()
            has_jumped = from_boot_s - before_s > MAX_CLOCK_STEP_SECONDS
            self._replanning = asyncio.create_task(self._replan_all(has_jumped=has_jumped))
        return self._replanning is not None

    async def _replan_all(self, *, has_jumped: bool) -> None:
        """Schedule all targets again. `has_jumped`: ticks passed in no time, so that no probe was missed."""
        for shard in list(self._owned_shards.shards.values()):
            wall_s = self._clock.wall_s()
            for slot in shard.slots.values():
                if has_jumped:
                    slot.waited_until_s = wall_s
                if slot.due_at_s is not None:
                    memory = believed(slot.recall(), wall_s)
                    slot.remember(memory)
                    self.plan.add(slot, memory, wall_s)
            await asyncio.sleep(0)
        self._replanning = None
        self.pump()

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.has_failed.set()

    def _wake_in(self, wait_s: float) -> None:
        """Schedule the next call after so long, or earlier if that was already scheduled."""
        loop = asyncio.get_running_loop()
        wait_s = max(TICK_SECONDS, wait_s)
        at_s = loop.time() + wait_s
        if at_s < self._wakes_at_s:
            if self._timer is not None:
                self._timer.cancel()
            # uvloop's timers do not return their due time.
            self._timer, self._wakes_at_s = loop.call_later(wait_s, self._on_timer), at_s

    def _on_timer(self) -> None:
        self._timer, self._wakes_at_s = None, inf
        self.pump()

    def _begin_due(self) -> float | None:
        """Begin the probes that may begin now; return the wait for the next ones, None: not by time alone."""
        wall_s, now_s = self._clock.wall_s(), self._clock.monotonic_s()
        if self._is_clock_set(wall_s - now_s):
            return None
        most = MAX_OFFERED
        if self.plan.left is not None:
            most = min(most, max(0, LOOK_AHEAD_RATIO * self._limiter.concurrency - self._limiter.ready))
        offered = 0
        for due_at_s, slot in islice(self.plan.take(wall_s), most):
            offered += 1
            self._offer(slot, due_at_s, now_s)
        self._begin_some(now_s)
        waits = []
        if (due_s := self.plan.next_at_s()) is not None:
            waits.append(due_s - wall_s)
        if (free_at_s := self._limiter.next_at_s()) is not None:
            waits.append(free_at_s - now_s)
        if offered and self.plan.left:
            # They may all have joined one queue, and later ones could start.
            waits.append(0.0)
        return min(waits, default=None)

    def _offer(self, slot: TargetSlot, due_at_s: float, now_s: float) -> None:
        if slot.shard.is_owned(self._clock.boot_s()):
            slot.is_busy = True
            self._limiter.offer(slot.host, (slot, due_at_s), now_s)
        else:
            slot.shard.has_parked = True

    def _begin_some(self, now_s: float) -> None:
        """Start the targets that may start; if they are many, continue at the next turn of the event loop."""
        for _ in range(BEGUN_AT_ONCE):
            if self._outbox.is_full or (turn := self._limiter.take(now_s)) is None:
                return
            self._begin(turn, now_s)
        self._pump_soon()

    def _begin(self, turn: Permit[Due], now_s: float) -> None:
        slot, _ = turn.item
        if slot.is_gone or not slot.shard.is_owned(self._clock.boot_s()):
            self._limiter.end(turn, 0, now_s)
            if (first := self._to_ask_again.pop(slot, None)) is not None:
                self.intake.drop(first)
            slot.is_busy = False
            slot.shard.has_parked = True
            return
        task = asyncio.create_task(self._probe(turn))
        self._running[task] = now_s
        task.add_done_callback(self._note_ended)

    def _note_ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._overdue.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        if self._limiter.waiting or self.plan.left:
            # Several end in one turn of the event loop, and others begin in their places together.
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._is_pumping_soon:
            self._is_pumping_soon = True
            asyncio.get_running_loop().call_soon(self._pump_once)

    def _pump_once(self) -> None:
        self._is_pumping_soon = False
        self.pump()

    async def _probe(self, turn: Permit[Due]) -> None:
        """Probe one target in its turn."""
        turn.begin()
        slot, due_at_s = turn.item
        began_at_s, began_s = self._clock.wall_s(), self._clock.monotonic_s()
        first = self._to_ask_again.get(slot)
        memory = slot.recall() if first is None else first.memory
        entry = TargetEntry(
            subject_id=slot.subject_id,
            url=slot.url,
            memory=memory,
            recheck_at_s=slot.recheck_at_s,
            thresholds_s=slot.thresholds_s,
            kind=slot.kind,
            is_repeat=first is not None,
            name_failed_at_s=first.failed_at_s if first is not None and first.is_name_failure else None,
            shares_origin=slot.shares_origin,
        )
        try:
            if first is None and self._must_wait(memory, began_at_s):
                why = InconclusiveReason.ASKED_TO_WAIT, "it asked not to be probed yet"
                report = replace(self._without_result(slot, memory, began_at_s, *why), requests=0)
            else:
                report = await self._prober.probe(entry, began_at_s)
        except AddressBusy as busy:
            self._limiter.put_off(turn, busy)
            return
        except asyncio.CancelledError:
            if asyncio.current_task() not in self._overdue:
                raise
            _log.error(
                "the probe of %s was stopped, because it did not end in time: a defect in lifesign",
                slot.subject_id,
            )
            why = InconclusiveReason.PROBER_FAULT, "the probe did not end in time"
            report = self._without_result(slot, memory, began_at_s, *why)
        except Exception:  # noqa: BLE001 - one target must not end the work on all others
            _log.exception("the probe of %s failed because of a defect in lifesign", slot.subject_id)
            why = InconclusiveReason.PROBER_FAULT, "the probe failed by a defect of the prober"
            report = self._without_result(slot, memory, began_at_s, *why)
        finally:
            ended_s = self._clock.monotonic_s()
        self._limiter.end(turn, report.requests, ended_s)
        self._to_ask_again.pop(slot, None)
        if self.plan.keeps_ticks and first is None:
            self._tally.note_start(began_at_s - due_at_s)
        self.intake.take(
            FinishedProbe(
                slot=slot,
                memory=memory,
                report=report,
                began_at_s=began_at_s,
                began_s=began_s,
                ended_s=ended_s,
                first=first,
            )
        )

    def _must_wait(self, memory: ProbeMemory, now_s: float) -> bool:
        """Return whether a census is earlier than a target allows; a schedule with ticks waits anyway."""
        return not self.plan.keeps_ticks and memory.not_before_s is not None and memory.not_before_s > now_s

    def _without_result(
        self, slot: TargetSlot, memory: ProbeMemory, began_at_s: float, reason: InconclusiveReason, why: str
    ) -> ProbeReport:
        cadence = slot.cadence(self._cadence)
        return inconclusive.without_result(slot, memory, cadence, began_at_s, reason=reason, why=why)

    def _repeat_request(self, failure: WaitingFailure) -> None:
        """Schedule the second request to the target of a failure that has a witness, before all others."""
        slot = failure.slot
        self._to_ask_again[slot] = failure
        due_at_s = self._clock.wall_s()
        self._limiter.offer(slot.host, (slot, due_at_s), self._clock.monotonic_s(), is_urgent=True)
        self._pump_soon()

    def _note_planned(self, slot: TargetSlot) -> None:
        """Come back when a target is due next."""
        if self._is_ending:
            return
        if not self.plan.keeps_ticks:
            self._pump_soon()
        elif slot.due_at_s is not None:
            self._wake_in(slot.due_at_s - self._clock.wall_s())
