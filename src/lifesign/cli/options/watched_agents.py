"""Options that name the watched agents and their keys."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lifesign.cli.options.registry_access import read_key
from lifesign.domain.activity.opencode_event import is_session_id
from lifesign.domain.models.base import AGENT_ID_CHARACTERS
from lifesign.domain.text.counts import pluralize
from lifesign.errors import InvalidValue

MAX_AGENTS: Final = 1_000

_EXPECTED_MAP: Final = "SESSION=AGENT_ID, such as ses_e07c55ebc=billing-1"


@dataclass(frozen=True, slots=True)
class WatchedAgents:
    """The agents for which `lifesign watch-activity` sends heartbeats, with their sessions and keys."""

    sessions: Mapping[str, Collection[str]]
    """Sessions by agent; empty if the agent's registration names them."""
    keys: Mapping[str, str] = field(repr=False)
    """Keys by agent."""


def read_watched(maps: Collection[str], key_files: Collection[str]) -> WatchedAgents:
    """Read the values of `--map` and `--key-file`; InvalidValue for invalid ones.

    Every agent with a key file of its own is watched, with or without sessions.
    """
    sessions = _mapped(maps)
    own, shared = _key_places(key_files, frozenset(sessions))
    for agent_id in own:
        sessions.setdefault(agent_id, [])
    if not sessions:
        raise InvalidValue("--map", None, f"{_EXPECTED_MAP}, or a key file of each agent's own")
    if len(sessions) > MAX_AGENTS:
        raise InvalidValue("--map", pluralize(len(sessions), "agent"), f"at most {MAX_AGENTS}")
    return WatchedAgents(sessions, {agent_id: read_key(own.get(agent_id, shared)) for agent_id in sessions})


def _mapped(given: Collection[str]) -> dict[str, list[str]]:
    """Return the sessions of each agent that was named."""
    mapped: dict[str, list[str]] = {}
    for text in given:
        session_id, _, agent_id = text.rpartition("=")
        if not is_session_id(session_id) or not _is_agent_id(agent_id):
            raise InvalidValue("--map", text[:80], _EXPECTED_MAP)
        if any(session_id in others for owner, others in mapped.items() if owner != agent_id):
            raise InvalidValue("--map", text[:80], "a session that no other agent has already")
        mapped.setdefault(agent_id, []).append(session_id)
    return mapped


def _key_places(given: Collection[str], mapped: Collection[str]) -> tuple[dict[str, Path], Path | None]:
    """Return the file with each agent's own key, and the one with the key for all others."""
    own: dict[str, Path] = {}
    shared: Path | None = None
    for text in given:
        agent_id, equals, file = text.partition("=")
        if equals and _is_agent_id(agent_id):
            own[agent_id] = Path(file)
        elif Path(text).is_dir():
            own |= _files_in(Path(text), mapped)
        elif shared is None:
            shared = Path(text)
        else:
            raise InvalidValue("--key-file", text, "AGENT_ID=FILE, since there is more than one file")
    return own, shared


def _files_in(directory: Path, mapped: Collection[str]) -> dict[str, Path]:
    """Return the files of a directory whose names are those of agents: of named ones, else of all."""
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    return {
        name: directory / name
        for name in names
        if _is_agent_id(name) and not name.startswith(".") and (not mapped or name in mapped)
    }


def _is_agent_id(text: str) -> bool:
    return re.fullmatch(AGENT_ID_CHARACTERS, text) is not None and text not in {".", ".."}
