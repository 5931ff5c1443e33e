"""Errors of the adapter."""

from lifesign.domain.errors import InvalidFile
from lifesign.errors import LifesignError


class InvalidTools(InvalidFile):
    """A tools file does not say which tools are offered, and at which price, as it should."""


class CommandFailed(LifesignError):
    """An agent's command, or that of a server of its tools, cannot be started."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the command cannot be started: {reason}")
        self.reason = reason
