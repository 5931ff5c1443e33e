"""Open files of this process, as the kernel counts them, and the tasks of its event loop."""

import asyncio
import contextlib
import gc
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

_PAUSES = 250
_PAUSE_SECONDS = 0.02


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def no_more_than(most: int) -> None:
    """Wait until no more files are open: some libraries close theirs a moment later."""
    for _ in range(_PAUSES):
        if open_files() <= most:
            return
        await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError(f"{open_files()} files are open, {open_files() - most} too many")


@dataclass(frozen=True)
class Held:
    """What this process and its event loop hold now."""

    tasks: int
    sockets: int
    descriptors: int


def held() -> Held:
    links = []
    for place in Path("/proc/self/fd").iterdir():
        # The listing has a descriptor of its own.
        with contextlib.suppress(FileNotFoundError):
            links.append(str(place.readlink()))
    sockets = sum(link.startswith("socket:") for link in links)
    return Held(len(asyncio.all_tasks()), sockets, len(links))


@contextlib.asynccontextmanager
async def nothing_left_over(pauses: int = _PAUSES) -> AsyncIterator[None]:
    """Check that the block leaves no task, socket or file open; peers close theirs a moment later."""
    before = held()
    yield
    for _ in range(pauses):
        gc.collect()
        if held() == before:
            return
        await asyncio.sleep(_PAUSE_SECONDS)
    assert held() == before


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open nothing more until the block ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(place.name) for place in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    with contextlib.ExitStack() as held:
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.enter_context(socket.socket())
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
