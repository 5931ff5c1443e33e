"""Does the registry trust its own eyes? Asked from outside (protocol 4, "The monitor itself may be sick")."""

from pydantic import BaseModel

from agent_health.client.registry_connection import Question, RegistryConnection, path_of
from agent_health.document import Time
from agent_health.monitor_health import HoldCause, MonitorState


class Illness(BaseModel):
    """A prober that calls itself ill."""

    prober: str
    until: Time
    why: str


class ExcusedSpan(BaseModel):
    """Time that is nobody's silence."""

    begin: Time
    end: Time


class MonitorView(BaseModel):
    """What the registry knows of its own eyes."""

    state: MonitorState
    since: Time
    held_because: HoldCause | None = None
    exits: int
    """How many silence took down in this cadence; while held, how many wait."""
    limit: int
    """How many in one cadence are believed."""
    baseline: float
    """The mean number per cadence when all is well."""
    illnesses: list[Illness] = []
    excused: list[ExcusedSpan] = []
    swept_at: Time | None = None
    """When a sweep last ran; absent before the first one."""


class RegistryMonitor:
    """`client.monitor`."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def get(self) -> MonitorView:
        """Return whether silence is believed, and what speaks against it."""
        question = Question(method="GET", path=path_of("monitor"), may_repeat=True)
        return await self._connection.ask_for(MonitorView, question)

    async def release(self) -> MonitorView:
        """End a hold: silence is believed again. Nothing happens if there is none."""
        question = Question(method="POST", path=path_of("monitor", "release"))
        return await self._connection.ask_for(MonitorView, question)
