"""Delivery of heartbeats to the registry, and its failures.

Each agent has its own key, so that none can send heartbeats in another's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from lifesign.client.registry import RegistryClient
from lifesign.client.registry_connection import MAX_CONNECTIONS
from lifesign.client.registry_errors import RegistryError, is_final
from lifesign.domain.activity.passive_heartbeat import DueHeartbeat
from lifesign.domain.models.agents import AgentRecord
from lifesign.http_client.counted_sessions import ByteCountingConnector, counting_session
from lifesign.loopback.listeners import IN_THIS_PROCESS

if TYPE_CHECKING:
    import aiohttp

INTERVAL_SECONDS: Final = 4.0
"""Time limit for one heartbeat with all its attempts: less than the time to the next one."""


@dataclass(frozen=True, slots=True)
class HeartbeatAccepted:
    """Result of a heartbeat that the registry accepted."""

    agent_status: str
    commands: tuple[str, ...] = ()
    """Commands of the registry for the agent, for people."""


@dataclass(frozen=True, slots=True)
class HeartbeatRefused:
    """Result of a heartbeat, or of a request about this agent, that the registry refused."""

    why: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Result of a heartbeat or a request without a usable answer in time; a heartbeat is not sent again."""

    why: str


class HeartbeatSink(Protocol):
    """Sends heartbeats to a registry, and reads the records of agents there."""

    async def send_heartbeat(self, due: DueHeartbeat) -> HeartbeatAccepted | HeartbeatRefused | Dropped:
        """Send one heartbeat. A refusal or a missing answer is returned, not raised."""

    async def record(self, agent_id: str) -> AgentRecord | HeartbeatRefused | Dropped:
        """Return an agent's record in the registry."""


class RegistryHeartbeatSink:
    """Sends heartbeats to a registry, with a key for each agent. `async with` closes its connections.

    InvalidValue for an invalid URL or key.
    """

    def __init__(self, url: str, keys: Mapping[str, str], *, allow_plain_http: bool = False) -> None:
        self._url = url
        self._keys = dict(keys)
        self._allow_plain_http = allow_plain_http
        self._clients: dict[str, RegistryClient] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # One for all: a thousand agents need no thousand pools of connections.
        self._session = counting_session(
            ByteCountingConnector(limit=MAX_CONNECTIONS, listeners=IN_THIS_PROCESS)
        )
        try:
            for agent_id, key in self._keys.items():
                self._clients[agent_id] = RegistryClient(
                    self._url,
                    key=key,
                    timeout_seconds=INTERVAL_SECONDS,
                    session=self._session,
                    allow_plain_http=self._allow_plain_http,
                )
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None  # noqa: S101 - it was entered
        await self._session.close()

    async def send_heartbeat(self, due: DueHeartbeat) -> HeartbeatAccepted | HeartbeatRefused | Dropped:
        """Send one heartbeat. The number of the agent's busy sessions is sent as its load."""
        try:
            reply = await self._clients[due.agent_id].agents.heartbeat(
                due.agent_id, current_load=due.busy_sessions
            )
        except RegistryError as error:
            return _ending(error)
        commands = (
            f"{command.command} ({command.id}{': ' + command.reason if command.reason else ''})"
            for command in reply.pending_commands
        )
        return HeartbeatAccepted(reply.agent_status, tuple(commands))

    async def record(self, agent_id: str) -> AgentRecord | HeartbeatRefused | Dropped:
        """Return an agent's record in the registry."""
        try:
            return await self._clients[agent_id].agents.get(agent_id)
        except RegistryError as error:
            return _ending(error)


def _ending(error: RegistryError) -> HeartbeatRefused | Dropped:
    return HeartbeatRefused(str(error)) if is_final(error) else Dropped(str(error))
