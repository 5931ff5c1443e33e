"""Sources of an agent's work.

The interface is `AssignmentSource`. This module has the source for work that the embedding program submits
(`HandedIn`). The other is a registry's tasks (`task_source`).
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pydantic import TypeAdapter, ValidationError

from lifesign.agent.errors import WorkRefused
from lifesign.domain.models.base import TaskId
from lifesign.errors import InvalidValue

MAX_WAITING: Final = 1_000
"""Maximum of submitted assignments that have not begun."""

_TASK_ID: Final = TypeAdapter[str | None](TaskId | None)


@dataclass(eq=False, slots=True)
class Assignment:
    """One piece of work for a handler, which may be a task of the registry.

    Raise InvalidValue for an id that the registry would not accept: it would refuse the heartbeats.
    """

    task: Any
    """Argument of the handler."""
    task_id: str | None = None
    """Id of the task in the registry, sent with every heartbeat; None if the work is no task of the registry.
    """
    outcome: "asyncio.Future[Any] | None" = field(default=None, repr=False)
    """Result, for a source that returns it to a caller."""

    def __post_init__(self) -> None:
        try:
            _TASK_ID.validate_python(self.task_id)
        except ValidationError:
            expected = "1 to 256 characters without spaces and control characters"
            raise InvalidValue("task_id", self.task_id, expected) from None


class AssignmentSource(Protocol):
    """Gives work to an agent, and gets the results of that work."""

    async def take(self) -> Assignment:
        """Wait for the next assignment; called only while the agent has capacity.

        Cancelled when the agent drains: an assignment that was taken by then and not returned must not be
        lost.
        """

    async def finished(self, assignment: Assignment, result: Any) -> None:
        """Called when the handler has returned `result`."""

    async def failed(self, assignment: Assignment, error: BaseException) -> None:
        """Called when the handler raised `error`, or was stopped (WorkDropped)."""

    def close(self, why: str) -> None:
        """Let `take` give out no more work, because the agent is about to end."""


class HandedIn:
    """Source of the work that the program itself passes to `AgentRunner.assign`."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._waiting: deque[Assignment] = deque()
        self._has_come = asyncio.Event()
        self._closed_because = ""

    def put(self, task: Any, task_id: str | None = None) -> Assignment:
        """Queue a piece of work; WorkRefused if the agent is about to end, or the queue is full."""
        if self._closed_because:
            raise WorkRefused(self._agent_id, self._closed_because)
        if len(self._waiting) >= MAX_WAITING:
            raise WorkRefused(self._agent_id, f"{MAX_WAITING} assignments are waiting already")
        assignment = Assignment(task, task_id, asyncio.get_running_loop().create_future())
        self._waiting.append(assignment)
        self._has_come.set()
        return assignment

    async def take(self) -> Assignment:
        """Wait for the next assignment whose caller still waits."""
        while True:
            while self._waiting:
                assignment = self._waiting.popleft()
                if assignment.outcome is not None and not assignment.outcome.done():
                    return assignment
            self._has_come.clear()
            await self._has_come.wait()

    async def finished(self, assignment: Assignment, result: Any) -> None:
        """Pass the handler's result to the caller of `assign`."""
        if assignment.outcome is not None and not assignment.outcome.done():
            assignment.outcome.set_result(result)

    async def failed(self, assignment: Assignment, error: BaseException) -> None:
        """Raise the handler's error in the caller of `assign`."""
        if assignment.outcome is not None and not assignment.outcome.done():
            assignment.outcome.set_exception(error)

    def close(self, why: str) -> None:
        """Refuse waiting and new work, because the agent is about to end."""
        self._closed_because = why
        self.refuse_waiting(why)

    def refuse_waiting(self, why: str) -> None:
        """Refuse all waiting assignments; their callers get WorkRefused."""
        waiting, self._waiting = self._waiting, deque()
        for assignment in waiting:
            if assignment.outcome is not None and not assignment.outcome.done():
                assignment.outcome.set_exception(WorkRefused(self._agent_id, why))
