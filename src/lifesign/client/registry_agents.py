"""Requests about agents (RFC-0016 3 to 7)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypedDict, Unpack

from pydantic import BaseModel, Field

from lifesign.client.registry_connection import (
    Question,
    RegistryConnection,
    body_of,
    build_body,
    incarnation_header,
    members_of,
    path_of,
    query_of,
    texts,
)
from lifesign.client.registry_errors import Conflict, InvalidAnswer, NotAuthorized
from lifesign.domain.health.document import HealthStatus, Time
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import (
    AgentList,
    AgentRecord,
    AgentSummary,
    AgentUpdate,
    Capacity,
    CommandRequest,
    Erasure,
    Heartbeat,
    HeartbeatConfig,
    HeartbeatReply,
    Registration,
    SentCommand,
    StatusChange,
)
from lifesign.domain.models.base import Body, Name
from lifesign.domain.models.history import AgentHistory
from lifesign.domain.models.links import LinkRequest, LinkToken
from lifesign.errors import InvalidValue

ANY_VERSION = "*"
"""Value of `if_match` that accepts any version of the record."""
MAX_PAGES = 100_000
"""Maximum of pages that `each` follows: a faulty registry could list pages without end."""


class AgentQuery(TypedDict, total=False):
    """Filter of agents. An absent member matches any agent; without `status`, only active agents match."""

    capabilities: Sequence[str]
    """Agents with any of them."""
    status: Sequence[Status | str]
    health: Sequence[HealthStatus | str]
    role_id: str
    """Adds the pool's totals to a page."""
    min_available_capacity: int
    max_evidence_age: float
    """Maximum age of the agents' last measured probe, in seconds."""
    sort: Literal["registered", "least_loaded"]


_MANY: Final = frozenset({"capabilities", "status", "health"})
"""Members of a filter of which there may be several."""


class AgentMembers(TypedDict, total=False):
    """Members of an agent's record that `update` changes. Optional ones are removed by None."""

    name: str | None
    capabilities: Sequence[str]
    max_concurrent_tasks: int | None
    endpoint: str | None
    card_url: str | None
    heartbeat_config: HeartbeatConfig
    drain_timeout_seconds: float
    metadata: Mapping[str, Any]


class _Maintenance(Body):
    """The body of `PUT …/maintenance`."""

    reason: Name
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    until: Time | None = None


class MaintenanceChange(BaseModel):
    """Result of a change of a pool's maintenance: the agents whose maintenance began or ended."""

    role_id: str
    agents: list[str]
    until: Time | None = None
    """Absent: it is ended."""


