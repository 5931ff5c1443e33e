"""Where are the keys that the registry told its agents, and who lives as which of them here?

One file for each agent, in a directory among the workspaces. Beside it stands another one, which whoever
lives as that agent keeps locked: two would take its place from each other, and work at one task.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lifesign.errors import InvalidValue
from lifesign.filesystem.file_lock import open_lock_file, try_lock

KEYS_DIRECTORY: Final = "own-keys"
"""The directory, among the workspaces."""
_LOCK: Final = ".lock"


def agent_key_file(root: Path, agent_id: str) -> Path:
    """Return where an agent's own key is, or will be; InvalidValue if nothing can be kept there."""
    directory = root / KEYS_DIRECTORY
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _not_writable(root, error) from None
    return directory / f"{agent_id}.key"


@contextmanager
def alone_as(agent_id: str, own_key: Path) -> Iterator[None]:
    """Let nobody else live as an agent with these workspaces; InvalidValue if somebody does.

    The kernel lets go of the lock when this process ends, however it ends.
    """
    try:
        fd = open_lock_file(_lock_of(own_key))
    except OSError as error:
        raise _not_writable(own_key.parent.parent, error) from None
    if not try_lock(fd):
        os.close(fd)
        expected = "an agent as which no other adapter runs with these workspaces: give each its own"
        raise InvalidValue("--agent-id", agent_id, expected)
    try:
        yield
    finally:
        os.close(fd)


def forget(own_key: Path) -> None:
    """Remove what is kept of an agent as which nobody comes back; what its runs have shut away stays."""
    for file in (own_key, _lock_of(own_key)):
        with suppress(OSError):
            file.unlink()


def _lock_of(own_key: Path) -> Path:
    return own_key.with_suffix(_LOCK)


def _not_writable(root: Path, error: OSError) -> InvalidValue:
    return InvalidValue("--workspaces", str(root), f"a directory to write to ({error.strerror})")
