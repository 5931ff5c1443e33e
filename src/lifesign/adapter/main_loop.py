"""Life cycle of an adapter: its agent, its next task, and its end.

For the registry it is an agent: it registers, sends heartbeats, and drains. Its work is to run a command
under the lease of one task after another.
"""

import asyncio
import errno
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lifesign.adapter.process.orphan_cleanup import end_remaining
from lifesign.adapter.run_events import Emit, RunEvent, RunEventKind
from lifesign.adapter.run_outcome import RunOutcome
from lifesign.adapter.task_run import OpenTools, RunSettings, TaskRun
from lifesign.adapter.workspaces import RETENTION_SECONDS, Workspaces
from lifesign.agent.drain import DrainContext, leave
from lifesign.agent.heartbeat_loop import HeartbeatLoop
from lifesign.agent.profile import drain_work_s
from lifesign.agent.registration import Load, RegistrySession
from lifesign.client.registry import RegistryClient
from lifesign.client.registry_errors import Conflict, Gone, NotFound, RegistryError, is_final
from lifesign.client.registry_tasks import GrantedTask
from lifesign.domain.lifecycle.heartbeat_interval import next_beat_try_at_s
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.tasks.run_end import Stop
from lifesign.domain.tasks.task_states import task_in
from lifesign.domain.text.counts import plural

CLAIM_WAIT_SECONDS: Final = 20.0
"""Time that one request waits for a task."""
DRAIN_SECONDS: Final = 120.0
"""Time for the task in progress after the adapter gets a signal to end. Then the agent gets one."""
SLACK_SECONDS: Final = 30.0
"""Time beyond drain and grace to report the end of the run to the registry."""
PRUNE_EVERY_SECONDS: Final = 86_400.0
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger("lifesign.adapter")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSelection:
    """Which tasks an adapter claims, and how long it waits for one."""

    task_id: str | None = None
    """Claim only this task."""
    role_id: str | None = None
    """Only tasks that name the agent's pool, which this is."""
    is_once: bool = False
    """Run one task, and then leave."""
    wait_s: float | None = None
    """Maximum wait for a task; None for no limit."""


