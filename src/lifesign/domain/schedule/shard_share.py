"""Which shards does a prober keep, give up and get? (protocol 8)

Whoever comes gets what others give up, whoever leaves leaves it to them: nobody assigns anything. A
worker has its fair share, never more, and keeps what it holds as long as that is not too much: what
moves has to be read anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lifesign.domain.net.target import SHARDS
from lifesign.errors import InvalidValue

MAX_TTL_SECONDS: Final = 300.0
"""Longest time for which a worker's claim lasts.

A worker that stops counts for a share until then, and its shards are probed by no other one.
"""


@dataclass(frozen=True, slots=True)
class Division:
    """What becomes of shards at one worker's claim; each in ascending order."""

    kept: tuple[int, ...]
    given_up: tuple[int, ...]
    """Held until now, and more than its share."""
    granted: tuple[int, ...]
    """Nobody's until now."""


NO_DIVISION = Division((), (), ())
"""Of a worker that keeps no shard."""


def fair_share(workers: int, keys: int = 1) -> int:
    """Return how many shards each of so many living workers of one of so many keys may have at most.

    InvalidValue below 1. The shards are divided by keys first: a key does not get more of them by more
    workers. Together all workers may have all shards, and a few more, so that none is ever left over.
    """
    if workers < 1:
        raise InvalidValue("workers", workers, "1 or more")
    if keys < 1:
        raise InvalidValue("keys", keys, "1 or more")
    of_key = -(-SHARDS // keys)
    return -(-of_key // workers)


def divide(held: Iterable[int], free: Iterable[int], share: int) -> Division:
    """Decide on a claim of a worker that may have so many shards at most.

    `held` are the shards that it really holds, `free` those that nobody does. Both are answered from
    their lowest numbers on, so that the same facts give the same division.
    """
    held = sorted(set(held))
    kept = held[:share]
    granted = sorted(set(free).difference(held))[: share - len(kept)]
    return Division(tuple(kept), tuple(held[share:]), tuple(granted))
