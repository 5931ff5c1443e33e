"""Types of the settings of an agent.

They are checked in one place for all interfaces (decorator, runner, ASGI link): a wrong type would fail later
with an unclear message, or be accepted with an unintended meaning.
"""

import inspect
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lifesign.agent.profile import AgentProfile
from lifesign.domain.files.validation_messages import MAX_SHOWN_CHARACTERS
from lifesign.errors import InvalidValue

_SWITCHES: Final = frozenset({"tasks", "auto_heartbeat", "allow_plain_http"})
_HANDLERS: Final = frozenset({"on_assignment", "on_drain"})
_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = MappingProxyType({
    "registry": ((str,), "a URL, as text"),
    "key": ((str,), "text"),
    "key_file": ((str, os.PathLike), "a path"),
    "lock_dir": ((str, os.PathLike), "a path"),
    "profile": ((AgentProfile,), "an AgentProfile"),
})  # fmt: skip
"""Types of optional settings."""


def check_kinds(**given: object) -> None:
    """Raise InvalidValue for the first of these settings whose value has the wrong type."""
    for name, value in given.items():
        if name in _SWITCHES:
            is_right, expected = isinstance(value, bool), "True or False"
        elif name in _HANDLERS:
            is_right = value is None or (callable(value) and not is_generator(value))
            expected = "a function or a method, without yield"
        else:
            kinds, expected = _KINDS[name]
            is_right = value is None or isinstance(value, kinds)
        if not is_right:
            raise InvalidValue(name, None if name == "key" else _shown(value), expected)


def check_key_file(profile: AgentProfile, key_file: str | os.PathLike[str] | None) -> None:
    """Raise InvalidValue for a key file together with a generated id: no later process could use the key."""
    if key_file is not None and not profile.has_fixed_id:
        expected = (
            "an agent_id beside key_file: without it, each start is another agent, which the stored "
            "key cannot register"
        )
        raise InvalidValue("agent_id", None, expected)


def is_generator(handler: object) -> bool:
    """Return whether a handler contains `yield`, so that a call only creates a generator."""
    return inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)


def _shown(value: object) -> object:
    if isinstance(value, str):
        return value[:MAX_SHOWN_CHARACTERS]
    return value if isinstance(value, int | float) else type(value)
