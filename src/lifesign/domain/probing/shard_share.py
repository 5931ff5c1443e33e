"""Distribution of shards among workers (protocol 8).

A new worker gets shards that others release, and a worker that stops leaves its shards to the others: there
is no coordinator. A worker has its fair share, never more, and keeps its shards within it: a moved shard has
to be read again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lifesign.domain.targets.target import SHARDS
from lifesign.errors import InvalidValue

MAX_TTL_SECONDS: Final = 300.0
"""Longest time for which a worker's claim lasts.

A worker that stops counts for a share until then, and its shards are probed by no other one.
"""


@dataclass(frozen=True, slots=True)
class Division:
    """Shards that a worker keeps, gives up and is granted by a claim, each sorted."""

    kept: tuple[int, ...]
    given_up: tuple[int, ...]
    """Held until now, and more than its share."""
    granted: tuple[int, ...]
    """Shards that were free."""


NO_DIVISION = Division((), (), ())
"""Division for a worker that keeps no shard."""


def fair_share(workers: int, keys: int = 1) -> int:
    """Return the maximum number of shards for each of a key's `workers`, if `keys` keys share all shards.

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
    """Decide which shards a worker keeps, gives up and gets, if it may have `share` of them.

    `held` are the shards that it holds by the registry's records, `free` those without a holder. Both are
    used from the lowest number on, so that the same facts give the same division.
    """
    held = sorted(set(held))
    kept = held[:share]
    granted = sorted(set(free).difference(held))[: share - len(kept)]
    return Division(tuple(kept), tuple(held[share:]), tuple(granted))
