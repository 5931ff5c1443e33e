"""Errors of the prober."""

from lifesign.domain.errors import InvalidFile
from lifesign.errors import LifesignError


class InvalidDefinition(InvalidFile):
    """A probe definition does not say what to probe as it should."""


class PassDelayed(LifesignError):
    """A pass over all targets ended before its end: for `seconds`, nothing that it found could be stored."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(
            f"not all were probed: for {seconds:g} s nothing could be stored ({why}); what was stored before "
            "stays, and the same command goes on with those that are left"
        )
        self.why = why
        self.seconds = seconds
