"""The monitor of a registry, from outside (protocol 4, "The monitor itself may be sick")."""

from agent_health.client.registry_connection import Question, RegistryConnection, path_of, query_of
from agent_health.monitor_health import Track
from agent_health.monitor_record import MonitorRecord


class RegistryMonitor:
    """`client.monitor`."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def get(self) -> MonitorRecord:
        """Return whether silence is believed, and of which agents nothing is known."""
        question = Question(method="GET", path=path_of("monitor"), may_repeat=True)
        return await self._connection.ask_for(MonitorRecord, question)

    async def release(self, track: Track | None = None) -> MonitorRecord:
        """End the suspension of a track, or of both: silence is believed again. Else nothing happens."""
        query = query_of(track=track)
        question = Question(method="POST", path=path_of("monitor", "release"), query=query)
        return await self._connection.ask_for(MonitorRecord, question)
