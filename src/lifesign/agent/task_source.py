"""Work from the registry's tasks (protocol 6).

While the agent has capacity it claims a task by long polling; it keeps the lease while the handler works; it
submits the result, or reports the failure. After the loss of a lease it stops: the task may have another
holder.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lifesign.agent.claimed_task import ClaimedTask, output_of
from lifesign.agent.errors import WorkDropped
from lifesign.agent.work_sources import Assignment
from lifesign.client.lease_keeper import LeaseKeeper, LossKind
from lifesign.client.registry import RegistryClient
from lifesign.client.registry_errors import (
    Conflict,
    Gone,
    NotFound,
    RegistryError,
    is_final,
    is_run_over,
    may_have_been_executed,
)
from lifesign.client.registry_tasks import GrantedTask, HeldRun
from lifesign.domain.lifecycle.heartbeat_interval import next_beat_try_at_s
from lifesign.domain.models.tasks import detail_of
from lifesign.domain.tasks.run_end import ReportAttempts
from lifesign.domain.tasks.task_states import ExitReason, task_in
from lifesign.domain.text.error_line import error_line
from lifesign.errors import InvalidValue

WAIT_SECONDS: Final = 25.0
"""Time that one claim waits for a task."""
MIN_PAUSE_SECONDS: Final = 1.0
"""Minimum time between two claims that are answered at once."""
RETRY_SECONDS: Final = 15.0
"""Maximum wait before the next request to a registry that did not answer."""

NOTICE_SECONDS: Final = 5.0
"""Time before the deadline of a lease that cannot be renewed at which its handler is cancelled.

A fifth of the lease if that is shorter.
"""

REFUSED_DETAIL: Final = "the run failed, and a report with its error text was refused"

_log = logging.getLogger("lifesign.agent")


class TaskSession(Protocol):
    """The agent's registration, as a task source needs it: incarnation, and clients of the registry."""

    incarnation: int | None
    client: RegistryClient
    handler_client: RegistryClient


@dataclass(frozen=True, slots=True)
class _KeptTask:
    """A task in progress, and the keeper of its lease."""

    task: ClaimedTask
    keeper: LeaseKeeper
    keeping: "asyncio.Task[None]"