class Adapter:
    """Runs a command as an agent: registers it, claims its tasks, and starts the command for each."""

    def __init__(
        self,
        place: RegistrySession,
        open_client: Callable[[], RegistryClient],
        *,
        wanted: TaskSelection,
        settings: RunSettings,
        workspaces: Workspaces,
        emit: Emit,
        open_tools: OpenTools | None = None,
        keep_s: float = RETENTION_SECONDS,
        drain_s: float = DRAIN_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._place = place
        self._open_client = open_client
        self._wanted = wanted
        self._settings = settings
        self._workspaces = workspaces
        self._emit = emit
        self._open_tools = open_tools
        self._keep_s = keep_s
        self._drain_s = self._own_drain_s = drain_s
        self._chance = chance
        self._loop = HeartbeatLoop(place, self, self._load, renew_leases=self._renew_leases, chance=chance)
        self._tool_client: RegistryClient | None = None
        self._run: TaskRun | None = None
        self._leaves = asyncio.Event()
        self._is_asked = False
        """Whether a signal asked the adapter to drain, and not only the registry."""
        self._hurry = asyncio.Event()

    async def run(self) -> RunOutcome | None:
        """Run until no more work is wanted or a drain ends; return the last run's outcome, None without one.

        RegistryError if the registry does not accept the agent at the start, or refuses it tasks.
        """
        try:
            # A new incarnation ends the leases of the previous one: other agents may start its tasks.
            await self._end_remaining()
            record = await self._register()
            self._report(
                RunEventKind.REGISTERED,
                f"registered as {self._place.agent_id}, incarnation {record.incarnation}",
            )
            self._loop.resume(record.incarnation)
            # With other connections for tools: renewals of the lease must not wait for their requests.
            async with self._open_client() as client, self._open_client() as self._tool_client:
                outcome = await self._live(client)
        finally:
            await self._place.close()
        self._report(RunEventKind.LEFT, "the agent has left")
        return outcome

    async def _register(self) -> AgentRecord:
        """Begin a life, and end a former one only with a key that may work in its place."""
        await self._place.check_key()
        try:
            return await self._place.register(supersede=False)
        except Conflict:
            # It may have come while we looked.
            await self._place.check_key()
            return await self._place.register(supersede=True)

    async def _live(self, client: RegistryClient) -> RunOutcome | None:
        beating = asyncio.create_task(self._loop.run())
        pruning = asyncio.create_task(self._prune_daily())
        working = asyncio.create_task(self._work(client))
        try:
            await self._first(working, self._leaves.wait())
            self._leaves.set()
            await self._leave(working)
        finally:
            for task in (working, pruning, beating):
                task.cancel()
            await asyncio.gather(working, pruning, beating, return_exceptions=True)
        return None if working.cancelled() else working.result()

    def drain(self, why: str) -> None:
        """Claim no more tasks, let the run end, and deregister. If called again, end the run at once.

        If the registry has requested a drain before, the first call only limits it to the adapter's own time.
        """
        if self._is_asked:
            self._report(RunEventKind.LEAVING, f"ends at once: {why}")
            self._hurry.set()
            return
        self._is_asked = True
        if self._leaves.is_set():
            self._report(RunEventKind.LEAVING, f"drains already: {why}")
            asyncio.get_running_loop().call_later(self._own_drain_s, self._end_drain_time)
        else:
            self.on_drain_requested(why, None)

    # Callbacks of the heartbeat loop.

    def on_drain_requested(self, why: str, timeout_s: float | None) -> None:
        """Drain at the registry's request.

        `timeout_s`, if not None, limits the whole drain: also the grace period of the process and the
        report to the registry.
        """
        if not self._leaves.is_set():
            grace_s = self._settings.grace_s
            if timeout_s is not None:
                self._drain_s = max(0.0, drain_work_s(timeout_s) - grace_s)
            time = f"{self._drain_s:g} s to end, and {grace_s:g} s after the signal"
            rest = "" if self._run is None else f"; {self._run.task_id} has {time}"
            self._report(RunEventKind.LEAVING, f"claims no further task: {why}{rest}")
            self._leaves.set()

    def on_registered(self, incarnation: int) -> None:
        """Report the new incarnation of the agent as an event."""
        self._report(
            RunEventKind.REGISTERED, f"registered as {self._place.agent_id}, incarnation {incarnation}"
        )

    def on_incarnation_lost(self, why: str) -> None:
        """Stop the current run: another agent may hold its task by now (RFC-0016 4.6)."""
        if self._run is not None:
            self._run.stop(Stop.LOST, f"the registry ended this incarnation: {why}")

    def on_standby(self) -> None:
        """Stop the current run, and start none while another process is registered as this agent."""
        self.on_incarnation_lost("another process is registered as this agent")

    def _renew_leases(self) -> None:
        if self._run is not None:
            self._run.renew_now()

    def _load(self) -> Load:
        return Load() if self._run is None else Load(1, (self._run.task_id,))

    async def _work(self, client: RegistryClient) -> RunOutcome | None:
        outcome, failures = None, 0
        while (granted := await self._next(client)) is not None:
            self._say_granted(granted)
            self._run = TaskRun(
                client,
                granted,
                self._settings,
                self._workspaces,
                self._emit,
                open_tools=self._open_tools,
                tool_client=self._tool_client,
                incarnation=self._place.incarnation,
                hurry=self._hurry,
                chance=self._chance,
            )
            try:
                outcome = await self._run.work()
            finally:
                self._run = None
            if self._wanted.is_once or not outcome.could_start:
                return outcome
            failures = 0 if outcome.is_done else failures + 1
            if failures and not await self._pause(failures):
                break
        return outcome

    async def _next(self, client: RegistryClient) -> GrantedTask | None:
        """Wait for a task; None if none came in time, or if the agent leaves."""
        now_s = asyncio.get_running_loop().time
        give_up_s = None if self._wanted.wait_s is None else now_s() + self._wanted.wait_s
        self._report(RunEventKind.WAITING, f"waiting for {self._wanted.task_id or 'a task'}")
        failures = 0
        while True:
            if not await self._wait_for_room(give_up_s):
                return None
            left_s = CLAIM_WAIT_SECONDS if give_up_s is None else max(0.0, give_up_s - now_s())
            try:
                granted = await self._unless_leaving(self._claim(client, min(CLAIM_WAIT_SECONDS, left_s)))
            except RegistryError as error:
                failures += 1
                await self._after(client, error, is_first=failures == 1)
                if not await self._pause(failures, error.retry_after_s):
                    return None
            else:
                if granted is not None or self._leaves.is_set():
                    return granted
                failures = 0
            if give_up_s is not None and now_s() >= give_up_s:
                return None

    async def _wait_for_room(self, give_up_s: float | None) -> bool:
        """Wait until a workspace can be created; return False if it is time to give up, or the agent leaves.

        A task that is claimed without room for its workspace loses an attempt.
        """
        failures = 0
        while True:
            try:
                await asyncio.to_thread(self._workspaces.check_room)
            except OSError as error:
                failures += 1
                if failures == 1:
                    hint = ""
                    if error.errno in _NO_SPACE:
                        hint = f"; hint: remove workspaces of failed runs from {self._workspaces.root}"
                    what = f"claims no task: could not create a workspace: {error}{hint}"
                    self._report(RunEventKind.WAITING, what)
            else:
                return True
            if not await self._pause(failures):
                return False
            if give_up_s is not None and asyncio.get_running_loop().time() >= give_up_s:
                return False

    async def _claim(self, client: RegistryClient, wait_s: float) -> GrantedTask | None:
        await self._loop.is_registered.wait()
        incarnation = self._place.incarnation
        granted = await client.tasks.claim(
            task_id=self._wanted.task_id,
            role_id=self._wanted.role_id,
            wait_seconds=wait_s,
            incarnation=incarnation,
        )
        if granted is not None and self._place.incarnation != incarnation:
            late = f"the grant of {granted.task.task_id} came late, after the end of its incarnation"
            self._report(RunEventKind.REGISTRY, late)
            return None
        return granted

    async def _after(self, client: RegistryClient, error: RegistryError, *, is_first: bool) -> None:
        """Handle an error of a claim; raise errors that only people can resolve."""
        if isinstance(error, Gone) or error.code == "agent_not_found":
            # The next heartbeat finds the same, and registers again.
            await self._loop.send_heartbeat()
        elif error.code == "too_many":
            await self._give_back(client)
        elif is_final(error) and error.code != "agent_draining":
            raise error
        elif is_first:
            self._report(RunEventKind.REGISTRY, f"cannot claim a task, and tries again: {error}")

    async def _give_back(self, client: RegistryClient) -> None:
        """Release leases on tasks that this agent holds without knowing: the answer to its claim was lost."""
        with suppress(RegistryError):
            leases = await client.leases.list(holder=self._place.agent_id)
            for lease in leases.leases:
                if task_in(lease.resource) is None:
                    continue
                self._report(RunEventKind.REGISTRY, f"releases the unknown lease of {lease.resource}")
                with suppress(Conflict, Gone, NotFound):
                    await client.leases.release(lease.lease_id, incarnation=self._place.incarnation)

    async def _leave(self, working: "asyncio.Task[RunOutcome | None]") -> None:
        async def wind_up() -> None:
            await asyncio.wait({working}, timeout=self._drain_s)
            if not working.done():
                self._end_drain_time()
            await asyncio.wait({working})

        leaving = DrainContext(
            loop=self._loop,
            place=self._place,
            idle=wind_up,
            drop=self._stop_at_once,
            on_drain=None,
            hurry=self._hurry,
        )
        await leave(leaving, self._drain_s + self._settings.grace_s + SLACK_SECONDS)

    def _end_drain_time(self) -> None:
        if self._run is not None:
            self._run.stop(Stop.DRAIN, "the adapter ends, and the time to drain is over")

    def _stop_at_once(self, why: str) -> None:
        self._hurry.set()
        if self._run is not None:
            self._run.stop(Stop.DRAIN, why)

    async def _end_remaining(self) -> None:
        """End the remaining processes of runs whose adapter was killed, with their watcher."""
        try:
            ended = await end_remaining(await asyncio.to_thread(self._workspaces.abandoned_runs))
        except OSError as error:
            _log.warning("could not search for processes of earlier runs: %s", error)
            return
        if ended.killed:
            who, verb = plural(ended.killed, "process", "processes"), plural(ended.killed, "is", "are")
            text = f"{ended.killed} {who} of runs whose adapter was killed went on, and {verb} killed"
            self._report(RunEventKind.PRUNED, text)

    async def _prune_daily(self) -> None:
        while True:
            await self._end_remaining()
            try:
                removed = await asyncio.to_thread(self._workspaces.prune, self._keep_s)
            except OSError as error:
                _log.warning("could not remove old workspaces: %s", error)
            else:
                if removed:
                    old = plural(removed, "workspace of a failed run was", "workspaces of failed runs were")
                    self._report(RunEventKind.PRUNED, f"removed {removed} {old}")
            await asyncio.sleep(PRUNE_EVERY_SECONDS)

    async def _pause(self, failures: int, retry_after_s: float | None = None) -> bool:
        """Wait longer after each failure; return False if the agent leaves during the wait."""
        now_s = asyncio.get_running_loop().time()
        interval_s = self._place.profile.rhythm.interval_seconds
        due_s = next_beat_try_at_s(now_s, interval_s, failures, self._chance(), retry_after_s)
        await self._unless_leaving(asyncio.sleep(due_s - now_s))
        return not self._leaves.is_set()

    async def _unless_leaving(self, function: Awaitable[T]) -> T | None:
        """Return the result of a function; None if the agent leaves before."""
        doing = asyncio.ensure_future(function)
        try:
            await self._first(doing, self._leaves.wait())
            return doing.result() if doing.done() else None
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def _first(self, doing: "asyncio.Future[T]", other: Awaitable[object]) -> None:
        """Wait until the one or the other is done."""
        waiting: asyncio.Future[object] = asyncio.ensure_future(other)
        both: set[asyncio.Future[Any]] = {doing, waiting}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    def _report(self, what: RunEventKind, text: str) -> None:
        self._emit(RunEvent(what=what, text=text))

    def _say_granted(self, granted: GrantedTask) -> None:
        task, token = granted.task, granted.lease.fencing_token
        goes_on = "" if granted.latest_report is None else ", continues from its latest report"
        self._emit(
            RunEvent(
                what=RunEventKind.GRANTED,
                text=f"{task.title} (attempt {task.attempts}, token {token}{goes_on})",
                task_id=task.task_id,
                run_id=granted.run_id,
                fencing_token=token,
            )
        )
