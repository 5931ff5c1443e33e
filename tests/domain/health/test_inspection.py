"""Inspection of answers: the counts of a window, and those in a peer's document."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.health.inspection import (
    INSPECTION_KEY,
    Inspection,
    InspectionNote,
    InspectionTally,
    StatusRule,
    inspection_extension,
    read_inspection,
    tally_of,
)

COUNTS = st.lists(st.integers(0, 2**40), min_size=len(Inspection), max_size=len(Inspection))


def test_inspection_numbers_stored_in_window_files_are_fixed() -> None:
    assert [one.name for one in Inspection] == [
        "INSPECTED", "COMPRESSED", "OVERSIZED", "COMPLEX", "NO_ROOM", "FROM_FILE", "UNSPECIFIED",
        "TOOL_RESULT",
    ]  # fmt: skip
    assert list(Inspection) == list(range(len(Inspection)))


@pytest.mark.parametrize(
    ("inspected", "reasons", "is_mostly_missing"),
    [
        (0, {}, False),
        (1, {"complex": 1}, False),
        (1, {"complex": 1, "oversized": 1}, True),
        (0, {"x": 1}, True),
    ],
)
def test_inspection_is_mostly_missing_above_one_half(
    inspected: int, reasons: dict[str, int], *, is_mostly_missing: bool
) -> None:
    assert InspectionTally(inspected, reasons).is_mostly_missing is is_mostly_missing


@given(COUNTS, st.sampled_from(StatusRule))
def test_written_values_are_read_back(counts: list[int], rule: StatusRule) -> None:
    tally = tally_of(counts)
    assert tally.inspected + sum(tally.not_inspected.values()) == sum(counts)
    written = {INSPECTION_KEY: inspection_extension(tally, rule)}
    assert read_inspection(written) == InspectionNote(rule, tally)


@pytest.mark.parametrize("extensions", [None, {}, {INSPECTION_KEY: None}, {INSPECTION_KEY: ["ratio"]}])
def test_document_without_an_inspection_extension_has_no_note(extensions: dict[str, Any] | None) -> None:
    assert read_inspection(extensions) is None


@pytest.mark.parametrize("value", [-1, 0, True, 1.5, "3", None, [1], 2**53])
def test_invalid_count_is_ignored(value: object) -> None:
    given_ = {
        "rule": value,
        "inspected": value,
        "not_inspected": {"compressed": value, "complex": 2, "evil": 9},
    }
    assert read_inspection({INSPECTION_KEY: given_}) == InspectionNote(
        None, InspectionTally(0, {"complex": 2})
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
)


@given(JSON, JSON, JSON)
def test_any_value_of_the_inspection_extension_is_read(rule: Any, inspected: Any, reasons: Any) -> None:
    note = read_inspection({INSPECTION_KEY: {"rule": rule, "inspected": inspected, "not_inspected": reasons}})
    assert note is not None
    assert note.tally.not_inspected.keys() <= {one.name.lower() for one in Inspection}
