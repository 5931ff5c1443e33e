"""How is a value made that nobody changes, thousands of times a second?

A frozen dataclass sets each member by a call of its own, so that it takes three times as long to make. Of
the values that each probe makes anew, only the type checker sees to it that nobody changes them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fast_dataclass(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class what `dataclass(frozen=True, slots=True)` makes it, but for what forbids changes."""
    return dataclass(slots=True, kw_only=kw_only, unsafe_hash=True)
