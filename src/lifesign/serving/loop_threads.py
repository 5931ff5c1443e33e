"""Threads of the event loop, for lookups of host names and for files."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

MAX_THREADS: Final = 256
"""Maximum of threads of the event loop, which start when they are needed.

If the name servers of a host are silent, a lookup keeps its thread after its request was given up. With few
threads, some such hosts would delay all other requests, and the files that are written beside the loop.
"""


def use_enough_threads(name: str) -> None:
    """Give the running event loop a pool of MAX_THREADS threads, whose names begin with this one."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_THREADS, name))
