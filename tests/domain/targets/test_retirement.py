import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.targets.retirement import SMALL_DIRECTORY, assess_change
from lifesign.errors import InvalidValue


@pytest.mark.parametrize(
    ("size_before", "removed", "is_suspended"),
    [
        (0, 0, False),
        (1000, 0, False),
        (1000, 500, False),
        (1000, 501, True),
        (1000, 1000, True),
        (181_666, 90_833, False),
        (181_666, 90_834, True),
        (SMALL_DIRECTORY, SMALL_DIRECTORY, False),
        (SMALL_DIRECTORY + 1, SMALL_DIRECTORY + 1, True),
        (11, 5, False),
        (11, 6, True),
    ],
)
def test_directory_that_loses_more_than_half_is_suspended(
    size_before: int, removed: int, *, is_suspended: bool
) -> None:
    assert assess_change(size_before=size_before, removed=removed).is_suspended is is_suspended


def test_reason_contains_removed_share_and_consequence() -> None:
    held = assess_change(size_before=1000, removed=900)
    assert held.reason == (
        "900 of 1000 targets are no longer listed, more than 50%: they stay until an operator confirms it"
    )
    small = assess_change(size_before=4, removed=3)
    assert (
        small.reason
        == "3 of 4 targets are no longer listed; a directory of up to 10 targets is never suspended"
    )
    assert assess_change(size_before=9, removed=0).reason == "no listed target was removed"


@given(st.integers(0, 10**7), st.data())
def test_greater_loss_is_never_suspended_less(size_before: int, data: st.DataObject) -> None:
    removed = data.draw(st.integers(0, size_before))
    more = data.draw(st.integers(removed, size_before))
    if assess_change(size_before=size_before, removed=removed).is_suspended:
        assert assess_change(size_before=size_before, removed=more).is_suspended
        assert 2 * removed > size_before > SMALL_DIRECTORY


@pytest.mark.parametrize(("size_before", "removed"), [(-1, 0), (5, 6), (5, -1)])
def test_impossible_counts_of_a_directory_are_refused(size_before: int, removed: int) -> None:
    with pytest.raises(InvalidValue):
        assess_change(size_before=size_before, removed=removed)
