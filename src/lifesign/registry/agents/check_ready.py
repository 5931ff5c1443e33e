"""Readiness of one agent, for gateways that send requests to agents."""

from typing import Final

from pydantic import BaseModel

from lifesign.domain.access.permissions import Permission
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import existing_agent
from lifesign.storage.engine.transaction import Transaction

READY_AGENT_PATH: Final = "/api/v1/agents/{agent_id}/ready"
STATUS_HEADER: Final = "X-Agent-Status"
"""Header of an answer about the agent; without it, the request or the registry had a fault."""
READY: Final = 200
NOT_READY: Final = 503


class AgentReadiness(BaseModel):
    """Whether an agent accepts new work."""

    agent_id: str
    status: Status
    """The agent is ready if it is `active`."""
    reason: Reason
    """Reason of the last status change."""


def check_ready(transaction: Transaction, call: Call) -> OperationReply:
    """Return 200 if the agent is active, else 503.

    Answers about the agent have the header `X-Agent-Status`. A 503 without this header is a fault of the
    registry, and says nothing about the agent.
    """
    agent = existing_agent(transaction, call.agent_id)
    status = Status(agent.status)
    return OperationReply(
        content=AgentReadiness(agent_id=agent.agent_id, status=status, reason=Reason(agent.reason)),
        status=READY if status is Status.ACTIVE else NOT_READY,
        headers={STATUS_HEADER: status.value},
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=READY_AGENT_PATH,
        summary="Check whether an agent accepts new work, for gateways",
        action=Permission.READ_AGENT,
        function=check_ready,
        is_write=False,
        answer=AgentReadiness,
        answer_statuses=(NOT_READY,),
        errors=(404,),
    ),
)
