"""Sweep: detection of missed heartbeats, and of expired leases and commands.

Any number of server processes sweep, one at a time: it claims the registry's row. A sweep notes the time in
which no process swept and assesses the agents whose deadline has passed. It asks `monitor_health` before
silence makes an agent unhealthy or dead, and ends expired leases and commands. All transactions have a
bounded size: the next sweep does the rest.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ulid import ULID

from lifesign.domain.lifecycle import verdict_suspension
from lifesign.domain.lifecycle.heartbeat_timeout import COUNTED_SWEEPS, deadline_s, sweep_cadence_s
from lifesign.domain.lifecycle.status_table import Signal
from lifesign.domain.lifecycle.verdict import is_judged_by_probes, thresholds_in_force
from lifesign.domain.lifecycle.verdict_suspension import (
    Assessment,
    Monitor,
    MonitorPolicy,
    Monitors,
    MonitorState,
    Track,
)
from lifesign.registry.probing.evidence_watch import count_evidence, is_watch_due, note_evidence
from lifesign.registry.request_handling.heard_agents import HeardAgents, MissedHeartbeat, unwitnessed
from lifesign.registry.request_handling.work_counts import WorkCounts, WorkKind
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.status_changes.agent_status import MONITOR, change_status, command_ended
from lifesign.registry.status_changes.agent_verdicts import (
    Change,
    VerdictContext,
    facts_of,
    judge_agents,
)
from lifesign.registry.status_changes.lease_expiry import reap
from lifesign.registry.status_changes.monitor_row import (
    excluded_time_in,
    monitor_turned,
    monitors_in,
    with_assessment,
)
from lifesign.registry.status_changes.sweep_gap import (
    Reference,
    gap_jump_s,
    give_drains_suspended_time,
    move_some_agents_back,
    move_some_targets_back,
    note_gap,
    note_set_back,
)
from lifesign.registry.targets.probed_agents import request_rechecks
from lifesign.storage.agents import agent_rows, commands
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.transaction import Clock, Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log

CHUNK = 2_000
"""Number of agents, leases or commands per transaction: about 0.1 s of work if all of them change."""
MAX_CHUNKS = 1_000
"""Maximum number of chunks in one sweep; the next one continues."""
CLAIM_SECONDS = 5.0
"""Time after which another process takes over a sweep that does not continue."""
ASSESSMENTS_PER_CADENCE = 4
"""Number of times per cadence that a suspended monitor counts all waiting agents."""
FAULT_SECONDS = 60.0
"""Delay before an agent is assessed again after an internal error."""
SERVER_PREFIX = "sweeper_"
"""Beginning of the names under which server processes sweep."""

_log = logging.getLogger("lifesign.registry")

MaySweep = Callable[[Transaction, RegistryRow], bool]
"""Returns whether a process may sweep now."""


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Facts for all transactions of one sweep."""

    began_s: float
    """Agents due by this time are processed; agents that are postponed do not come again in the same sweep.
    """
    reference: Reference
    assessed: frozenset[Track] = frozenset()
    """Suspended tracks of which this sweep meets all agents that wait."""
    set_back_s: float = 0.0
    """Time by which the clock was set back, below 0: stored times are corrected first."""
    is_watching: bool = False
    """Whether silent network classes and old evidence have to be counted."""


@dataclass(frozen=True, slots=True)
class _Exits:
    """Agents of one track that would exit by missed heartbeats, and that are old enough to count.

    Otherwise any caller that may register agents could suspend verdicts with agents that never send
    heartbeats.
    """

    notify_s: tuple[float, ...] = ()
    """Their last signs."""
    missed: tuple[MissedHeartbeat, ...] = ()
    """The same agents, if they are monitored by heartbeat."""

    def __add__(self, other: "_Exits") -> "_Exits":
        return _Exits(self.notify_s + other.notify_s, self.missed + other.missed)


@dataclass(frozen=True, slots=True)
class _SweepResult:
    """Results for some agents that were due."""

    is_last: bool
    waiting: Mapping[Track, _Exits]
    """Agents whose transition is suspended."""
    released: Sequence[str] = ()
    """Ids of probed agents whose maintenance or override is over."""


