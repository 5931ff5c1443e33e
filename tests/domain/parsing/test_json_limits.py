from dataclasses import dataclass
from math import inf, nan
from sys import float_info
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError, to_json

from lifesign.domain.parsing.json_limits import check_json_depth, check_json_size, is_finite, repeated_member

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
OBJECTS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner)),
    max_size=4,
)


def levels_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(levels_of, value.values() if isinstance(value, dict) else value), default=0)


@given(OBJECTS)
def test_json_is_accepted_up_to_its_depth_and_size(value: dict[str, Any]) -> None:
    levels, size = levels_of(value), len(to_json(value))
    assert check_json_size(value, levels, size) == value
    with pytest.raises(PydanticCustomError, match="levels of nesting"):
        check_json_depth(value, levels - 1)
    with pytest.raises(PydanticCustomError, match=f"at most {size - 1} bytes"):
        check_json_size(value, levels, size - 1)


@pytest.mark.parametrize("value", [map(str, [1]), (n for n in [1]), ([zip([1])],), [(reversed([1]),)]])
def test_iterators_are_refused_at_any_depth(value: Any) -> None:
    with pytest.raises(PydanticCustomError) as refused:
        check_json_size({"v": value}, 8, 100)
    assert refused.value.type == "iterator"


@dataclass
class Rows:
    rows: Any


@pytest.mark.parametrize("wrap", [lambda one: (one,), Rows, lambda one: {"v": Rows((one,))}])
def test_values_are_checked_as_they_are_sent(wrap: Any) -> None:
    assert check_json_size({"v": (1, {2})}, 3, 100) == {"v": [1, [2]]}
    for number in (nan, inf, 10**400):
        with pytest.raises(PydanticCustomError, match="finite"):
            check_json_size({"v": wrap(number)}, 8, 1_000)
    with pytest.raises(PydanticCustomError, match="levels of nesting"):
        check_json_size({"v": wrap([[[]]])}, 3, 1_000)


@pytest.mark.parametrize("number", [nan, inf, -inf, 10**309, -(10**400)])
@pytest.mark.parametrize("levels", [1, 2, 32])
def test_ambiguous_numbers_are_refused_everywhere(number: float, levels: int) -> None:
    value: Any = number
    for level in range(levels):
        value = {"a": value} if (levels - level) % 2 else [0, value]
    with pytest.raises(PydanticCustomError, match="finite"):
        check_json_depth({"x": 1, **(value if isinstance(value, dict) else {"a": value})}, levels + 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, True),
        ({"a": [1, "NaN", None]}, True),
        ({"a": [{"b": float("nan")}]}, False),
        ([1e400], False),
        ({"a": 10**400}, False),
        ([-(10**400)], False),
        ([10**300, True], True),
        ([int(float_info.max), -int(float_info.max)], True),
        ([int(float_info.max) + 1], False),
        (["9" * 400, '\\"' + "9" * 400, {"9" * 400: 1}], True),
        (["9" * 400, '\\"', 10**400], False),
    ],
)
def test_nan_and_infinite_numbers_are_found_at_any_depth(value: object, *, expected: bool) -> None:
    assert is_finite(value) is expected


ANY_NUMBERS = st.recursive(
    LEAVES | st.floats() | st.sampled_from(["9" * 400, '\\"', 10**308, 10**309]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
)


@given(ANY_NUMBERS)
def test_value_is_finite_if_all_its_numbers_are(value: Any) -> None:
    assert is_finite(value) is all(abs(number) <= float_info.max for number in numbers_of(value))


def numbers_of(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return [number for one in inside for number in numbers_of(one)]
    return [value] if isinstance(value, float | int) else []


@given(OBJECTS)
def test_objects_with_unique_names_have_no_repeated_member(value: dict[str, Any]) -> None:
    assert repeated_member(to_json(value)) is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1, "a": 1}', ("a",)),
        ('{"a": 1, "\\u0061": 2}', ("a",)),
        ('{"a" : 1, "b": [2], "a":3}', ("a",)),
        ('{"a":"b","b":"a"}', None),
        ('{"": 1, "": 2}', ("",)),
        ('[{"a": 1}, {"b": {"c": [], "c": {}}}]', (1, "b", "c")),
        ('{"a": 1, "A": 1}', None),
        ('[{"a": 1}, {"a": 1}]', None),
        ('"a"', None),
        ("9" * 5_000, None),
    ],
)
def test_pointer_to_a_repeated_name_is_returned(text: str, place: tuple[str | int, ...] | None) -> None:
    assert repeated_member(text.encode()) == place
