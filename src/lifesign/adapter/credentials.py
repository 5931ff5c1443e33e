"""Stored keys of agents, and locks against a second process with the same agent id.

Each registry has a directory among the workspaces, with one file for each agent that it issued a key: a key
must be sent to no other registry. Each agent has one lock file for all registries, which its process keeps
locked: two of them would replace each other and work on one task.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from yarl import URL

from lifesign.client.registry_connection import parse_registry_url
from lifesign.errors import InvalidValue
from lifesign.filesystem.file_lock import open_lock_file, try_lock

KEYS_DIRECTORY: Final = "own-keys"
"""The directory, among the workspaces."""
_LOCK: Final = ".lock"
_DIGEST_DIGITS: Final = 16
_MAX_HOST_CHARS: Final = 200
"""Maximum length of the host in the name of a directory; Linux allows 255 bytes for the name."""


def agent_key_file(root: Path, registry: str, agent_id: str) -> Path:
    """Return the path of the key file of an agent at the registry with this URL.

    InvalidValue if the URL is invalid, or no file can be stored there.
    """
    # The client decides whether it uses plain HTTP.
    url = parse_registry_url(registry, allow_plain_http=True)
    directory = root / KEYS_DIRECTORY / _directory_name(url)
    try:
        for one in (directory.parent, directory):
            one.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _not_writable(root, error) from None
    return directory / f"{agent_id}.key"


def _directory_name(url: URL) -> str:
    """Return a name with the host and port for people, and a digest that tells the whole URLs apart."""
    digest = sha256(str(url).encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{(url.raw_host or '')[:_MAX_HOST_CHARS]}-{url.port}-{digest}"


@contextmanager
def agent_lock(agent_id: str, own_key: Path) -> Iterator[None]:
    """Lock an agent's id for these workspaces; InvalidValue if another process runs as this agent.

    This is so at any registry.

    The kernel releases the lock when this process ends, in any way.
    """
    try:
        fd = open_lock_file(_lock_of(own_key))
    except OSError as error:
        raise _not_writable(own_key.parents[2], error) from None
    if not try_lock(fd):
        os.close(fd)
        expected = "an agent id that no other adapter uses with these workspaces"
        raise InvalidValue("--agent-id", agent_id, expected)
    try:
        yield
    finally:
        os.close(fd)


def forget(own_key: Path) -> None:
    """Remove the key file of an agent that will not run again, and its lock file.

    Workspaces that its runs made inaccessible stay.
    """
    for file in (own_key, _lock_of(own_key)):
        with suppress(OSError):
            file.unlink()


def _lock_of(own_key: Path) -> Path:
    return own_key.parents[1] / f"{own_key.stem}{_LOCK}"


def _not_writable(root: Path, error: OSError) -> InvalidValue:
    return InvalidValue("--workspaces", str(root), f"a writable directory ({error.strerror})")
