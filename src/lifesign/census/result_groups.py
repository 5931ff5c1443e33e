"""Groups of result classes: whether a target is alive.

Targets that were probed without a liveness signal differ from targets without evidence, which the prober
refrained from probing or never probed. No target is down because it was not probed.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from lifesign.domain.observation.results import LayerResult, ResultClass


class Group(StrEnum):
    """Whether targets are alive, according to their results."""

    ALIVE = "alive"
    """The agent answered, possibly with a request for credentials or payment."""
    NOT_ALIVE = "not_alive"
    """The target was probed, and no agent answered."""
    UNKNOWN = "unknown"
    """The target was not measured: the prober could not probe it, or the last result is too old."""
    NEVER_PROBED = "never_probed"
    """The target was never probed."""


def _group_of(result: ResultClass) -> Group:
    layer = LayerResult(result=result)
    if layer.has_answered:
        return Group.ALIVE
    return Group.NOT_ALIVE if layer.has_failed else Group.UNKNOWN


GROUPS: Final[Mapping[ResultClass | None, Group]] = {
    **{result: _group_of(result) for result in ResultClass},
    None: Group.NEVER_PROBED,
}
"""Group of each result class; None: never probed."""


def group_of(result: ResultClass | None) -> Group:
    """Return whether a target is ALIVE, NOT_ALIVE or UNKNOWN; a target that was never probed is UNKNOWN."""
    group = GROUPS[result]
    return Group.UNKNOWN if group is Group.NEVER_PROBED else group
