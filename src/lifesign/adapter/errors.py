"""Errors of the adapter."""

from lifesign.domain.errors import InvalidFile
from lifesign.errors import LifesignError


class InvalidTools(InvalidFile):
    """A tools file is invalid."""


class CommandFailed(LifesignError):
    """The command of an agent or of a tool server could not be started."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the command cannot be started: {reason}")
        self.reason = reason
