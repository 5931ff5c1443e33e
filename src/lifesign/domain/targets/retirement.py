"""Retirement of targets that left a directory.

A list that suddenly shrinks to a fraction is probably broken: a failed page, a changed API, a truncated file.
Its remaining and new entries are probed at once; missing ones are kept until an operator confirms. Time alone
confirms nothing: a broken list stays broken.
"""

from dataclasses import dataclass
from typing import Final

from lifesign.domain.text.counts import plural
from lifesign.errors import InvalidValue

MAX_LOSS_RATIO: Final = 0.5
"""A directory that loses more than this share at once is suspended; exactly this share is allowed."""
SMALL_DIRECTORY: Final = 10
"""A directory of so many targets or fewer is never suspended: a person may have shortened it."""


@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """Whether the removals in a directory's new list are applied or suspended, and why."""

    is_suspended: bool
    """Whether missing targets are kept until an operator confirms."""
    reason: str
    """Reason for people: number of removed targets, and the rule that suspends the removal or not."""


def assess_change(*, size_before: int, removed: int, is_owned: bool = True) -> DirectoryChange:
    """Decide whether removals from a directory are suspended, because its new list lacks too many targets.

    Added entries do not count: a list of entirely different targets lacks all earlier ones, and is as
    suspicious as an empty list. `is_owned`: the list comes from an operator, or from the prober's key that
    the directory belongs to; another key removes nothing. Raise InvalidValue for impossible counts, which are
    a defect of the caller.
    """
    if size_before < 0:
        raise InvalidValue("size_before", size_before, "0 or more")
    if not 0 <= removed <= size_before:
        raise InvalidValue("removed", removed, f"0 to {size_before}, as many as were listed")
    verb = "is" if 1 in {removed, size_before} else "are"
    lost = f"{removed} of {size_before} {plural(size_before, 'target')} {verb} no longer listed"
    if not removed:
        return DirectoryChange(is_suspended=False, reason="no listed target was removed")
    if not is_owned:
        return DirectoryChange(
            is_suspended=True,
            reason=f"{lost} by another key than the directory's: they stay until an operator confirms it",
        )
    if size_before <= SMALL_DIRECTORY:
        return DirectoryChange(
            is_suspended=False,
            reason=f"{lost}; a directory of up to {SMALL_DIRECTORY} targets is never suspended",
        )
    if removed > size_before * MAX_LOSS_RATIO:
        return DirectoryChange(
            is_suspended=True,
            reason=f"{lost}, more than {MAX_LOSS_RATIO:.0%}: they stay until an operator confirms it",
        )
    return DirectoryChange(is_suspended=False, reason=lost)
