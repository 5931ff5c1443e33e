"""Which shards does a prober keep, give up and get? (protocol 8)

Whoever comes gets what others give up, whoever leaves leaves it to them: nobody assigns anything. A
worker has its fair share, never more, and keeps what it holds as long as that is not too much: what
moves has to be read anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lifesign.domain.net.target import SHARDS
from lifesign.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Division:
    """What becomes of shards at one worker's claim; each in ascending order."""

    kept: tuple[int, ...]
    given_up: tuple[int, ...]
    """Held until now, and more than its share."""
    granted: tuple[int, ...]
    """Nobody's until now."""


NOTHING = Division((), (), ())
"""Of a worker that keeps no shard."""


def fair_share(workers: int) -> int:
    """Return how many shards each of so many living workers may have at most; InvalidValue below 1.

    Together they may have all of them, and a few more, so that none is ever left over.
    """
    if workers < 1:
        raise InvalidValue("workers", workers, "1 or more")
    return -(-SHARDS // workers)


def divide(held: Iterable[int], free: Iterable[int], workers: int) -> Division:
    """Decide on a claim of one of so many living workers, itself counted.

    `held` are the shards that it really holds, `free` those that nobody does. Both are answered from
    their lowest numbers on, so that the same facts give the same division.
    """
    share = fair_share(workers)
    held = sorted(set(held))
    kept = held[:share]
    granted = sorted(set(free).difference(held))[: share - len(kept)]
    return Division(tuple(kept), tuple(held[share:]), tuple(granted))
