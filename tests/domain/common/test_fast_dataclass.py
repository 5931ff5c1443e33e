from dataclasses import dataclass, replace

import pytest

from lifesign.domain.common.fast_dataclass import fast_dataclass


@fast_dataclass()
class Point:
    """Example class of the tests."""

    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class FrozenPoint:
    """The same, as it is usually made."""

    x: int
    y: int = 0


@fast_dataclass(kw_only=True)
class Named:
    """Example class with keyword arguments."""

    name: str


def test_fast_dataclass_compares_by_value() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 2)
    assert {Point(1), Point(1, 0)} == {Point(1)}
    assert replace(Point(1), y=3) == Point(1, 3)


def test_fast_dataclass_has_slots_only() -> None:
    assert not hasattr(Point(1), "__dict__")
    assert Point.__slots__ == FrozenPoint.__slots__  # type: ignore[attr-defined]


def test_keyword_only_field_is_refused_as_a_positional_argument() -> None:
    with pytest.raises(TypeError, match="positional"):
        Named("a")  # type: ignore[call-arg]


def test_only_the_type_checker_checks_immutability() -> None:
    point = Point(1)
    # mypy fails here as soon as there is nothing to ignore.
    point.x = 2  # type: ignore[misc]
    assert point.x == 2
