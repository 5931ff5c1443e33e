"""Does the registry trust its own eyes? Asked from outside (protocol 4, "The monitor itself may be sick")."""

from agent_health.client.registry_connection import Question, RegistryConnection, made, path_of
from agent_health.monitor_record import IllnessReport, MonitorRecord


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

    async def report_illness(
        self, worker: str | None = None, *, why: str, seconds: float = 60.0
    ) -> MonitorRecord:
        """Say that a prober does not trust its own eyes for so long: nobody dies of silence meanwhile."""
        return await self._say(made(IllnessReport, ill=True, why=why, seconds=float(seconds), worker=worker))

    async def report_wellness(self, worker: str | None = None) -> MonitorRecord:
        """Take that back."""
        return await self._say(made(IllnessReport, ill=False, worker=worker))

    async def _say(self, said: IllnessReport) -> MonitorRecord:
        body = said.model_dump_json(exclude_none=True).encode()
        question = Question(method="POST", path=path_of("monitor", "illness"), body=body, may_repeat=True)
        return await self._connection.ask_for(MonitorRecord, question)