class RegistryAgents:
    """Requests about agents (`client.agents`). All raise RegistryError; InvalidValue for wrong arguments."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def register(
        self,
        agent_id: str | None = None,
        *,
        role_id: str | None = None,
        name: str | None = None,
        capabilities: Sequence[str] = (),
        max_concurrent_tasks: int | None = None,
        endpoint: str | None = None,
        card_url: str | None = None,
        heartbeat_config: HeartbeatConfig | None = None,
        drain_timeout_seconds: float | None = None,
        monitoring: DecidingEvidence | str | None = None,
        metadata: Mapping[str, Any] = MappingProxyType({}),
        supersede: bool = False,
    ) -> AgentRecord:
        """Register an agent, or begin its next incarnation; only this answer contains `agent_key`.

        Raise Conflict if it is alive: `supersede` ends that incarnation first. Not repeated once it may have
        been executed: after Unreachable with `was_sent`, `get` shows whether it was, and `supersede` creates
        the agent's key if it had none.
        """
        given: dict[str, object] = {
            "agent_id": agent_id,
            "role_id": role_id,
            "name": name,
            "capabilities": texts("capabilities", capabilities),
            "capacity": None
            if max_concurrent_tasks is None
            else build_body(Capacity, max_concurrent_tasks=max_concurrent_tasks),
            "endpoint": endpoint,
            "card_url": card_url,
            "heartbeat_config": heartbeat_config,
            "drain_timeout_seconds": drain_timeout_seconds,
            "monitoring": monitoring,
            "metadata": members_of(metadata),
            "supersede": supersede or None,
        }
        # The registry chooses absent values.
        body = body_of(
            Registration, **{name: value for name, value in given.items() if value not in (None, [], {})}
        )
        return await self._connection.ask_for(
            AgentRecord, Question(method="POST", path=path_of("agents"), body=body)
        )

    async def heartbeat(
        self,
        agent_id: str,
        *,
        status: Literal["active", "draining"] = "active",
        current_load: int | None = None,
        tasks_in_progress: Sequence[str] | None = None,
        client_timestamp: datetime | None = None,
        incarnation: int | None = None,
    ) -> HeartbeatReply:
        """Send a heartbeat; the reply contains the agent's status and commands.

        Raise Gone if it has to register again; with `incarnation` also if another incarnation has begun.
        `client_timestamp` is now if absent. Repeated while there is time: a second heartbeat does no harm.
        """
        members: dict[str, object] = {
            "status": status,
            "client_timestamp": client_timestamp or datetime.now(UTC),
            "current_load": current_load,
            "tasks_in_progress": None
            if tasks_in_progress is None
            else texts("tasks_in_progress", tasks_in_progress),
        }
        question = Question(
            method="POST",
            path=path_of("agents", agent_id, "heartbeat"),
            body=body_of(Heartbeat, **_given(members)),
            headers=incarnation_header(incarnation),
            may_repeat=True,
        )
        return await self._connection.ask_for(HeartbeatReply, question)

    async def get(self, agent_id: str) -> AgentRecord:
        """Return the complete record of an agent; pass its `etag` as `if_match`."""
        question = Question(method="GET", path=path_of("agents", agent_id), may_repeat=True)
        return await self._connection.ask_for(AgentRecord, question)

    async def history(self, agent_id: str) -> AgentHistory:
        """Return an agent's probe results and health reports over the last day and month."""
        question = Question(method="GET", path=path_of("agents", agent_id, "history"), may_repeat=True)
        return await self._connection.ask_for(AgentHistory, question)

    async def list(
        self, *, limit: int = 100, cursor: str | None = None, **wanted: Unpack[AgentQuery]
    ) -> AgentList:
        """Return one page of the agents that match, at most 1000. `cursor` comes from the page before."""
        given: dict[str, object] = dict(wanted)
        for name in _MANY:
            if given.get(name) is not None:
                given[name] = texts(name, given[name])
        query = query_of(**given, limit=limit, cursor=cursor)
        question = Question(method="GET", path=path_of("agents"), query=query, may_repeat=True)
        return await self._connection.ask_for(AgentList, question)

    async def each(self, *, page: int = 100, **wanted: Unpack[AgentQuery]) -> AsyncIterator[AgentSummary]:
        """Yield all agents that match. They are requested in pages of `page` agents, when needed."""
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            found = await self.list(limit=page, cursor=cursor, **wanted)
            for agent in found.agents:
                yield agent
            if found.cursor is None:
                return
            if found.cursor == cursor:
                break
            cursor = found.cursor
        raise InvalidAnswer("the list of agents does not end")

    async def update(self, agent_id: str, *, if_match: str, **members: Unpack[AgentMembers]) -> AgentRecord:
        """Change these members of an agent's record; Stale unless `if_match` is its current `etag`."""
        question = Question(
            method="PATCH",
            path=path_of("agents", agent_id),
            body=body_of(AgentUpdate, **members),
            headers={"If-Match": if_match},
        )
        return await self._connection.ask_for(AgentRecord, question)

    async def drain(
        self, agent_id: str, *, drain_timeout_seconds: float | None = None, if_match: str = ANY_VERSION
    ) -> AgentRecord:
        """Drain an agent: it finishes its work, gets no more, and is deregistered once it holds no lease."""
        members: dict[str, object] = {"status": "draining"}
        if drain_timeout_seconds is not None:
            members["drain_timeout_seconds"] = drain_timeout_seconds
        question = Question(
            method="PATCH",
            path=path_of("agents", agent_id, "status"),
            body=body_of(StatusChange, **members),
            headers={"If-Match": if_match},
        )
        return await self._connection.ask_for(AgentRecord, question)

    async def deregister(self, agent_id: str, *, if_match: str | None = None, ends_key: bool = False) -> None:
        """Deregister an agent at once; its leases end, its record stays for audit.

        `ends_key`: if the agent itself calls this, its key becomes invalid too.
        """
        question = Question(
            method="DELETE",
            path=path_of("agents", agent_id),
            query={"end_key": "true"} if ends_key else {},
            headers={} if if_match is None else {"If-Match": if_match},
            may_repeat=True,
        )
        try:
            await self._connection.ask(question)
        except NotAuthorized as error:
            # It was revoked, and the key has ended with it.
            if not (ends_key and error.may_be_repeat):
                raise
        except Conflict as error:
            # An earlier attempt, whose answer was lost, has done it.
            if not (error.may_be_repeat and error.details.get("status") == Status.DEREGISTERED):
                raise

    async def link(self, agent_id: str, url: str) -> LinkToken:
        """Get a token. If the URL's origin serves it, that proves that the target at the URL is this agent.

        A repeated request returns the same token, and the registry looks for it at once.
        """
        body = body_of(LinkRequest, url=url)
        path = path_of("agents", agent_id, "links")
        question = Question(method="POST", path=path, body=body, may_repeat=True)
        return await self._connection.ask_for(LinkToken, question)

    async def erase(self, agent_id: str, *, if_match: str | None = None) -> Erasure:
        """Erase an agent permanently; its id stays in the log, whose payloads are replaced by their hashes.

        Raise NotFound if there is no such agent any more: after a lost answer, it was erased.
        """
        question = Question(
            method="DELETE",
            path=path_of("agents", agent_id, "record"),
            headers={} if if_match is None else {"If-Match": if_match},
        )
        return await self._connection.ask_for(Erasure, question)

    async def send_command(
        self,
        agent_id: str,
        command: Literal["drain"] = "drain",
        *,
        reason: str | None = None,
        drain_timeout_seconds: float | None = None,
        expires_in_seconds: float | None = None,
    ) -> SentCommand:
        """Store a command that the agent gets with the reply to its next heartbeat."""
        members: dict[str, object] = {
            "command": command,
            "reason": reason,
            "drain_timeout_seconds": drain_timeout_seconds,
            "expires_in_seconds": expires_in_seconds,
        }
        body = body_of(CommandRequest, **_given(members))
        question = Question(method="POST", path=path_of("agents", agent_id, "commands"), body=body)
        return await self._connection.ask_for(SentCommand, question)

    async def maintain(
        self,
        agent_id: str,
        *,
        reason: str,
        seconds: float | None = None,
        until: datetime | None = None,
    ) -> AgentRecord:
        """Begin maintenance, in which no evidence makes an agent unhealthy or dead, for a time or until one.

        At most 30 days.
        """
        body = _override_body(reason, seconds, until)
        question = Question(method="PUT", path=path_of("agents", agent_id, "maintenance"), body=body)
        return await self._connection.ask_for(AgentRecord, question)

    async def end_maintenance(self, agent_id: str) -> AgentRecord:
        """End the maintenance of an agent: missing evidence can make it unhealthy or dead again."""
        path = path_of("agents", agent_id, "maintenance")
        question = Question(method="DELETE", path=path, may_repeat=True)
        return await self._connection.ask_for(AgentRecord, question)

    async def maintain_pool(
        self,
        role_id: str,
        *,
        reason: str,
        seconds: float | None = None,
        until: datetime | None = None,
    ) -> MaintenanceChange:
        """Begin maintenance of all living agents of a pool. Agents that join later are not included."""
        body = _override_body(reason, seconds, until)
        question = Question(method="PUT", path=path_of("pools", role_id, "maintenance"), body=body)
        return await self._connection.ask_for(MaintenanceChange, question)

    async def end_pool_maintenance(self, role_id: str) -> MaintenanceChange:
        """End the maintenance of all agents of a pool."""
        path = path_of("pools", role_id, "maintenance")
        question = Question(method="DELETE", path=path, may_repeat=True)
        return await self._connection.ask_for(MaintenanceChange, question)


def _override_body(reason: str, seconds: float | None, until: datetime | None) -> bytes:
    if (seconds is None) == (until is None):
        raise InvalidValue("until", until, "exactly one of seconds and until")
    return body_of(_Maintenance, **_given({"reason": reason, "seconds": seconds, "until": until}))


def _given(members: Mapping[str, object]) -> dict[str, object]:
    """Return the given arguments; the registry chooses the defaults."""
    return {name: value for name, value in members.items() if value is not None}
