"""History of an agent over the last day and month (`GET /api/v1/agents/{agent_id}/history`)."""

from lifesign.domain.access.permissions import Permission
from lifesign.domain.lifecycle.agent_history import KeptHistory, shown
from lifesign.domain.lifecycle.observed_facts import Observed
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.history import AgentHistory, agent_history
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import existing_agent
from lifesign.storage.agents import histories
from lifesign.storage.engine.transaction import Transaction


def show_history(transaction: Transaction, call: Call) -> OperationReply:
    """Return the stored history of an agent, with the current half hour."""
    agent = existing_agent(transaction, call.agent_id)
    kept = histories.find(transaction, [agent.id]).get(agent.id, KeptHistory())
    slot = None if agent.observed is None else Observed.from_json(agent.observed).slot
    history = shown(kept, slot, transaction.now_s)
    return OperationReply(content=agent_history(agent.agent_id, DecidingEvidence(agent.monitoring), history))


OPERATIONS = (
    Operation(
        method="GET",
        path="/api/v1/agents/{agent_id}/history",
        summary="Show an agent's answers and reported health over the last day and month",
        action=Permission.READ_AGENT,
        function=show_history,
        is_write=False,
        answer=AgentHistory,
        errors=(404,),
    ),
)
