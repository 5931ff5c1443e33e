"""Configuration of one process of a crawl, and its messages."""

import hashlib
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from lifesign.loopback.listeners import ServerUsers
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.secrets.secret_reader import Secrets
from lifesign.prober.worker.progress_counts import Progress
from lifesign.serving.log_output import LogFormat

EXIT_UNFINISHED: Final = 2
"""Exit code of a process that was stopped before its census was complete."""
EXIT_SHARDS_WITHHELD: Final = 5
"""Exit code of a process that could store no result for too long: a successor could not either."""
MAX_HOST_CHARS: Final = 20
"""Maximum length of this machine's name in the name of a worker."""
_MACHINE_FILES: Final = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")
"""Files that differ between machines whose host names are equal. A container or a service may lack either."""
_RUN: Final = secrets.token_hex(3)
"""Part of the names of this crawl's workers: two containers can have the same host name and process ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAddress:
    """A registry, and the credentials for it."""

    url: str
    key: str = field(repr=False)
    allow_plain_http: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one process; sent through a pipe, since it may contain a secret."""

    definition: ProbeDefinition
    worker: str
    """A name that no other process has, on this machine or, with a registry, anywhere."""
    since_s: float | None
    """When the census began, in seconds since the epoch; None: the crawl never ends."""
    database: str | None = field(default=None, repr=False)
    """Source of work: the URL of a database, or a registry; exactly one of the two."""
    registry: RegistryAddress | None = None
    secrets: Secrets = field(default_factory=Secrets, repr=False)
    """Those of the definition's credentials that this process sends itself."""
    companions: int = 0
    """Number of other processes that start at the same time and will claim a share of the work."""
    log_format: LogFormat = LogFormat.CONSOLE


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Message of a process to its parent: its progress, a text, or a log line."""

    progress: Progress | None = None
    line: str | None = None
    logged: str | None = None
    """Log entries of the worker, in the form of the crawl's log."""
    withheld: tuple[str, float] | None = None
    """Reason why nothing could be stored, and for how many seconds: the worker ends."""
    first_users: Mapping[int, ServerUsers] = field(default_factory=dict)
    """Users of the servers on this machine that the worker found, for its successor."""


def worker_name(number: int, *, is_alone: bool) -> str:
    """Return the name of a process of this crawl.

    `is_alone`: no other machine crawls with this database, so that a restarted crawl takes over the shards of
    its predecessor, however that ended, without waiting for its leases to expire.
    """
    if is_alone:
        return f"worker-{number}"
    return f"{_host()}-{os.getpid()}-{_RUN}-{number}"


def is_predecessor(name: str) -> bool:
    """Return whether a worker's name is of a crawl on this machine, or in this container, that has ended."""
    host, *rest = name.rsplit("-", 3)
    if host != _host() or len(rest) != 3 or not rest[0].isdecimal():
        return False
    pid, run = int(rest[0]), rest[1]
    # A container that is started again has the same process ids.
    return run != _RUN and (pid == os.getpid() or not _is_running(pid))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@cache
def _host() -> str:
    """Return this machine's name, or the container's, with a digest that other machines do not share."""
    name = os.uname().nodename
    facts = [name.encode()]
    for file in _MACHINE_FILES:
        with suppress(OSError):
            facts.append(Path(file).read_bytes())
    host = "".join(character for character in name if character.isascii() and character.isalnum())
    digest = hashlib.sha256(b"\0".join(facts)).hexdigest()
    return f"{host[:MAX_HOST_CHARS] or 'host'}-{digest[:6]}"
