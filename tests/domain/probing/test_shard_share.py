import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.probing.shard_share import divide, fair_share
from lifesign.domain.targets.target import SHARDS
from lifesign.errors import InvalidValue

WORKERS = st.integers(1, 2 * SHARDS)
SETS = st.sets(st.integers(0, SHARDS - 1), max_size=SHARDS)


@given(WORKERS)
def test_fair_share_is_the_smallest_that_covers_all_shards(workers: int) -> None:
    share = fair_share(workers)
    assert share * workers >= SHARDS
    assert (share - 1) * workers < SHARDS


@pytest.mark.parametrize("workers", [0, -1])
def test_without_workers_there_is_no_share(workers: int) -> None:
    with pytest.raises(InvalidValue, match="workers"):
        fair_share(workers)
    with pytest.raises(InvalidValue, match="keys"):
        fair_share(1, workers)


@given(WORKERS, WORKERS, WORKERS)
def test_the_share_of_a_key_does_not_grow_with_its_workers(keys: int, few: int, many: int) -> None:
    of_key = fair_share(1, keys)
    for workers in (few, many):
        share = fair_share(workers, keys)
        assert share * workers >= of_key
        assert (share - 1) * workers < of_key


@given(SETS, SETS, WORKERS)
def test_worker_gives_up_only_shards_above_its_share(held: set[int], free: set[int], workers: int) -> None:
    share = fair_share(workers)
    division = divide(held, free, share)
    assert set(division.kept) | set(division.given_up) == held
    assert set(division.granted) <= free - held
    assert len(division.kept) + len(division.granted) <= share
    # Nothing is given up that it may keep, and nothing left that it may have.
    assert not division.given_up or len(division.kept) == share
    is_full = len(division.kept) + len(division.granted) == share
    assert is_full or set(division.granted) == free - held
    assert not (division.given_up and division.granted)


@given(st.lists(SETS, min_size=1, max_size=6))
def test_any_order_of_claims_assigns_every_shard_once(
    starts: list[set[int]],
) -> None:
    owned: list[set[int]] = []
    free = set(range(SHARDS))
    for start in starts:
        owned.append(start & free)
        free -= start
    for _ in range(2):
        for worker in range(len(owned)):
            division = divide(owned[worker], free, fair_share(len(owned)))
            free = (free | set(division.given_up)) - set(division.granted)
            owned[worker] = set(division.kept) | set(division.granted)
    assert free == set()
    assert sum(map(len, owned)) == SHARDS == len(set().union(*owned))
