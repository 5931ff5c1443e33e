"""Hints about the units of members whose names end with a unit."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

_EXAMPLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "seconds": ("a number of seconds", "300 for 5 minutes"),
        "hours": ("a number of hours", "36 for a day and a half"),
        "days": ("a number of days", "14 for two weeks"),
        "ms": ("a number of milliseconds", "1500 for 1.5 seconds"),
        "bytes": ("a number of bytes", "1048576 for 1 MiB"),
        "megabytes": ("a number of megabytes (10^6 bytes)", "2000 for 2 GB"),
        "ratio": ("a number between 0 and 1", "0.5 for 50 %"),
    }
)
"""Unit and example, by the last word of a name."""


def unit_hint(pointers: Iterable[str]) -> str:
    """Return a hint about the unit of the first of these members whose name ends with one; else empty.

    pointers: JSON pointers (RFC 6901) of wrong values, such as `/limits/body_bytes`.
    """
    for pointer in pointers:
        name = pointer.rpartition("/")[2]
        found = _EXAMPLES.get(name.rpartition("_")[2])
        if found is not None:
            return f"{name} is {found[0]}: {found[1]}"
    return ""
