"""Errors of the prober."""

from lifesign.domain.errors import InvalidFile
from lifesign.errors import LifesignError


class InvalidDefinition(InvalidFile):
    """A probe definition is invalid."""


class PassDelayed(LifesignError):
    """A pass of a census ended early, because no result could be stored for `seconds`."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(
            f"not all targets were probed: no result could be stored for {seconds:g} s ({why}). The stored "
            "results remain; the same command continues with the remaining targets"
        )
        self.why = why
        self.seconds = seconds