class Sweeper:
    """Runs sweeps, which apply due verdicts to agents and end expired leases and commands."""

    def __init__(
        self,
        database: Database,
        settings: RegistrySettings,
        monotonic_s: Clock,
        *,
        policy: MonitorPolicy | None = None,
        counts: WorkCounts | None = None,
        heard: HeardAgents | None = None,
        prefix: str = SERVER_PREFIX,
        may_sweep: MaySweep | None = None,
    ) -> None:
        self._counts = counts or WorkCounts()
        self._heard = heard or HeardAgents(monotonic_s)
        self._database = database
        self._period_s = settings.sweep_seconds
        self._monotonic_s = monotonic_s
        self._policies = settings.policies
        self._policy = policy or self._policies.mass_exit
        self._name = f"{prefix}{str(ULID()).lower()}"
        self._may_sweep = may_sweep
        self._reference: Reference | None = None
        self._durations_s = {kind: deque[float](maxlen=COUNTED_SWEEPS) for kind in (False, True)}
        """Durations of the last sweeps that this process completed, by whether they counted evidence."""
        self._has_watched = False
        """Whether the last of these sweeps counted evidence, which takes longer."""

    async def run(self, stops: asyncio.Event | None = None) -> None:
        """Sweep until cancelled; a sweep that fails is followed by the next one.

        `stops` is set when the server accepts no more connections: heartbeats that it refuses from then on
        are not missed. The next process excludes the time since the last sweep.
        """
        while stops is None or not stops.is_set():
            try:
                await self.sweep_once()
            except StoreUnavailable:
                # The database logs it itself, once, and its end.
                self._counts.note(WorkKind.SWEEPS_FAILED)
            except Exception:  # noqa: BLE001 - whatever fails, silence is looked for again
                self._counts.note(WorkKind.SWEEPS_FAILED)
                _log.exception("a sweep (the check for missed heartbeats) failed; the next one follows")
            await asyncio.sleep(self._period_s)

    async def sweep_once(self) -> None:
        """Run one sweep of all that is due by now, unless another process is sweeping."""
        began_s, began_monotonic_s = time.perf_counter(), self._monotonic_s()
        sweep = await self._database.write(self._begin)
        self._heard.note_commit()
        if sweep is not None and sweep.set_back_s < 0:
            await self._mend(sweep.set_back_s)
            sweep = await self._database.write(self._begin)
        if sweep is None:
            return
        self._reference = sweep.reference
        waiting = await self._judge_all(sweep)
        if sweep.assessed and waiting is not None:
            await self._database.write(partial(self._count, waiting=waiting, assessed=sweep.assessed))
        await self._end_all_expired(sweep.began_s)
        if sweep.is_watching:
            await self._watch()
        self._has_watched = sweep.is_watching
        self._durations_s[sweep.is_watching].append(self._monotonic_s() - began_monotonic_s)
        self._counts.note(WorkKind.SWEEPS)
        self._counts.note(WorkKind.SWEEP_NS, int((time.perf_counter() - began_s) * 1e9))

    def _begin(self, transaction: Transaction) -> _Sweep | None:
        """Claim the sweep and compute the time without a sweep; None if another process has it."""
        self._heard.store(transaction, self._name)
        row = registry_row.lock_if_free(transaction)
        if row is None:
            return None
        now_s, monotonic_s = transaction.now_s, self._monotonic_s()
        if row.sweeper != self._name and _is_claimed(row, now_s):
            return None
        if self._may_sweep is not None and not self._may_sweep(transaction, row):
            return None
        reference = Reference(now_s, monotonic_s)
        last_s = now_s if row.swept_at_s is None else row.swept_at_s
        jump_s = gap_jump_s(now_s - last_s, self._reference, reference)
        if jump_s < 0:
            return _Sweep(now_s, reference, set_back_s=jump_s)
        has_started = self._reference is None
        row, drafts = note_gap(transaction, row, last_s, jump_s, self._cadence_s, has_started=has_started)
        monitors = monitors_in(row, now_s)
        self._store(transaction, row)
        event_log.append(transaction, drafts)
        assessed = frozenset(
            track
            for track in Track
            if (monitor := monitors.of(track)).state is MonitorState.SUSPENDED
            and self._assessment_number(monitor, last_s) < self._assessment_number(monitor, now_s)
        )
        is_watching = is_watch_due(row, now_s, self._policies)
        return _Sweep(now_s, reference, assessed=assessed, is_watching=is_watching)

    async def _mend(self, set_back_s: float) -> None:
        """Correct times in the future after the clock was set back; several processes may do so at once."""
        for move in (move_some_agents_back, move_some_targets_back):
            after: int | None = 0
            while after is not None:
                after = await self._database.write(partial(move, by_s=set_back_s, after=after, limit=CHUNK))
        await self._database.write(partial(note_set_back, by_s=set_back_s))
        self._reference = None

    async def _judge_all(self, sweep: _Sweep) -> dict[Track, _Exits] | None:
        """Assess all agents that are due; return the suspended ones, None if another process took over."""
        waiting = dict.fromkeys(Track, _Exits())
        limit = CHUNK
        for _ in range(MAX_CHUNKS):
            try:
                assessed = await self._database.write(partial(self._assess_some, sweep=sweep, limit=limit))
            except StoreUnavailable:
                raise
            except Exception:  # noqa: BLE001 - one bad record must not hide all others
                if limit == 1:
                    _log.exception("an agent could not be assessed; the next sweep tries again")
                    await self._database.write(partial(_reschedule_later, due_at_s=sweep.began_s))
                limit = max(1, limit // 10)
                continue
            if assessed is None:
                return None
            for track, exits in assessed.waiting.items():
                waiting[track] += exits
            if assessed.released:
                await self._database.write(partial(request_rechecks, agent_ids=assessed.released))
            if assessed.is_last:
                break
            limit = min(CHUNK, limit * 10)
        return waiting

    def _assess_some(self, transaction: Transaction, sweep: _Sweep, limit: int) -> _SweepResult | None:
        """Assess some agents that are due and apply the consequences; None if another process took over."""
        row = self._locked(transaction)
        if row is None:
            return None
        now_s = transaction.now_s
        excluded_downtime = excluded_time_in(row)
        alike = VerdictContext(excluded_downtime=excluded_downtime.spans, holds=excluded_downtime.holds)
        found = agent_rows.due(transaction, sweep.began_s, limit)
        changes, unchanged = _parted(judge_agents(transaction, found, alike))
        agent_rows.reschedule(transaction, _deadlines(unchanged, now_s), sweep.began_s)
        if transaction.is_postgresql:
            # They were not locked, so that heartbeats need not wait for agents without consequences.
            numbers = [change.agent.id for change in changes]
            locked = agent_rows.find_many(transaction, numbers, to_change=True, skip_locked=True)
            changes, unchanged = _parted(judge_agents(transaction, locked, alike))
            agent_rows.set_verdict_due(transaction, _deadlines(unchanged, now_s))
        monitors = monitors_in(row, now_s)
        looks = {
            track: self._assess(transaction, monitors.of(track), self._exits(changes, track, monitors, alike))
            for track in Track
        }
        suspended = [change for change in changes if not _may_be_removed(change, looks)]
        going = [change for change in changes if _may_be_removed(change, looks)]
        for track, assessment in looks.items():
            row = with_assessment(row, track, assessment, now_s)
        monitors = monitors_in(row, now_s)
        going += self._suspended_results(transaction, suspended, alike, monitors)
        change_status(transaction, [_with_later_deadline(change, now_s) for change in going], MONITOR)
        for track, assessment in looks.items():
            event_log.append(transaction, monitor_turned(assessment, track, MONITOR))
        is_last = len(found) < limit
        self._store(transaction, row, is_over=is_last and not sweep.assessed)
        waiting = {track: self._exits(suspended, track, monitors, alike) for track in Track}
        return _SweepResult(
            is_last, waiting, [agent.agent_id for agent in found if _is_released(agent, now_s)]
        )

    def _assess(self, transaction: Transaction, monitor: Monitor, exits: _Exits) -> Assessment:
        """Return whether the silent agents of a track may become unhealthy or dead."""
        if monitor.state is MonitorState.SUSPENDED:
            # Waiting agents are counted at the end of a sweep that covers all of them.
            return Assessment(monitor=monitor, is_suspended=True, cohort_before_s=monitor.cohort_before_s)
        return self._assess_at(transaction, monitor, exits)

    def _assess_at(self, transaction: Transaction, monitor: Monitor, exits: _Exits) -> Assessment:
        alone = unwitnessed(transaction, exits.missed, self._policy) if exits.missed else ()
        return verdict_suspension.assess(
            monitor,
            exits.notify_s,
            transaction.now_s,
            self._policy,
            unwitnessed=[each.last_liveness_s for each in alone],
        )

    def _exits(
        self, changes: Sequence[Change], track: Track, monitors: Monitors, alike: VerdictContext
    ) -> _Exits:
        """Return the agents of one track that would exit by missed heartbeats, and that count."""
        silent_since_s: list[float] = []
        missed: list[MissedHeartbeat] = []
        for change in changes:
            sign_s = change.silent_since_s
            if sign_s is None or change.track is not track:
                continue
            if not verdict_suspension.is_suspicious_exit(
                monitors.of(track), sign_s, change.heard_for_s, self._policy
            ):
                continue
            silent_since_s.append(sign_s)
            if track is Track.HEARTBEAT:
                interval_s = thresholds_in_force(facts_of(change.agent, 0)).interval_s
                missed_s = deadline_s(sign_s, interval_s, alike.excluded_since(sign_s))
                missed.append(MissedHeartbeat(change.agent.id, sign_s, missed_s))
        return _Exits(tuple(silent_since_s), tuple(missed))

    def _suspended_results(
        self, transaction: Transaction, held: Sequence[Change], alike: VerdictContext, monitors: Monitors
    ) -> list[Change]:
        """Return the other consequences for agents whose verdicts are suspended.

        All agents of a track are due together, at its next assessment.
        """
        consequences = judge_agents(
            transaction, [change.agent for change in held], replace(alike, is_suspended=True)
        )
        changes = [
            replace(change, assess_at_s=self._next_assessment_s(monitors.of(change.track), transaction.now_s))
            for change in consequences
        ]
        agent_rows.set_verdict_due(transaction, {change.agent.id: change.assess_at_s for change in changes})
        return [change for change in changes if change.is_visible]

    def _count(
        self, transaction: Transaction, waiting: Mapping[Track, _Exits], assessed: Iterable[Track]
    ) -> None:
        """Count all waiting agents, now that the sweep has assessed them; suspensions may be over."""
        row = self._locked(transaction)
        if row is None:
            return
        now_s = transaction.now_s
        for track in sorted(assessed):
            monitor = monitors_in(row, now_s).of(track)
            if monitor.state is MonitorState.SUSPENDED:
                assessment = self._assess_at(transaction, monitor, waiting[track])
                row = with_assessment(row, track, assessment, now_s)
                give_drains_suspended_time(transaction, track, assessment)
                event_log.append(transaction, monitor_turned(assessment, track, MONITOR))
        self._store(transaction, row, is_over=True)

    async def _end_all_expired(self, began_s: float) -> None:
        """End leases that had expired when the sweep began, and expired commands."""
        await reap(self._database, began_s)
        for _ in range(MAX_CHUNKS):
            if await self._database.write(_end_commands) < CHUNK:
                return

    async def _watch(self) -> None:
        """Count silent network classes and old evidence, without a lock, and store the result."""
        counted = await self._database.read(partial(count_evidence, policies=self._policies))
        await self._database.write(partial(note_evidence, counted=counted, policies=self._policies))

    def _locked(self, transaction: Transaction) -> RegistryRow | None:
        """Return the row for one more transaction of this sweep; None if another process took over or could.

        A process that was stopped in the middle of a sweep, or waited for such a database, starts again: only
        then is the time without a sweep excluded.
        """
        row = registry_row.lock(transaction)
        is_ours = row.sweeper == self._name and _is_claimed(row, transaction.now_s)
        return row if is_ours else None

    def _store(self, transaction: Transaction, row: RegistryRow, *, is_over: bool = False) -> None:
        """Write the row; it shows that this process is alive, and how long the sweep is its own."""
        now_s = transaction.now_s
        until_s = now_s if is_over else now_s + CLAIM_SECONDS
        row = replace(row, swept_at_s=now_s, sweeper=self._name, sweeper_until_s=until_s)
        registry_row.store(transaction, row)

    @property
    def _cadence_s(self) -> float:
        """The time in which this process's next sweep follows a sweep like the last one."""
        kinds = {False, self._has_watched}
        return max(sweep_cadence_s(self._period_s, tuple(self._durations_s[kind])) for kind in kinds)

    @property
    def _assessment_period_s(self) -> float:
        return self._policy.cadence_seconds / ASSESSMENTS_PER_CADENCE

    def _next_assessment_s(self, monitor: Monitor, now_s: float) -> float:
        return monitor.since_s + self._assessment_period_s * (self._assessment_number(monitor, now_s) + 1)

    def _assessment_number(self, monitor: Monitor, at_s: float) -> int:
        """Return the number of times since the suspension began at which waiting agents are counted."""
        return max(0, math.floor((at_s - monitor.since_s) / self._assessment_period_s))


def _is_claimed(row: RegistryRow, now_s: float) -> bool:
    # A claim that lasts longer than claims do was made before the clock was set back.
    return row.sweeper_until_s is not None and now_s < row.sweeper_until_s <= now_s + CLAIM_SECONDS


def _parted(assessed: Iterable[Change]) -> tuple[list[Change], list[Change]]:
    """Separate agents with consequences from those that are only scheduled again."""
    changes: list[Change] = []
    unchanged: list[Change] = []
    for change in assessed:
        (changes if change.is_visible else unchanged).append(change)
    return changes, unchanged


def _is_released(agent: StoredAgent, now_s: float) -> bool:
    """Return whether a maintenance or an override of a probed agent has ended since its last assessment."""
    due_s = now_s if agent.assess_at_s is None else agent.assess_at_s
    ends_s = (agent.maintenance_until_s, agent.override_until_s)
    is_over = any(end_s is not None and due_s <= end_s <= now_s for end_s in ends_s)
    return is_over and is_judged_by_probes(facts_of(agent, 0), now_s)


def _may_be_removed(change: Change, looks: Mapping[Track, Assessment]) -> bool:
    assessment = looks[change.track]
    if Signal.DRAIN_TIMEOUT in change.signals:
        return not assessment.is_suspended
    return change.silent_since_s is None or assessment.may_change(change.silent_since_s)


def _later_s(assess_at_s: float | None, now_s: float) -> float | None:
    """Return a later due time: a sweep processes no agent twice."""
    return None if assess_at_s is None else max(assess_at_s, math.nextafter(now_s, math.inf))


def _with_later_deadline(change: Change, now_s: float) -> Change:
    return replace(change, assess_at_s=_later_s(change.assess_at_s, now_s))


def _deadlines(unchanged: Iterable[Change], now_s: float) -> dict[int, float | None]:
    return {change.agent.id: _later_s(change.assess_at_s, now_s) for change in unchanged}


def _reschedule_later(transaction: Transaction, due_at_s: float) -> None:
    agent_rows.reschedule_later(transaction, due_at_s, transaction.now_s + FAULT_SECONDS)


def _end_commands(transaction: Transaction) -> int:
    """End some expired commands, and return how many."""
    unheard = commands.expired(transaction, transaction.now_s, CHUNK)
    commands.remove(transaction, [command.id for command in unheard])
    numbers = sorted({command.agent for command in unheard})
    whose = {agent.id: agent for agent in agent_rows.find_many(transaction, numbers)} if numbers else {}
    drafts = [command_ended(command, whose[command.agent], MONITOR) for command in unheard]
    event_log.append(transaction, drafts)
    return len(unheard)
