"""Does the registry trust its own eyes? Asked from outside (protocol 4, "The monitor itself may be sick")."""

from agent_health.client.registry_connection import Question, RegistryConnection, path_of
from agent_health.monitor_record import MonitorRecord


class RegistryMonitor:
    """`client.monitor`."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def get(self) -> MonitorRecord:
        """Return whether silence is believed, and what speaks against it."""
        question = Question(method="GET", path=path_of("monitor"), may_repeat=True)
        return await self._connection.ask_for(MonitorRecord, question)

    async def release(self) -> MonitorRecord:
        """End a hold: silence is believed again. Nothing happens if there is none."""
        question = Question(method="POST", path=path_of("monitor", "release"))
        return await self._connection.ask_for(MonitorRecord, question)
