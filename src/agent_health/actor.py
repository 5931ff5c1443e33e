"""Who did it, as events name it?

An agent by its id, a key without an agent by the key's id, a part of the registry by its name. No agent
may be called like the other two, or it could leave a trail that looks like theirs.
"""

from enum import StrEnum

KEY_ACTOR_PREFIX = "key:"
"""Begins the name by which a key without an agent acts and holds leases."""


class OwnActor(StrEnum):
    """A part of the registry that acts without being asked by a key: the closed list."""

    ARCHIVIST = "archivist"
    """Moves events that have grown old into files."""
    COMMAND_LINE = "command_line"
    """An operator, at the database itself."""
    COURIER = "courier"
    """Gives up a webhook."""
    MONITOR = "monitor"
    """The sweep, and judgement of what probes saw."""
    SERVER = "server"
    """Makes the first admin key, goes on with imports that nobody drives, finds proofs of opt-outs."""


_OWN_NAMES = frozenset(OwnActor)


def is_reserved(name: str) -> bool:
    """Whether only the registry's own parts and keys act by this name; in any case, since people read it."""
    folded = name.casefold()
    return folded.startswith(KEY_ACTOR_PREFIX) or folded in _OWN_NAMES
