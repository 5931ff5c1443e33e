"""Events of runs and of their agent."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class RunEventKind(StrEnum):
    """Kind of an event of `lifesign run`."""

    REGISTERED = "registered"
    WAITING = "waiting"
    """The adapter waits for a task."""
    GRANTED = "granted"
    STARTED = "started"
    """The agent's process is there."""
    STOPPING = "stopping"
    """The agent's process is asked to end, with the reason."""
    COMPLETED = "completed"
    HELP_REQUESTED = "help_requested"
    """A run ended with a request for help; people have its task now."""
    FAILED = "failed"
    """A run ended without a result; the registry decides about its task."""
    UNREPORTED = "unreported"
    """The end of a run could not be reported to the registry, which notices it when the lease expires."""
    REGISTRY = "registry"
    """Something about asking it."""
    TOOLS = "tools"
    """An event of the tool servers, or of their callers."""
    PRUNED = "pruned"
    OMITTED = "omitted"
    """Lines that were not read in time."""
    LEAVING = "leaving"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One event of `lifesign run`, for people and for programs.

    It may quote foreign text: escape it when you show it.
    """

    what: RunEventKind
    text: str
    task_id: str | None = None
    run_id: str | None = None
    fencing_token: int | None = None
    exit_reason: str | None = None
    exit_code: int | None = None
    workspace: str | None = None


Emit = Callable[[RunEvent], None]


@dataclass(frozen=True, slots=True)
class CalledServer:
    """A tool server that is called: a library that does so knows neither its name nor its secrets."""

    name: str
    without_secrets: Callable[[str], str]
    """Removes the secrets that the tools file gives to the server: the server may send them back."""


CALLED_SERVER: Final[ContextVar[CalledServer | None]] = ContextVar("CALLED_SERVER", default=None)
"""The tool server that is called here, for the log."""
