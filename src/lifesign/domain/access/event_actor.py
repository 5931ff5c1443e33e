"""Actors in events.

An actor is an agent by its id, a key without an agent by the key's id, or a part of the registry by its name.
No agent may have a name of the other two kinds: it could imitate their actions.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

KEY_ACTOR_PREFIX = "key:"
"""Prefix of the name under which a key without an agent acts and holds leases."""
MEMBERS_OF_ACTORS = ("holder", "writer")
"""Members of an event's payload that contain actors."""


class OwnActor(StrEnum):
    """A part of the registry that acts without a key, and is named as the actor of events."""

    ARCHIVIST = "archivist"
    """Moves events that have grown old into files."""
    COMMAND_LINE = "command_line"
    """An operator, at the database itself."""
    COURIER = "courier"
    """Gives up a webhook."""
    MONITOR = "monitor"
    """The sweep, and the assessment of probe results."""
    SERVER = "server"
    """Creates the first admin key, continues abandoned imports, finds proofs of opt-outs."""


_RESERVED_NAMES = frozenset(OwnActor)
_KEY_IN_WORDS = re.compile(rf"\b{KEY_ACTOR_PREFIX}\w+", re.ASCII)


def is_reserved(name: str) -> bool:
    """Return whether a name belongs to the registry's own actors or to keys. Case does not matter."""
    folded = name.casefold()
    return folded.startswith(KEY_ACTOR_PREFIX) or folded in _RESERVED_NAMES


def key_behind(name: str) -> str | None:
    """Return the key of an actor such as `key:ID/worker`, without the worker; None for another actor."""
    return name.partition("/")[0] if name.startswith(KEY_ACTOR_PREFIX) else None


def display_actor(name: str, names: Mapping[str, str]) -> str:
    """Return an event's actor for people: a key with its name, if `names` contains it."""
    called = names.get(key_behind(name) or "")
    return name if called is None else f"{called}, {name}"


def with_key_names(words: str, names: Mapping[str, str]) -> str:
    """Return a text in which each key, such as `key:key_1`, has its name added for people."""
    return _KEY_IN_WORDS.sub(lambda found: display_actor(found[0], names), words)


def keys_in_words(words: str) -> set[str]:
    """Return the keys (`key:ID`) that a text for people mentions."""
    return set(_KEY_IN_WORDS.findall(words))


def keys_acting(actor: str, payload: Mapping[str, Any]) -> set[str]:
    """Return the keys that an event names: as its actor, or as holder or writer in its payload."""
    named = (actor, *(payload.get(member) for member in MEMBERS_OF_ACTORS))
    return {key for name in named if isinstance(name, str) and (key := key_behind(name)) is not None}
