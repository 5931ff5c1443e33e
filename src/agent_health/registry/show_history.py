"""How did an agent do over the last day and month? (`GET /api/v1/agents/{agent_id}/history`)"""

from agent_health.access import Action
from agent_health.agent_history import KeptHistory, shown
from agent_health.history_record import AgentHistory, told
from agent_health.observed import Observed
from agent_health.registry.find_agents import existing_agent
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.storage import agent_histories
from agent_health.storage.database import Transaction
from agent_health.verdict import Monitoring


def show_history(transaction: Transaction, call: Call) -> Reply:
    """Return what is kept of an agent's numbers, with the half hour that is running."""
    agent = existing_agent(transaction, call.agent_id)
    kept = agent_histories.find(transaction, [agent.id]).get(agent.id, KeptHistory())
    slot = None if agent.observed is None else Observed.from_json(agent.observed).slot
    history = shown(kept, slot, transaction.now_s)
    return Reply(content=told(agent.agent_id, Monitoring(agent.monitoring), history))


OPERATIONS = (
    Operation(
        method="GET",
        path="/api/v1/agents/{agent_id}/history",
        summary="Show how an agent answered, and what it said of itself, over the last day and month",
        action=Action.READ_AGENT,
        deed=show_history,
        is_write=False,
        answer=AgentHistory,
        errors=(404,),
    ),
)
