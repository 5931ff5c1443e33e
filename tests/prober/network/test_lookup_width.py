import pytest

from lifesign.prober.network.lookup_width import (
    FIRST_LOOKUPS_AT_ONCE,
    LOOKUPS_PER_SAMPLE,
    MAX_LOOKUPS_AT_ONCE,
    MIN_LOOKUPS_AT_ONCE,
    LookupWidth,
)


def width_after(*samples: int) -> int:
    """Return the number of parallel lookups after samples with so many lost queries."""
    width = LookupWidth()
    for lost in samples:
        for number in range(LOOKUPS_PER_SAMPLE):
            if width.note(is_lost=number < lost):
                width.note_check(is_overloaded=True)
    return width.at_once


@pytest.mark.parametrize(
    ("samples", "at_once"),
    [
        ((), FIRST_LOOKUPS_AT_ONCE),
        ((0,), 2 * FIRST_LOOKUPS_AT_ONCE),
        ((4,), 2 * FIRST_LOOKUPS_AT_ONCE),
        # Queries for unserved names get lost too.
        ((5,), FIRST_LOOKUPS_AT_ONCE),
        ((16,), FIRST_LOOKUPS_AT_ONCE),
        ((17,), FIRST_LOOKUPS_AT_ONCE // 2),
        ((17, 0), FIRST_LOOKUPS_AT_ONCE),
        ((50,) * 9, MIN_LOOKUPS_AT_ONCE),
        ((0,) * 9, MAX_LOOKUPS_AT_ONCE),
    ],
)
def test_lost_queries_reduce_the_number_of_concurrent_lookups(samples: tuple[int, ...], at_once: int) -> None:
    assert width_after(*samples) == at_once


def test_names_without_a_server_do_not_reduce_the_number_of_concurrent_lookups() -> None:
    width = LookupWidth()
    for _ in range(LOOKUPS_PER_SAMPLE - 1):
        assert not width.note(is_lost=True)
    assert width.note(is_lost=True)
    width.note_check(is_overloaded=False)
    assert (width.at_once, width.is_overloaded) == (FIRST_LOOKUPS_AT_ONCE, False)


def test_overload_ends_when_few_queries_are_lost() -> None:
    width = LookupWidth()
    width.note_check(is_overloaded=True)
    assert width.is_overloaded
    for _ in range(LOOKUPS_PER_SAMPLE):
        width.note(is_lost=False)
    assert not width.is_overloaded
