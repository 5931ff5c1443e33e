"""How often does Python look for garbage while the server runs?

Hardly anything here has to be looked for: what a request leaves goes with its last reference. But by default
hundreds of requests in flight make Python walk through the whole heap again and again, which was a fourth
of what a heartbeat costs.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 20_000
"""That may come to be before Python looks through them: what 500 requests in flight consist of."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Have Python look for garbage less often than by default, for as long as this lasts."""
    before = gc.get_threshold()
    gc.set_threshold(max(YOUNG_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
