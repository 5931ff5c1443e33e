"""Current work of an agent, and how to stop it."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from lifesign.agent.errors import WorkDropped
from lifesign.agent.handler import Handler, call, is_own_failure
from lifesign.agent.registration import Load
from lifesign.agent.work_sources import Assignment, AssignmentSource
from lifesign.domain.models.agents import MAX_TASKS
from lifesign.errors import InvalidValue

SOURCE_RETRY_SECONDS: Final = 1.0
"""Delay after a source of work failed."""

_log = logging.getLogger("lifesign.agent")


class WorkLoop:
    """Takes work from a source, up to the agent's capacity, and calls the handler for each piece of work."""

    def __init__(
        self, agent_id: str, source: AssignmentSource, handler: Handler | None, capacity: int | None
    ) -> None:
        self._agent_id = agent_id
        self._source = source
        self._handler = handler
        self._room = asyncio.Semaphore(MAX_TASKS if capacity is None else capacity)
        self._in_progress: dict[Assignment, _Doing] = {}
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def load(self) -> Load:
        """Return the number of pieces of work in progress, and the ids of their tasks."""
        ids = tuple(work.task_id for work in self._in_progress if work.task_id is not None)
        return Load(len(self._in_progress), ids)

    async def run(self) -> None:
        """Take work and start handlers until cancelled. Handlers that run then continue."""
        if self._handler is None:
            return
        while True:
            await self._may_begin.wait()
            await self._room.acquire()
            try:
                assignment = self._checked(await self._source.take())
            except BaseException as error:
                self._room.release()
                if not is_own_failure(error):
                    raise
                _log.exception("agent %s could not get work, and tries again", self._agent_id)
                await asyncio.sleep(SOURCE_RETRY_SECONDS)
                continue
            self._begin(self._handler, assignment)

    def pause(self) -> None:
        """Begin no new work until `resume` is called."""
        self._may_begin.clear()

    def resume(self) -> None:
        """Begin new work again, after `pause`."""
        self._may_begin.set()

    async def idle(self) -> None:
        """Wait until no handler runs."""
        await self._is_idle.wait()

    def drop_all(self, why: str) -> None:
        """Stop all running handlers. Each may still clean up in its `finally`."""
        for assignment in list(self._in_progress):
            self.drop(assignment, why)

    def drop(self, assignment: Assignment, why: str) -> None:
        """Stop the handler of one piece of work, if it runs."""
        doing = self._in_progress.get(assignment)
        if doing is not None and doing.dropped_because is None:
            doing.dropped_because = why
            if doing.call is not None:
                doing.call.cancel()

    def _checked(self, taken: object) -> Assignment:
        """Return what a source gave; raise InvalidValue if this agent cannot begin that."""
        if not isinstance(taken, Assignment):
            raise InvalidValue("result of take", type(taken).__name__, "an Assignment")
        if taken in self._in_progress:
            raise InvalidValue("result of take", taken.task_id, "an Assignment that is not in progress")
        return taken

    def _begin(self, handler: Handler, assignment: Assignment) -> None:
        self._is_idle.clear()
        doing = _Doing()
        self._in_progress[assignment] = doing
        # The loop itself would drop a task without another reference.
        doing.task = asyncio.create_task(self._do(handler, assignment, doing))

    async def _do(self, handler: Handler, assignment: Assignment, doing: "_Doing") -> None:
        try:
            if not self._may_begin.is_set():
                # The drain came while the source was waited for.
                doing.dropped_because = "the agent starts no work now"
            if doing.dropped_because is None:
                doing.call = asyncio.create_task(call(handler, assignment.task))
                await asyncio.wait([doing.call])
            await self._report_end(assignment, doing)
        except Exception:  # noqa: BLE001 - one piece of work must not end the others
            _log.exception("agent %s: the result of work could not be reported", self._agent_id)
        finally:
            del self._in_progress[assignment]
            self._room.release()
            if not self._in_progress:
                self._is_idle.set()

    async def _report_end(self, assignment: Assignment, doing: "_Doing") -> None:
        ended = doing.call
        failure = None if ended is None else _failure_of(ended)
        if doing.dropped_because is not None:
            # Also if it could not be stopped in time: it may have another holder.
            failure = WorkDropped(self._agent_id, doing.dropped_because)
        if failure is not None:
            await self._source.failed(assignment, failure)
        elif ended is not None:
            await self._source.finished(assignment, ended.result())


def _failure_of(call: "asyncio.Task[Any]") -> BaseException | None:
    """Return the exception of a handler; None if it has returned.

    CancelledError becomes a RuntimeError, as SystemExit does: only `drop` cancels a handler from outside.
    """
    try:
        return call.exception()
    except asyncio.CancelledError as error:
        failure = RuntimeError("the handler raised CancelledError")
        failure.__cause__ = error
        return failure


@dataclass(eq=False, slots=True)
class _Doing:
    """One running assignment."""

    task: "asyncio.Task[None] | None" = None
    call: "asyncio.Task[Any] | None" = None
    dropped_because: str | None = None
