"""Requests of agents, for tests in which agents are stored and send none."""

from agent_health.registry.heard_agents import HeardAgents
from agent_health.storage.database import Transaction


class TalkingAgents(HeardAgents):
    """Some agent has just sent a request, whenever a sweep begins."""

    def store(self, transaction: Transaction, process: str) -> None:
        self.note()
        self._stored_s = None
        super().store(transaction, process)