class TaskSource:
    """Claims tasks of the registry for one agent, and hands in their results; an `AssignmentSource`."""

    def __init__(
        self,
        agent_id: str,
        place: TaskSession,
        registered: Callable[[], Awaitable[None]],
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Take tasks for an agent once it is `registered`."""
        self._agent_id = agent_id
        self._place = place
        self._registered = registered
        self._chance = chance
        self._kept: dict[Assignment, _KeptTask] = {}
        self._last_reported = ""
        self._may_be_granted_until_s: float | None = None
        """Time until which a claim whose answer was lost may get a task; None if no answer was lost."""
        self._is_closed = asyncio.Event()
        self.drop: Callable[[Assignment, str], None] = _is_never_dropped
        """Stops the work of a lost lease."""

    async def take(self) -> Assignment:
        """Wait until the registry grants a task to the agent, and return the task."""
        failures = 0
        while True:
            await self._registered()
            incarnation = self._place.incarnation
            if self._may_be_granted_until_s is not None:
                await self._give_back(incarnation)
            requested_at_s = _now_s()
            try:
                granted = await self._place.client.tasks.claim(
                    wait_seconds=WAIT_SECONDS, incarnation=incarnation
                )
            except RegistryError as error:
                failures += 1
                self._log_claims(error)
                if may_have_been_executed(error):
                    # A proxy may keep a claim open after its own answer.
                    self._may_be_granted_until_s = requested_at_s + WAIT_SECONDS
                await _sleep_until(self._retry_at_s(failures, error))
                continue
            failures = 0
            self._log_claims(None)
            if granted is None:
                await _sleep_until(requested_at_s + MIN_PAUSE_SECONDS)
            elif self._place.incarnation != incarnation:
                _log.warning(
                    "agent %s: the grant of task %s came late, after the end of its incarnation",
                    self._agent_id,
                    granted.task.task_id,
                )
            elif (assignment := await self._keep(granted, incarnation)) is not None:
                return assignment

    async def finished(self, assignment: Assignment, result: Any) -> None:
        """Submit the result of a task.

        During an outage of the registry it is retried while the lease is held. If the result is not accepted,
        the run is released as a crash.
        """
        kept = self._kept[assignment]
        try:
            if not kept.task.has_ended:
                await self._complete(kept, result)
        finally:
            await self._stop_keeping(assignment)

    async def failed(self, assignment: Assignment, error: BaseException) -> None:
        """Release the task of a failed or stopped handler, unless the agent no longer holds the task.

        During an outage of the registry, a failure is reported again while the lease is held.
        """
        kept = self._kept[assignment]
        try:
            is_ours = kept.keeper.is_held() and not kept.task.has_ended
            if isinstance(error, WorkDropped):
                _log.warning("agent %s, task %s: %s", self._agent_id, kept.task.task_id, error.why)
                reason, detail = ExitReason.KILLED, error.why
            else:
                _log.error("agent %s: task %s failed", self._agent_id, kept.task.task_id, exc_info=error)
                reason, detail = ExitReason.CRASH, error_line(error)
            if is_ours:
                await self._release(kept, reason, detail)
        finally:
            await self._stop_keeping(assignment)

    def close(self, why: str) -> None:  # noqa: ARG002 - only work that has not begun would need it
        """Try to hand in each waiting result at once: the agent is about to end."""
        self._is_closed.set()

    def renew_leases(self) -> None:
        """Renew the leases of all tasks in progress at once, to learn which of them the agent still holds."""
        for kept in self._kept.values():
            kept.keeper.renew_now()

    async def _give_back(self, incarnation: int | None) -> None:
        """Release the leases on tasks whose grant was lost: no handler works on these tasks."""
        is_last = self._may_be_granted_until_s is None or _now_s() >= self._may_be_granted_until_s
        known = {None, *(assignment.task_id for assignment in self._kept)}
        leases = self._place.client.leases
        with suppress(RegistryError):
            for lease in (await leases.list(holder=self._agent_id)).leases:
                if task_in(lease.resource) not in known:
                    _log.warning("agent %s releases the unknown lease of %s", self._agent_id, lease.resource)
                    with suppress(Conflict, Gone, NotFound):
                        await leases.release(lease.lease_id, incarnation=incarnation)
            if is_last:
                self._may_be_granted_until_s = None

    async def _keep(self, granted: GrantedTask, incarnation: int | None) -> Assignment | None:
        """Start to keep a task's lease; None if the lease had already expired."""
        run = HeldRun.of(granted, incarnation)
        leases = self._place.client.leases
        keeper = LeaseKeeper.of_task(leases, granted, incarnation=incarnation, grace_s=NOTICE_SECONDS)
        task = ClaimedTask(self._place.handler_client, granted, run, keeper, chance=self._chance)
        assignment = Assignment(task, run.task_id)
        keeping = asyncio.create_task(self._run(keeper, assignment), name=f"lease of {run.task_id}")
        kept = _KeptTask(task, keeper, keeping)
        try:
            is_held = await keeper.wait_until_held()
        except asyncio.CancelledError:
            keeper.stop_keeping()
            await self._release(kept, ExitReason.KILLED, "the agent leaves")
            raise
        if not is_held:
            await keeping
            return None
        self._kept[assignment] = kept
        return assignment

    async def _run(self, keeper: LeaseKeeper, assignment: Assignment) -> None:
        await keeper.run()
        loss = keeper.loss
        if loss is not None and loss.kind is not LossKind.STOPPED:
            self.drop(assignment, f"the lease is lost: {loss}")

    async def _complete(self, kept: _KeptTask, result: Any) -> None:
        attempts = ReportAttempts()
        while True:
            try:
                await self._place.client.tasks.mark_complete(kept.task.run, output_of(result))
            except InvalidValue as error:
                what = f"the returned value is not a valid output: {error}"
                _log.error("agent %s, task %s: %s", self._agent_id, kept.task.task_id, what)
                await self._release(kept, ExitReason.CRASH, what)
            except RegistryError as error:
                attempts.note_failure(kept.keeper.deadline_s)
                is_refused = is_final(error) or attempts.is_hopeless
                if not is_refused and kept.keeper.is_held():
                    what = "could not be submitted, and is submitted again"
                    if attempts.failures == 1:
                        self._log_result(kept, what, error)
                    await self._wait_to_hand_in(attempts.failures, error)
                    continue
                what = "was refused" if is_refused else "is lost with its lease"
                self._log_result(kept, what, error)
                if is_refused and kept.keeper.is_held() and not is_run_over(error):
                    await self._release(kept, ExitReason.CRASH, f"the result was refused: {error}")
            except Exception as error:  # noqa: BLE001 - the methods of a returned object may raise anything
                what = f"the returned value cannot be read: {error_line(error)}"
                _log.exception("agent %s, task %s: %s", self._agent_id, kept.task.task_id, what)
                await self._release(kept, ExitReason.CRASH, what)
            return

    def _log_result(self, kept: _KeptTask, what: str, error: RegistryError) -> None:
        _log.warning("agent %s: the result of task %s %s: %s", self._agent_id, kept.task.task_id, what, error)

    async def _release(self, kept: _KeptTask, reason: ExitReason, detail: str) -> None:
        """End the run of a task.

        During an outage of the registry, a crash is reported again while the lease is held: a run that ends
        with its lease does not count as an attempt. If the detail is not accepted, the crash is reported
        without it.
        """
        attempts = ReportAttempts()
        while True:
            try:
                await self._place.client.tasks.release(kept.task.run, reason.value, detail=detail_of(detail))
            except RegistryError as error:
                attempts.note_failure(kept.keeper.deadline_s)
                is_refused = is_final(error) or attempts.is_hopeless
                is_repeated = reason is ExitReason.CRASH and kept.keeper.is_held() and not is_run_over(error)
                if is_repeated and not is_refused:
                    await self._wait_to_hand_in(attempts.failures, error)
                    continue
                if is_repeated and detail != REFUSED_DETAIL:
                    detail, attempts = REFUSED_DETAIL, ReportAttempts()
                    continue
                _log.info(
                    "agent %s could not release task %s, whose lease ends when it expires: %s",
                    self._agent_id,
                    kept.task.task_id,
                    error,
                )
            return

    async def _wait_to_hand_in(self, failures: int, error: RegistryError) -> None:
        """Wait before the next try to report the end of a run; the beginning of a drain ends the wait."""
        due_s = self._retry_at_s(failures, error)
        if self._is_closed.is_set():
            await _sleep_until(due_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                await self._is_closed.wait()

    def _retry_at_s(self, failures: int, error: RegistryError) -> float:
        """Return the time of the next try after so many failures in a row."""
        return next_beat_try_at_s(_now_s(), RETRY_SECONDS, failures, self._chance(), error.retry_after_s)

    async def _stop_keeping(self, assignment: Assignment) -> None:
        kept = self._kept.pop(assignment)
        kept.keeper.stop_keeping()
        await kept.keeping

    def _log_claims(self, error: RegistryError | None) -> None:
        """Log that no task can be claimed, once for each reason."""
        text = "" if error is None else type(error).__name__ + error.code
        if error is not None and text != self._last_reported:
            _log.warning("agent %s: could not claim a task, and tries again: %s", self._agent_id, error)
        self._last_reported = text


def _is_never_dropped(_assignment: Assignment, _why: str) -> None:
    """Stop nothing: there is no work yet."""


async def _sleep_until(due_s: float) -> None:
    await asyncio.sleep(max(0.0, due_s - _now_s()))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
