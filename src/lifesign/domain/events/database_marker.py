"""The marker of a database: facts that a server stores outside of it, to recognise it at the next start.

A marker is always a lower bound. It is written after the commits that it names, so its database contains that
event, or a later one, whatever happened in between.
"""

from dataclasses import dataclass
from enum import StrEnum

from lifesign.domain.events.chain import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseMarker:
    """Identity of a database and its latest known event, stored in a file outside the database."""

    installation_id: str
    """`ins_...`, created with the database's first server."""
    epoch: int
    """Epoch of the fencing tokens."""
    head: Checkpoint
    """The last event of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """What a database says about itself, to be compared with its marker file."""

    installation_id: str | None
    """None until a server with markers was started on the database."""
    epoch: int
    head: Checkpoint
    has_marked_event: bool
    """Whether the log contains the marker's event with the same hash, or has archived it since."""


class Mismatch(StrEnum):
    """Reason why a database does not match its marker file."""

    EMPTY = "the database is empty"
    """Or absent."""
    FOREIGN = "the database belongs to another installation"
    BEHIND = "the database is an older copy"
    """Acknowledged changes are missing."""
    DIVERGED = "the database is a copy that has continued separately"
    """The marker's event is another one there."""


def mismatch(marker: DatabaseMarker, state: DatabaseState) -> Mismatch | None:
    """Return why a database is not the one that the marker describes; None if it is.

    A higher epoch is accepted whatever the log contains: only a restore and an adoption raise it, and both
    make all new fencing tokens higher than all old ones.
    """
    if state.installation_id != marker.installation_id:
        return Mismatch.FOREIGN
    if state.epoch != marker.epoch:
        return None if state.epoch > marker.epoch else Mismatch.BEHIND
    if state.head.sequence < marker.head.sequence:
        return Mismatch.BEHIND
    return None if state.has_marked_event else Mismatch.DIVERGED
