"""May what left a directory be let go?

A list that suddenly is a fraction of itself is more often broken than true: a page that failed, an API
that was changed, a file cut short. What it still lists, and what is new on it, is probed at once; what it
lists no more is kept until somebody confirms. Time alone confirms nothing: a broken list stays broken.
"""

from dataclasses import dataclass
from typing import Final

from lifesign.domain.text.counts import plural
from lifesign.errors import InvalidValue

MAX_LOSS_RATIO: Final = 0.5
"""A directory that loses more than this share at once is held; exactly this much is not."""
SMALL_DIRECTORY: Final = 10
"""A directory of so many targets or fewer is never held: one hand may have shortened it."""


@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """What follows from a directory's new list; what is new on it is applied in any case."""

    is_suspended: bool
    """Whether what left stays until an operator confirms."""
    reason: str
    """For people: how much left, and by which rule that is held or not."""


def assess_change(*, size_before: int, removed: int) -> DirectoryChange:
    """Judge a new list by how many of a directory's targets are not on it any more.

    What was added does not count: a list of other targets altogether has lost all of its own, and is
    as suspicious as an empty one. InvalidValue for counts that cannot be: a caller's defect.
    """
    if size_before < 0:
        raise InvalidValue("size_before", size_before, "0 or more")
    if not 0 <= removed <= size_before:
        raise InvalidValue("removed", removed, f"0 to {size_before}, as many as were listed")
    verb = "is" if 1 in {removed, size_before} else "are"
    lost = f"{removed} of {size_before} {plural(size_before, 'target')} {verb} not listed any more"
    if not removed:
        return DirectoryChange(is_suspended=False, reason="nothing that was listed has left")
    if size_before <= SMALL_DIRECTORY:
        return DirectoryChange(
            is_suspended=False, reason=f"{lost}; a directory of up to {SMALL_DIRECTORY} is not held"
        )
    if removed > size_before * MAX_LOSS_RATIO:
        return DirectoryChange(
            is_suspended=True,
            reason=f"{lost}, more than {MAX_LOSS_RATIO:.0%}: they stay until this is confirmed",
        )
    return DirectoryChange(is_suspended=False, reason=lost)
