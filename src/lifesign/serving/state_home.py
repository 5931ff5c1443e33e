"""Directory of this user's state, by the XDG base directory specification."""

from collections.abc import Mapping
from pathlib import Path


def state_home(environment: Mapping[str, str]) -> Path:
    """Return the directory of lifesign below `$XDG_STATE_HOME`, or below `~/.local/state`.

    A relative `$XDG_STATE_HOME` is ignored, as the specification says. RuntimeError if this user has no home.
    """
    state = environment.get("XDG_STATE_HOME")
    base = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "lifesign"
