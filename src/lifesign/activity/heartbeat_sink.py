"""Delivery of heartbeats to the registry, and its failures.

Each agent has its own key, so that none can send heartbeats in another's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from lifesign.client.registry import RegistryClient
from lifesign.client.registry_connection import MAX_CONNECTIONS
from lifesign.client.registry_errors import RateLimited, RegistryError, RegistryRefusal
from lifesign.domain.activity.passive_heartbeat import DueHeartbeat
from lifesign.domain.models.agents import AgentRecord
from lifesign.http_client.counted_sessions import ByteCountingConnector, counting_session

if TYPE_CHECKING:
    import aiohttp

INTERVAL_SECONDS: Final = 4.0
"""Time limit for one heartbeat with all its attempts: less than the time to the next one."""


@dataclass(frozen=True, slots=True)
class HeartbeatAccepted:
    """The registry took a heartbeat."""

    agent_status: str
    commands: tuple[str, ...] = ()
    """Commands of the registry for the agent, for people."""


@dataclass(frozen=True, slots=True)
class HeartbeatRefused:
    """The registry refused a heartbeat of this agent."""

    why: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """No usable answer arrived in time: the heartbeat is not sent again."""

    why: str


class HeartbeatSink(Protocol):
    """Receives heartbeats, and provides their intervals."""

    async def send_heartbeat(self, due: DueHeartbeat) -> HeartbeatAccepted | HeartbeatRefused | Dropped:
        """Send one heartbeat; raises nothing that a registry can cause."""

    async def record(self, agent_id: str) -> AgentRecord | HeartbeatRefused | Dropped:
        """Return an agent's record in the registry."""


class RegistryHeartbeatSink:
    """A registry that is called with one key per agent. `async with` closes its connections.

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
        self._session = counting_session(ByteCountingConnector(limit=MAX_CONNECTIONS))
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
        """Send one heartbeat, with the sessions that work as the agent's load."""
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
    is_refusal = isinstance(error, RegistryRefusal) and not isinstance(error, RateLimited)
    return HeartbeatRefused(str(error)) if is_refusal else Dropped(str(error))
