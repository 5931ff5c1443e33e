"""Do the event log and the store say the same of one thing?"""

from collections.abc import Iterable, Iterator
from typing import Final

TIME_TOLERANCE_S: Final = 0.002
"""Events hold milliseconds, cut off; the store holds more."""


def differences(what: str, logged: object, stored: object, members: Iterable[str]) -> Iterator[str]:
    """Say what either has in those of these members that differ; numbers with a fraction are times."""
    for member in members:
        in_log, in_store = getattr(logged, member), getattr(stored, member)
        if not _is_same(in_log, in_store):
            yield f"{what}: {member} is {in_log} in the log, {in_store} in the store"


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < TIME_TOLERANCE_S
    return one == other
