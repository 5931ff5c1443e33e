"""Frequency of Python's garbage collection in a server, and in a command.

Nearly everything that a request leaves is freed with its last reference. With the default threshold, hundreds
of concurrent requests make Python walk through the whole heap again and again, which was a fourth of the cost
of a heartbeat. Nor do imports leave any garbage, and collections took a tenth of their time or more. Python
collects once more as it ends, which took a sixth of all that a server costs to start and stop.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 20_000
"""Number of new objects before a collection: those of 500 concurrent requests."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Run Python's garbage collection less often than by default within this context."""
    before = gc.get_threshold()
    gc.set_threshold(max(YOUNG_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def skip_last_collection() -> None:
    """Have this process end without a search for garbage: the system frees its memory at once.

    Functions of `atexit` still run. Variables of modules are not freed: files must be closed by then.
    """
    atexit.register(gc.freeze)
