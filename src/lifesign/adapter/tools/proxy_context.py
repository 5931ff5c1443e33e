"""Facts about the run that the tool proxy serves."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from lifesign.adapter.process.run_deadline import RunDeadline
from lifesign.client.registry import RegistryClient
from lifesign.client.registry_tasks import HeldRun


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """A call of `mark_complete` or `request_human_help` that the registry has not confirmed."""

    tool: str
    idempotency_key: str = ""
    output: Mapping[str, Any] | None = None
    """Result of the task; None in a request for help."""
    reason: str = ""
    """Text of a request for help."""
    report: Mapping[str, Any] | None = None
    """Last progress report that goes with it."""
    refusal: str = ""
    """Why the call was refused; empty if the same call may still succeed, or may have been executed."""


def _ignore(_request: EndRequest) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProxyContext:
    """The run whose tools a proxy offers, with the client and the callbacks that the proxy needs."""

    registry: RegistryClient
    run: HeldRun
    is_held: Callable[[], bool]
    """Whether the lease is held now, by the holder's own deadline; if not, nothing is executed."""
    ending: Callable[[EndRequest], None] = _ignore
    """Called for each call that shall end the run, before it is sent, and again if it is refused."""
    ended: Callable[[str], None]
    """Told `mark_complete` or `request_human_help` once that tool has ended the run."""
    budget_gone: Callable[[], None]
    """Told when a metered call was refused for the budget."""
    progress: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context that is entered while a call of the agent runs, so that the agent does not count as hung."""
    run_deadline: RunDeadline | None = None
    """Timer of the tool servers, which also end with the lease; None without any."""
    agent_uid: int | None = None
    """Number of the agent's user; None: the user of this process."""
