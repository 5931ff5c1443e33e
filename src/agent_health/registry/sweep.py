"""How is silence noticed, and what else is over by now?

Any number of server processes sweep; one at a time does, since it claims the registry's row. A sweep
notes the time in which nobody looked, judges the agents whose deadline has passed, asks whether it is
us before it lets silence take anyone down, and ends leases and commands whose time is over. All in
transactions of bounded size: what one sweep leaves, the next one finds.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ulid import ULID

from agent_health import monitor_health
from agent_health.errors import StoreUnavailable
from agent_health.monitor_health import DEFAULT_POLICY, Look, Monitor, MonitorPolicy, MonitorState
from agent_health.registry.change_status import MONITOR, change_status, command_ended
from agent_health.registry.judge_agents import Change, Circumstances, judge_agents
from agent_health.registry.monitor_row import excused_in, monitor_in, monitor_turned, with_hold, with_monitor
from agent_health.registry.notice_gap import (
    Reference,
    gap_jump_s,
    move_back_some,
    move_some_targets_back,
    note_gap,
    note_set_back,
)
from agent_health.registry.reap_leases import reap
from agent_health.registry.settings import RegistrySettings
from agent_health.registry.work_counts import Work, WorkCounts
from agent_health.storage import agents, commands, event_log, registry_row
from agent_health.storage.agents import StoredAgent
from agent_health.storage.database import Clock, Database, Transaction
from agent_health.storage.registry_row import RegistryRow

CHUNK = 2_000
"""Of agents, leases or commands that one transaction looks at: about 0.1 s of work if all of them change."""
MAX_CHUNKS = 1_000
"""In one sweep; the next one goes on."""
CLAIM_SECONDS = 5.0
"""How long other processes leave a sweep alone that does not go on: this one may have died."""
LOOKS_PER_CADENCE = 4
"""How often a held monitor counts who waits: all of them are judged anew for it."""
FAULT_SECONDS = 60.0
"""When an agent is tried again whose judgement failed through a fault of ours."""

_log = logging.getLogger("agent_health.registry")


@dataclass(frozen=True, slots=True)
class _Sweep:
    """What holds for all transactions of one sweep."""

    began_s: float
    """Whoever is due by now; those who are put off are not met again in the same sweep."""
    reference: Reference
    is_looking: bool = False
    """It is held, and this sweep meets all who wait."""
    set_back_s: float = 0.0
    """How far the clock was set back, below 0: then it has to be mended first."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """What became of some agents that were due."""

    is_last: bool
    waiting: tuple[float, ...] = ()
    """The last signs of those whom a hold keeps back, and who tell of us."""


class Sweeper:
    """Lets sweeps run, one after the other."""

    def __init__(
        self,
        database: Database,
        settings: RegistrySettings,
        monotonic_s: Clock,
        *,
        policy: MonitorPolicy = DEFAULT_POLICY,
        counts: WorkCounts | None = None,
    ) -> None:
        self._counts = counts or WorkCounts()
        self._database = database
        self._period_s = settings.sweep_seconds
        self._monotonic_s = monotonic_s
        self._policy = policy
        self._name = f"sweeper_{str(ULID()).lower()}"
        self._reference: Reference | None = None

    async def run(self) -> None:
        """Sweep until cancelled; a sweep that fails is followed by the next one."""
        while True:
            try:
                await self.sweep_once()
            except StoreUnavailable:
                # The database says so itself, once, and when it is over.
                self._counts.note(Work.SWEEPS_FAILED)
            except Exception:  # noqa: BLE001 - whatever fails, silence is looked for again
                self._counts.note(Work.SWEEPS_FAILED)
                _log.exception("a sweep failed; the next one follows")
            await asyncio.sleep(self._period_s)

    async def sweep_once(self) -> None:
        """Do all that is due by now, unless another process is just doing it."""
        began_s = time.perf_counter()
        sweep = await self._database.write(self._begin)
        if sweep is not None and sweep.set_back_s < 0:
            await self._mend(sweep.set_back_s)
            sweep = await self._database.write(self._begin)
        if sweep is None:
            return
        self._reference = sweep.reference
        waiting = await self._judge_all(sweep)
        if sweep.is_looking and waiting is not None:
            await self._database.write(partial(self._count, waiting=waiting))
        await self._end_all_expired()
        self._counts.note(Work.SWEEPS)
        self._counts.note(Work.SWEEP_NS, int((time.perf_counter() - began_s) * 1e9))

    def _begin(self, transaction: Transaction) -> _Sweep | None:
        """Claim the sweep and note the time in which nobody looked; None if somebody else has it."""
        row = registry_row.lock_if_free(transaction)
        if row is None:
            return None
        now_s, monotonic_s = transaction.now_s, self._monotonic_s()
        if row.sweeper != self._name and _is_claimed(row, now_s):
            return None
        reference = Reference(now_s, monotonic_s)
        last_s = now_s if row.swept_at_s is None else row.swept_at_s
        jump_s = gap_jump_s(now_s - last_s, self._reference, reference)
        if jump_s < 0:
            return _Sweep(now_s, reference, set_back_s=jump_s)
        row, drafts = note_gap(transaction, row, last_s, jump_s, self._period_s)
        monitor = monitor_in(row, now_s)
        self._store(transaction, row)
        event_log.append(transaction, drafts)
        is_looking = monitor.state is MonitorState.HELD and (
            self._look_number(monitor, last_s) < self._look_number(monitor, now_s)
        )
        return _Sweep(now_s, reference, is_looking=is_looking)

    async def _mend(self, set_back_s: float) -> None:
        """Bring back what lies ahead since the clock was set back; several processes may do so at once."""
        for move in (move_back_some, move_some_targets_back):
            after: int | None = 0
            while after is not None:
                after = await self._database.write(partial(move, by_s=set_back_s, after=after, limit=CHUNK))
        await self._database.write(partial(note_set_back, by_s=set_back_s))
        self._reference = None

    async def _judge_all(self, sweep: _Sweep) -> list[float] | None:
        """Judge all who are due; return the last signs of those who are held, None if another took over."""
        waiting: list[float] = []
        limit = CHUNK
        for _ in range(MAX_CHUNKS):
            try:
                judged = await self._database.write(partial(self._judge_some, sweep=sweep, limit=limit))
            except StoreUnavailable:
                raise
            except Exception:  # noqa: BLE001 - one bad record must not hide all others
                if limit == 1:
                    _log.exception("an agent cannot be judged; it is tried again later")
                    await self._database.write(partial(_put_off_first, due_at_s=sweep.began_s))
                limit = max(1, limit // 10)
                continue
            if judged is None:
                return None
            waiting += judged.waiting
            if judged.is_last:
                break
            limit = min(CHUNK, limit * 10)
        return waiting

    def _judge_some(self, transaction: Transaction, sweep: _Sweep, limit: int) -> _Judged | None:
        """Judge some who are due and carry out what follows; None if another process took over."""
        row = self._locked(transaction)
        if row is None:
            return None
        now_s = transaction.now_s
        excused = excused_in(row)
        alike = Circumstances(excused=excused.spans, holds=excused.holds)
        found = agents.due(transaction, sweep.began_s, limit)
        changes, unchanged = _parted(judge_agents(transaction, found, alike))
        agents.put_off(transaction, _deadlines(unchanged, now_s), sweep.began_s)
        if transaction.is_postgresql:
            # They were not locked, so that heartbeats need not wait for those of whom nothing follows.
            numbers = [change.agent.id for change in changes]
            locked = agents.find_many(transaction, numbers, to_change=True, skip_locked=True)
            changes, unchanged = _parted(judge_agents(transaction, locked, alike))
            agents.set_judge_at(transaction, _deadlines(unchanged, now_s))
        look = self._look(monitor_in(row, now_s), changes, now_s)
        held = [change for change in changes if not _may_go(change, look)]
        going = [change for change in changes if _may_go(change, look)]
        going += self._held_back(transaction, [change.agent for change in held], alike, look.monitor)
        change_status(transaction, [_with_later_deadline(change, now_s) for change in going], MONITOR)
        event_log.append(transaction, monitor_turned(look, MONITOR))
        is_last = len(found) < limit
        row = with_hold(with_monitor(row, look.monitor), look.excused, now_s)
        self._store(transaction, row, is_over=is_last and not sweep.is_looking)
        return _Judged(is_last, tuple(self._exits(look.monitor, held)))

    def _look(self, monitor: Monitor, changes: Sequence[Change], now_s: float) -> Look:
        """Ask whether those whom silence would take down may go."""
        if monitor.state is MonitorState.HELD:
            # Who waits is counted at the end of a sweep that meets all of them.
            return Look(monitor=monitor, is_held=True, cohort_before_s=monitor.cohort_before_s)
        return monitor_health.look(monitor, self._exits(monitor, changes), now_s, self._policy)

    def _exits(self, monitor: Monitor, changes: Sequence[Change]) -> list[float]:
        """Return the last signs of those whose silence may be ours."""
        silent = [(change.silent_since_s, change.heard_for_s) for change in changes]
        return [
            sign_s
            for sign_s, heard_for_s in silent
            if sign_s is not None and monitor_health.tells_of_us(monitor, sign_s, heard_for_s, self._policy)
        ]

    def _held_back(
        self, transaction: Transaction, held: Sequence[StoredAgent], alike: Circumstances, monitor: Monitor
    ) -> list[Change]:
        """Return what follows all the same for those whom silence may not take down; all are due together."""
        look_at_s = monitor.since_s + self._look_period_s * (
            self._look_number(monitor, transaction.now_s) + 1
        )
        changes = [
            replace(change, judge_at_s=look_at_s)
            for change in judge_agents(transaction, held, replace(alike, is_held=True))
        ]
        agents.set_judge_at(transaction, {change.agent.id: look_at_s for change in changes})
        return [change for change in changes if change.is_visible]

    def _count(self, transaction: Transaction, waiting: Sequence[float]) -> None:
        """Look at all who wait, now that the sweep has met them; the hold may be over."""
        row = self._locked(transaction)
        if row is None:
            return
        now_s = transaction.now_s
        monitor = monitor_in(row, now_s)
        if monitor.state is MonitorState.HELD:
            look = monitor_health.look(monitor, waiting, now_s, self._policy)
            row = with_hold(with_monitor(row, look.monitor), look.excused, now_s)
            event_log.append(transaction, monitor_turned(look, MONITOR))
        self._store(transaction, row, is_over=True)

    async def _end_all_expired(self) -> None:
        """End leases and commands whose time is over."""
        await reap(self._database)
        for _ in range(MAX_CHUNKS):
            if await self._database.write(_end_commands) < CHUNK:
                return

    def _locked(self, transaction: Transaction) -> RegistryRow | None:
        """Return the row for one more transaction of our sweep; None if another process took over or could.

        Whoever was stopped in the middle of a sweep, or waited for a database that was, begins anew: only
        then is the time in which nobody looked excused.
        """
        row = registry_row.lock(transaction)
        is_ours = row.sweeper == self._name and _is_claimed(row, transaction.now_s)
        return row if is_ours else None

    def _store(self, transaction: Transaction, row: RegistryRow, *, is_over: bool = False) -> None:
        """Write the row; it says that we are alive, and how long the sweep is ours."""
        now_s = transaction.now_s
        until_s = now_s if is_over else now_s + CLAIM_SECONDS
        row = replace(row, swept_at_s=now_s, sweeper=self._name, sweeper_until_s=until_s)
        registry_row.store(transaction, row)

    @property
    def _look_period_s(self) -> float:
        return self._policy.cadence_seconds / LOOKS_PER_CADENCE

    def _look_number(self, monitor: Monitor, at_s: float) -> int:
        """Return how many moments have passed since the hold began at which all who wait are counted."""
        return max(0, math.floor((at_s - monitor.since_s) / self._look_period_s))


def _is_claimed(row: RegistryRow, now_s: float) -> bool:
    # A claim that lasts longer than claims do was made before the clock was set back.
    return row.sweeper_until_s is not None and now_s < row.sweeper_until_s <= now_s + CLAIM_SECONDS


def _parted(judged: Iterable[Change]) -> tuple[list[Change], list[Change]]:
    """Part those of whom something follows from those who are merely to be judged again."""
    changes: list[Change] = []
    unchanged: list[Change] = []
    for change in judged:
        (changes if change.is_visible else unchanged).append(change)
    return changes, unchanged


def _may_go(change: Change, look: Look) -> bool:
    return change.silent_since_s is None or look.lets_go(change.silent_since_s)


def _later_s(judge_at_s: float | None, now_s: float) -> float | None:
    """Whoever was judged now is not due by now: a sweep meets nobody twice."""
    return None if judge_at_s is None else max(judge_at_s, math.nextafter(now_s, math.inf))


def _with_later_deadline(change: Change, now_s: float) -> Change:
    return replace(change, judge_at_s=_later_s(change.judge_at_s, now_s))


def _deadlines(unchanged: Iterable[Change], now_s: float) -> dict[int, float | None]:
    return {change.agent.id: _later_s(change.judge_at_s, now_s) for change in unchanged}


def _put_off_first(transaction: Transaction, due_at_s: float) -> None:
    agents.put_off_first(transaction, due_at_s, transaction.now_s + FAULT_SECONDS)


def _end_commands(transaction: Transaction) -> int:
    """End some commands whose time is over, and return how many."""
    unheard = commands.expired(transaction, transaction.now_s, CHUNK)
    commands.remove(transaction, [command.id for command in unheard])
    numbers = sorted({command.agent for command in unheard})
    whose = {agent.id: agent for agent in agents.find_many(transaction, numbers)} if numbers else {}
    drafts = [command_ended(command, whose[command.agent], MONITOR) for command in unheard]
    event_log.append(transaction, drafts)
    return len(unheard)
