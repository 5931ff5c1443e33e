"""Facts about the run that the tool proxy serves."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from lifesign.adapter.process.run_deadline import RunDeadline
from lifesign.client.registry import RegistryClient
from lifesign.client.registry_tasks import HeldRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProxyContext:
    """The run whose tools a proxy offers, with the client and the callbacks that the proxy needs."""

    registry: RegistryClient
    run: HeldRun
    is_held: Callable[[], bool]
    """Whether the lease is held now, by the holder's own deadline; if not, nothing is executed."""
    ended: Callable[[str], None]
    """Told `mark_complete` or `request_human_help` once that tool has ended the run."""
    budget_gone: Callable[[], None]
    """Told when a metered call was refused for the budget."""
    progress: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context that is entered while a call of the agent runs, so that the agent does not count as hung."""
    run_deadline: RunDeadline | None = None
    """Timer of the tool servers, which also end with the lease; None without any."""
