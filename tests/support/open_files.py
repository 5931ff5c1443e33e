"""Is anything left open? Counted as the kernel sees it."""

import asyncio
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
