"""Requests of agents, for tests in which agents are stored and send none."""

from lifesign.registry.request_handling.heard_agents import HeardAgents
from lifesign.storage.engine.transaction import Transaction


class TalkingAgents(HeardAgents):
    """Some agent has just sent a request, whenever a sweep begins."""

    def store(self, transaction: Transaction, process: str) -> None:
        self.note()
        self._stored_s = None, None
        super().store(transaction, process)
