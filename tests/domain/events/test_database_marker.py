from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.events.chain import GENESIS, Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker, DatabaseState, Mismatch, mismatch

MARKER = DatabaseMarker(installation_id="ins_1", epoch=3, head=Checkpoint(10, "a" * 64))
SAME = DatabaseState(installation_id="ins_1", epoch=3, head=Checkpoint(10, "a" * 64), has_marked_event=True)


@pytest.mark.parametrize(("state", "expected"), [
    (SAME, None),
    (replace(SAME, head=Checkpoint(11, "b" * 64)), None),
    (replace(SAME, installation_id="ins_2"), Mismatch.FOREIGN),
    (replace(SAME, installation_id=None), Mismatch.FOREIGN),
    (replace(SAME, head=Checkpoint(9, "c" * 64), has_marked_event=False), Mismatch.BEHIND),
    (replace(SAME, head=GENESIS, has_marked_event=False), Mismatch.BEHIND),
    (replace(SAME, epoch=2), Mismatch.BEHIND),
    (replace(SAME, head=Checkpoint(10, "d" * 64), has_marked_event=False), Mismatch.DIVERGED),
    (replace(SAME, head=Checkpoint(99, "d" * 64), has_marked_event=False), Mismatch.DIVERGED),
    # Restored or adopted: whatever the log says, all new tokens are above all old ones.
    (replace(SAME, epoch=4, head=Checkpoint(2, "e" * 64), has_marked_event=False), None),
    (replace(SAME, epoch=4, installation_id="ins_2"), Mismatch.FOREIGN),
])  # fmt: skip
def test_a_database_is_compared_with_its_marker(state: DatabaseState, expected: Mismatch | None) -> None:
    assert mismatch(MARKER, state) is expected


PLACES = st.tuples(st.integers(0, 5), st.integers(0, 50))


@given(written=PLACES, later=PLACES)
def test_database_ahead_of_its_marker_is_no_mismatch(
    written: tuple[int, int], later: tuple[int, int]
) -> None:
    """Whichever process wrote the marker, and however late, the database only advances from there."""
    epoch, sequence = written
    marker = DatabaseMarker(installation_id="ins_1", epoch=epoch, head=Checkpoint(sequence, "a" * 64))
    state = DatabaseState(
        installation_id="ins_1",
        epoch=epoch + later[0],
        head=Checkpoint(sequence + later[1], "b" * 64),
        has_marked_event=True,
    )
    assert mismatch(marker, state) is None
