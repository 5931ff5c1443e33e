"""Errors of the agent SDK."""

from lifesign.errors import LifesignError


class InvalidAgent(LifesignError, TypeError):
    """A class or function cannot be the agent that it is declared to be; `where` names it."""

    def __init__(self, where: str, expected: str) -> None:
        super().__init__(f"{where}: expected {expected}")
        self.where = where
        self.expected = expected


class WorkRefused(LifesignError):
    """The agent accepts no work now: it drains, has ended, or has too much work waiting."""

    def __init__(self, agent_id: str, why: str) -> None:
        super().__init__(f"{agent_id!r} accepts no work: {why}")
        self.agent_id = agent_id
        self.why = why


class WorkDropped(LifesignError):
    """Work was stopped after it had begun: the lease was lost, the agent ended, or the handler was cancelled.

    Do not use the result: another agent may do the work again.
    """

    def __init__(self, agent_id: str, why: str) -> None:
        super().__init__(f"{agent_id!r} dropped work in progress: {why}")
        self.agent_id = agent_id
        self.why = why
