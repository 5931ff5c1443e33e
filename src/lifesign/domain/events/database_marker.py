"""The marker of a database: what a server keeps outside of it, to recognise the database at the next start.

A marker is always a lower bound. It is written after the commits that it names, so the database it belongs to
has that event, or a later one, whatever happened in between.
"""

from dataclasses import dataclass
from enum import StrEnum

from lifesign.domain.events.chain import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseMarker:
    """Identity and progress of a database."""

    installation_id: str
    """`ins_...`, created with the database's first server."""
    epoch: int
    """Epoch of the fencing tokens."""
    head: Checkpoint
    """The last event of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """State of a database, read after the marker that it is compared with."""

    installation_id: str | None
    """None until a server with markers has started on it."""
    epoch: int
    head: Checkpoint
    has_marked_event: bool
    """Whether the log leads over the marker's event: it is there with the same hash, or archived since."""


class Mismatch(StrEnum):
    """Why a database does not fit its marker; the texts give callers no other facts."""

    EMPTY = "the database is empty"
    """Or absent."""
    FOREIGN = "the database belongs to another installation"
    BEHIND = "the database is an older copy"
    """Acknowledged changes are missing."""
    DIVERGED = "the database is a copy that has continued separately"
    """The marker's event is another one there."""


def mismatch(marker: DatabaseMarker, state: DatabaseState) -> Mismatch | None:
    """Return why the database is not the marker's; None if it is.

    A higher epoch is accepted whatever the log says: only a restore and an adoption raise it, and both put
    all new fencing tokens above all old ones.
    """
    if state.installation_id != marker.installation_id:
        return Mismatch.FOREIGN
    if state.epoch != marker.epoch:
        return None if state.epoch > marker.epoch else Mismatch.BEHIND
    if state.head.sequence < marker.head.sequence:
        return Mismatch.BEHIND
    return None if state.has_marked_event else Mismatch.DIVERGED
