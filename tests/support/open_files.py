"""Open files of this process, as the kernel counts them."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
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
