"""What does a result class say about whether a target lives?

Two things are apart here: who was asked and showed no life, and of whom nothing is known, because the prober
held back or was never there. Nobody is down for want of a look.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from lifesign.domain.observation.results import LayerResult, ResultClass


class Group(StrEnum):
    """What a result class says about whether a target lives."""

    ALIVE = "alive"
    """It answered, be it to ask for credentials or money."""
    NOT_ALIVE = "not_alive"
    """It was asked, and nobody was there who answers as an agent does."""
    UNKNOWN = "unknown"
    """It was looked at, and nothing is known: the prober held back, or what it read was too old."""
    NEVER_MEASURED = "never_measured"
    """Nobody has looked yet."""


def _group_of(result: ResultClass) -> Group:
    layer = LayerResult(result=result)
    if layer.has_answered:
        return Group.ALIVE
    return Group.NOT_ALIVE if layer.has_failed else Group.UNKNOWN


GROUPS: Final[Mapping[ResultClass | None, Group]] = {
    **{result: _group_of(result) for result in ResultClass},
    None: Group.NEVER_MEASURED,
}
"""What each result class says of whoever ended so; None: never measured."""


def group_of(result: ResultClass | None) -> Group:
    """Return whether a target lives: ALIVE, NOT_ALIVE or UNKNOWN, which who was never measured is too."""
    group = GROUPS[result]
    return Group.UNKNOWN if group is Group.NEVER_MEASURED else group
