"""Where does an agent's work come from?

The seam is `AssignmentSource`. One source is here: work that the embedding program hands in (`HandedIn`). The
other is a registry that gives out tasks (`task_source`).
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lifesign.agent.errors import WorkRefused

MAX_WAITING: Final = 1_000
"""Of pieces of work that were handed in and not begun."""


@dataclass(eq=False, slots=True)
class Assignment:
    """One piece of work, from whoever assigns it."""

    task: Any
    """What the handler is called with."""
    task_id: str | None = None
    """Under which the registry knows it; None if it knows nothing of it. Told with every heartbeat."""
    outcome: "asyncio.Future[Any] | None" = field(default=None, repr=False)
    """For a source that tells somebody what came of it."""


class AssignmentSource(Protocol):
    """Where work comes from, and who hears what became of it."""

    async def take(self) -> Assignment:
        """Wait for the next piece of work; asked only while the agent has room for it.

        Cancelled when the agent drains: what was given out by then and not returned must not be lost.
        """

    async def finished(self, assignment: Assignment, result: Any) -> None:
        """Hear that the handler returned this."""

    async def failed(self, assignment: Assignment, error: BaseException) -> None:
        """Hear that the handler raised, or was stopped (WorkDropped): the work is nobody's now."""

    def close(self, why: str) -> None:
        """Give out nothing any more: the agent leaves."""


class HandedIn:
    """Work that the embedding program hands in; it waits until there is room."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._waiting: deque[Assignment] = deque()
        self._has_come = asyncio.Event()
        self._closed_because = ""

    def put(self, task: Any, task_id: str | None = None) -> Assignment:
        """Take a piece of work; WorkRefused if the agent leaves, or too much waits already."""
        if self._closed_because:
            raise WorkRefused(self._agent_id, self._closed_because)
        if len(self._waiting) >= MAX_WAITING:
            raise WorkRefused(self._agent_id, f"{MAX_WAITING} pieces of work wait already")
        assignment = Assignment(task, task_id, asyncio.get_running_loop().create_future())
        self._waiting.append(assignment)
        self._has_come.set()
        return assignment

    async def take(self) -> Assignment:
        """Wait for the next that somebody still waits for."""
        while True:
            while self._waiting:
                assignment = self._waiting.popleft()
                if assignment.outcome is not None and not assignment.outcome.done():
                    return assignment
            self._has_come.clear()
            await self._has_come.wait()

    async def finished(self, assignment: Assignment, result: Any) -> None:
        """Tell whoever handed it in."""
        if assignment.outcome is not None and not assignment.outcome.done():
            assignment.outcome.set_result(result)

    async def failed(self, assignment: Assignment, error: BaseException) -> None:
        """Tell whoever handed it in."""
        if assignment.outcome is not None and not assignment.outcome.done():
            assignment.outcome.set_exception(error)

    def close(self, why: str) -> None:
        """Refuse what waits and what comes."""
        self._closed_because = why
        self.refuse_waiting(why)

    def refuse_waiting(self, why: str) -> None:
        """Begin nothing of what waits; whoever handed it in hears WorkRefused."""
        waiting, self._waiting = self._waiting, deque()
        for assignment in waiting:
            if assignment.outcome is not None and not assignment.outcome.done():
                assignment.outcome.set_exception(WorkRefused(self._agent_id, why))
