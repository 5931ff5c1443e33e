"""Versions of a published interface: which one is kept, and when an event is due.

A target gets at most one event per day. Further changes of the day are part of the next event, which compares
with the version of the last one. An interface that differs at every reading is unstable: its newest version
is replaced, and no event is made until two readings in a row agree.
"""

from dataclasses import dataclass
from typing import Final

MAX_VERSIONS: Final = 20
"""Versions of one target that are kept."""
KEEP_VERSIONS_DAYS: Final = 90
"""Retention of a version after a newer one took its place."""
EVENT_SECONDS: Final = 86_400.0
"""Minimum time between two events of one target."""
UNSTABLE_READINGS: Final = 3
"""Readings in a row that each found another interface, which make it unstable."""


@dataclass(frozen=True, slots=True)
class VersionState:
    """Numbers of the versions that are stored of a target's interface, and when an event is due."""

    newest: int
    """Number of the current version, counted from 1."""
    baseline: int
    """Version that the next event is compared with."""
    notified_at_s: float | None = None
    """When the last event was made; None: never."""
    due_at_s: float | None = None
    """When an event is due for changes since `baseline`; None: there are none."""


@dataclass(frozen=True, slots=True)
class VersionStep:
    """What a new reading of an interface changes: the state, the versions, and the event if one is due."""

    state: VersionState
    replaces_newest: bool
    """Whether the reading replaces the newest version, instead of adding a version."""
    notifies: bool
    """Whether an event is made now; it compares with the former baseline."""
    has_become_unstable: bool


def is_unstable(changes_in_row: int) -> bool:
    """Return whether an interface is unstable: each of so many readings in a row found another one."""
    return changes_in_row >= UNSTABLE_READINGS


def oldest_kept(state: VersionState) -> int:
    """Return the number of the oldest version to keep; the version `baseline` is kept too."""
    oldest = state.newest - MAX_VERSIONS + 1
    return oldest + 1 if state.baseline < oldest else oldest


def first_state() -> VersionState:
    """Return the state of a target whose interface was read for the first time."""
    return VersionState(newest=1, baseline=1)


def next_step(state: VersionState, changes_in_row: int, now_s: float, *, is_agent: bool) -> VersionStep:
    """Return what to do with a reading of an interface that differs from the newest stored version."""
    unstable = is_unstable(changes_in_row)
    replaces = unstable and (not is_agent or state.newest != state.baseline)
    newest = state.newest if replaces else state.newest + 1
    due_at_s = _due_at_s(state.notified_at_s, now_s)
    notifies = is_agent and not unstable and due_at_s <= now_s
    if notifies:
        after = VersionState(newest, newest, now_s)
    elif not is_agent:
        after = VersionState(newest, newest, state.notified_at_s)
    else:
        due_at_s = max(due_at_s, now_s + EVENT_SECONDS) if unstable else due_at_s
        after = VersionState(newest, state.baseline, state.notified_at_s, due_at_s)
    return VersionStep(after, replaces, notifies, has_become_unstable=changes_in_row == UNSTABLE_READINGS)


def _due_at_s(notified_at_s: float | None, now_s: float) -> float:
    """Return when the next event is due.

    A last event in the future was written before the clock was set back.
    """
    if notified_at_s is None or notified_at_s > now_s:
        return now_s
    return notified_at_s + EVENT_SECONDS


def pending_step(state: VersionState, changes_in_row: int, now_s: float, *, is_agent: bool) -> VersionStep:
    """Return what to do when a delayed event is due: emit it, unless the interface is unstable."""
    if is_agent and is_unstable(changes_in_row):
        after = VersionState(state.newest, state.baseline, state.notified_at_s, now_s + EVENT_SECONDS)
    else:
        after = VersionState(state.newest, state.newest, now_s if is_agent else state.notified_at_s)
    notifies = after.due_at_s is None and is_agent
    return VersionStep(after, replaces_newest=False, notifies=notifies, has_become_unstable=False)
