"""Commands to an agent: they are delivered in the reply to its next heartbeat (RFC-0016 5.3)."""

from pydantic import BaseModel
from ulid import ULID

from lifesign.domain.access.permissions import Permission
from lifesign.domain.events.agent_payloads import CommandSent
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.lifecycle.status_table import ALIVE
from lifesign.domain.models.agents import CommandRequest, SentCommand
from lifesign.domain.models.base import moment
from lifesign.registry.errors import AgentGone, TooManyCommands
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import existing_agent
from lifesign.storage.agents import commands
from lifesign.storage.agents.commands import StoredCommand
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

MAX_WAITING = 16
"""Maximum of pending commands per agent."""


class CommandList(BaseModel):
    """Queued commands of one agent, the oldest first."""

    commands: list[SentCommand]


def send_command(transaction: Transaction, call: Call) -> OperationReply:
    """Queue a command. The reply to each heartbeat repeats it until the agent follows it or it expires."""
    body = call.body_as(CommandRequest)
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    if agent.status not in ALIVE:
        raise AgentGone(agent.agent_id, agent.status, agent.incarnation)
    if len(commands.waiting(transaction, [agent.id])) >= MAX_WAITING:
        raise TooManyCommands(agent.agent_id, MAX_WAITING)
    waits_s = body.expires_in_seconds or call.policies.command_seconds
    command = StoredCommand(
        id=f"command_{str(ULID()).lower()}",
        agent=agent.id,
        command=body.command,
        reason=body.reason,
        drain_timeout_s=body.drain_timeout_seconds,
        created_at_s=transaction.now_s,
        expires_at_s=transaction.now_s + waits_s,
    )
    commands.add(transaction, command)
    payload = CommandSent(
        agent_id=agent.agent_id,
        command_id=command.id,
        command=command.command,
        reason=command.reason,
        drain_timeout_seconds=command.drain_timeout_s,
        expires_at=moment(command.expires_at_s),
    )
    draft = EventDraft(
        type=EventType.AGENT_COMMAND_SENT, actor=call.actor, payload=payload, agent_id=agent.agent_id
    )
    event_log.append(transaction, [draft])
    return OperationReply(content=_shown(command, agent.agent_id), status=201)


def list_commands(transaction: Transaction, call: Call) -> OperationReply:
    """Return the queued commands of an agent, the oldest first."""
    agent = existing_agent(transaction, call.agent_id)
    waiting = [
        command
        for command in commands.waiting(transaction, [agent.id])
        if command.expires_at_s > transaction.now_s
    ]
    return OperationReply(
        content=CommandList(commands=[_shown(command, agent.agent_id) for command in waiting])
    )


def _shown(command: StoredCommand, agent_id: str) -> SentCommand:
    return SentCommand(
        id=command.id,
        agent_id=agent_id,
        command=command.command,
        reason=command.reason,
        drain_timeout_seconds=command.drain_timeout_s,
        created_at=moment(command.created_at_s),
        expires_at=moment(command.expires_at_s),
    )


OPERATIONS = (
    Operation(
        method="POST",
        path="/api/v1/agents/{agent_id}/commands",
        summary="Queue a command for an agent's next heartbeat (RFC-0016 5.3)",
        action=Permission.SEND_COMMAND,
        function=send_command,
        body=CommandRequest,
        example={"command": "drain", "reason": "maintenance_window", "drain_timeout_seconds": 120},
        answer=SentCommand,
        status=201,
        errors=(404, 409, 410),
    ),
    Operation(
        method="GET",
        path="/api/v1/agents/{agent_id}/commands",
        summary="List the queued commands of an agent",
        action=Permission.SEND_COMMAND,
        function=list_commands,
        is_write=False,
        answer=CommandList,
        errors=(404,),
    ),
)
