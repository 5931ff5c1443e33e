"""Dataclasses that are created thousands of times a second.

A frozen dataclass sets each member by a separate call, and takes three times as long to create. These classes
are frozen only for the type checker.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fast_dataclass(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Class decorator: a dataclass with slots that counts as frozen, without the slow checks for that."""
    return dataclass(slots=True, kw_only=kw_only, unsafe_hash=True)
