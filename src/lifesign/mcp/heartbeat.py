"""Heartbeat tool: an agent reports by a tool call that it is alive (heartbeat tool).

The fields and the four error texts are exactly those of the contract. Its statuses are translated:
`terminated` is deregistered, `inactive` is dead; `idle` is no status of the registry and is stored in the
record's metadata, as are the agent's reports about its work.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from lifesign.client.registry_agents import RegistryAgents
from lifesign.client.registry_errors import Gone, NotAuthorized, NotFound, NotPermitted, RegistryError, Stale
from lifesign.domain.health.document import Time
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.models.base import AgentId
from lifesign.errors import InvalidValue
from lifesign.mcp.tool_definition import Tool, ToolAnswer, ToolContext, registry_of

METADATA_MEMBER: Final = "heartbeat"
"""Member of a record's metadata: the agent's last report by this tool."""
MAX_WRITES: Final = 3
"""Maximum of writes of the metadata while other callers change the record each time."""

_log = logging.getLogger("lifesign.mcp")

_AGENT_ID: Final[TypeAdapter[str]] = TypeAdapter(AgentId)
_CAMEL: Final = ConfigDict(alias_generator=to_camel, validate_by_name=True, hide_input_in_errors=True)


class HeartbeatInput(BaseModel):
    """Arguments of the heartbeat tool, as in its contract; unknown members are ignored."""

    model_config = _CAMEL

    agent_id: Annotated[str, Field(min_length=1, description="ID of the agent sending the heartbeat")]
    team_name: Annotated[
        str, Field(min_length=1, description="Team the agent belongs to: its role_id in the registry")
    ]
    status: Annotated[
        Literal["active", "idle"] | None,
        Field(description="Optional status override. Defaults to current status."),
    ] = None
    metadata: Annotated[
        dict[str, Any] | None,
        Field(description="Optional metadata (current task, progress, etc.), at most 16 kB of JSON"),
    ] = None


class HeartbeatOutput(BaseModel):
    """Result of the heartbeat tool, as in its contract."""

    model_config = _CAMEL

    success: bool
    heartbeat_ts: Annotated[
        Time | None, Field(description="Time at which the registry received it; absent on failure")
    ] = None
    next_deadline: Annotated[
        Time | None, Field(description="Time before which the next heartbeat must arrive; absent on failure")
    ] = None
    agent_status: Annotated[
        str | None,
        Field(description="active, idle, unhealthy or draining; draining: finish, and start nothing new"),
    ] = None
    error: Annotated[str | None, Field(description="Error; absent on success")] = None


async def heartbeat(arguments: HeartbeatInput, reach: ToolContext) -> ToolAnswer:
    """Send a heartbeat for an agent, then store its report about its work."""
    agents = registry_of(reach).agents
    try:
        _AGENT_ID.validate_python(arguments.agent_id)
        return await _send_heartbeat(arguments, agents)
    except (NotFound, ValidationError):
        # An invalid id belongs to no agent.
        return _failed(_not_found(arguments.agent_id))
    except (NotAuthorized, NotPermitted) as error:
        what = "the operator of this server must give it the agent's own key"
        return _failed(f"Failed to update heartbeat: {error}: {what}")
    except (RegistryError, InvalidValue) as error:
        return _failed(f"Failed to update heartbeat: {error}")


async def _send_heartbeat(arguments: HeartbeatInput, agents: RegistryAgents) -> ToolAnswer:
    record = await _record_of(arguments.agent_id, agents)
    if record.role_id != arguments.team_name:
        return _failed(_not_found(arguments.agent_id))
    ended = _ended(record)
    if ended is not None:
        return _failed(ended)
    try:
        # First of all it is alive, whatever becomes of the rest.
        reply = await agents.heartbeat(arguments.agent_id, incarnation=record.incarnation)
    except Gone:
        # Its life ended in between; or it began another one, of which nothing is wrong but the moment.
        ended = _ended(await agents.get(arguments.agent_id))
        return _failed(ended or "Failed to update heartbeat: the agent has just registered again: try again")
    stored = await _stored(arguments, agents, record)
    status = str(reply.agent_status)
    if reply.agent_status is Status.ACTIVE and stored.get("status") == "idle":
        status = "idle"
    deadline = reply.server_timestamp + timedelta(seconds=record.heartbeat_config.unhealthy_after_seconds)
    content = HeartbeatOutput(
        success=True, heartbeat_ts=reply.server_timestamp, next_deadline=deadline, agent_status=status
    )
    text = f"{arguments.agent_id} is {status}; the next heartbeat is due before {deadline:%H:%M:%S} UTC"
    waiting = ", ".join(f"{command.command}" for command in reply.pending_commands)
    return ToolAnswer(content=content, text=f"{text}; the registry requests: {waiting}" if waiting else text)


async def _record_of(agent_id: str, agents: RegistryAgents) -> AgentRecord:
    """Return an agent's record; NotFound for an agent of another key.

    With an agent's key, the registry answers 403 for each other id, whether there is such an agent or not.
    """
    try:
        return await agents.get(agent_id)
    except NotPermitted as error:
        try:
            # An agent's own key lists that agent. One that only enrols lists nothing.
            await agents.list(limit=1)
        except NotPermitted:
            raise error from None
        _log.warning(
            "a heartbeat for agent %s was refused: the key of this server belongs to another agent",
            agent_id,
        )
        raise NotFound(str(error), code=error.code, status=error.status) from None


async def _stored(
    arguments: HeartbeatInput, agents: RegistryAgents, record: AgentRecord
) -> Mapping[str, Any]:
    """Store the agent's report about its work, if it is new; return all that is stored."""
    for attempt in range(1, MAX_WRITES + 1):
        before = record.metadata.get(METADATA_MEMBER)
        known = before if isinstance(before, dict) else {}
        stored = dict(known)
        if arguments.status is not None:
            stored["status"] = arguments.status
        if arguments.metadata is not None:
            stored["metadata"] = arguments.metadata
        if stored == known:
            return known
        metadata = {**record.metadata, METADATA_MEMBER: stored}
        try:
            await agents.update(arguments.agent_id, if_match=record.etag, metadata=metadata)
        except Stale:
            if attempt == MAX_WRITES:
                raise
            record = await agents.get(arguments.agent_id)
        else:
            return stored
    return {}


def _ended(record: AgentRecord) -> str | None:
    """Return why an agent sends no more heartbeats, in the contract's words; None if it may."""
    if record.status is Status.DEREGISTERED:
        return "Cannot heartbeat for terminated agent"
    if record.status is Status.DEAD:
        return "Agent is inactive. Requires re-spawn."
    return None


def _not_found(agent_id: str) -> str:
    return f"Agent '{agent_id}' not found"


def _failed(error: str) -> ToolAnswer:
    return ToolAnswer(content=HeartbeatOutput(success=False, error=error), text=error, is_error=True)


HEARTBEAT: Final = Tool(
    name="heartbeat",
    title="Send a heartbeat",
    description=(
        "Updates the calling agent's heartbeat timestamp to signal liveness. Call it about every 30 seconds, "
        "and before nextDeadline at the latest: an agent without heartbeats is considered dead, and its work "
        "goes to others. It is needed if nothing else sends heartbeats for the agent, such as during long "
        "computations without tool calls. Report status 'idle' when there is nothing to do. After 'Agent is "
        "inactive', the agent must be registered again by its operator."
    ),
    takes=HeartbeatInput,
    gives=HeartbeatOutput,
    run=heartbeat,
    is_read_only=False,
)
