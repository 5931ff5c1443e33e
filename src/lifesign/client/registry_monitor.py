"""The monitor of a registry, from outside (protocol 4, "The monitor itself may be sick")."""

from lifesign.client.registry_connection import Question, RegistryConnection, body_of, path_of, query_of
from lifesign.domain.lifecycle.verdict_suspension import Track
from lifesign.domain.models.monitor import Confirmation, Confirmed, MonitorRecord


class RegistryMonitor:
    """Requests about the monitoring itself (`client.monitor`)."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def get(self) -> MonitorRecord:
        """Return whether verdicts are suspended, and the agents without current evidence."""
        question = Question(method="GET", path=path_of("monitor"), may_repeat=True)
        return await self._connection.ask_for(MonitorRecord, question)

    async def release(self, track: Track | None = None) -> MonitorRecord:
        """End the suspension of verdicts on a track, or on both if None.

        Without a suspension, nothing happens.
        """
        query = query_of(track=track)
        question = Question(method="POST", path=path_of("monitor", "release"), query=query)
        return await self._connection.ask_for(MonitorRecord, question)

    async def confirm_class(self, network_class: str) -> Confirmed:
        """Confirm that the targets of a network class may be down: their failures need no witness."""
        return await self._confirm(network_class=network_class)

    async def confirm_agent(self, agent_id: str) -> Confirmed:
        """Confirm that one agent or target may be down: its failures need no witness."""
        return await self._confirm(agent_id=agent_id)

    async def _confirm(self, **members: str) -> Confirmed:
        body = body_of(Confirmation, **members)
        # The later of two moments counts, so that nothing is lost if both arrive.
        question = Question(method="POST", path=path_of("monitor", "confirm"), body=body, may_repeat=True)
        return await self._connection.ask_for(Confirmed, question)
