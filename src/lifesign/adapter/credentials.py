"""Stored keys of agents, and locks against a second process with the same agent id.

Each agent has one file in a directory among the workspaces. Beside it is a lock file, which the process of
that agent keeps locked: two of them would replace each other and work on one task.
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
    """Return the path of the agent's own key file; InvalidValue if no file can be stored there."""
    directory = root / KEYS_DIRECTORY
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _not_writable(root, error) from None
    return directory / f"{agent_id}.key"


@contextmanager
def agent_lock(agent_id: str, own_key: Path) -> Iterator[None]:
    """Lock an agent's id for these workspaces; InvalidValue if another process runs as this agent.

    The kernel releases the lock when this process ends, in any way.
    """
    try:
        fd = open_lock_file(_lock_of(own_key))
    except OSError as error:
        raise _not_writable(own_key.parent.parent, error) from None
    if not try_lock(fd):
        os.close(fd)
        expected = "an agent id that no other adapter uses with these workspaces"
        raise InvalidValue("--agent-id", agent_id, expected)
    try:
        yield
    finally:
        os.close(fd)


def forget(own_key: Path) -> None:
    """Remove the key file of an agent that will not run again, and the files beside it.

    Workspaces that its runs made inaccessible stay.
    """
    for file in (own_key, _lock_of(own_key)):
        with suppress(OSError):
            file.unlink()


def _lock_of(own_key: Path) -> Path:
    return own_key.with_suffix(_LOCK)


def _not_writable(root: Path, error: OSError) -> InvalidValue:
    return InvalidValue("--workspaces", str(root), f"a writable directory ({error.strerror})")
