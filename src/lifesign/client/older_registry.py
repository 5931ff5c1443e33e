"""What does a registry of an older version not know of what is reported, and what is reported to it then?

A registry refuses members that it does not know, so that nothing misspelt is silently ignored. What a newer
prober sees beyond those is left out, and all else counts.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from lifesign.client.registry_errors import Unprocessable

LEAVABLE: Final = ("observations", "memories")
"""Where members may be left out: beside them stands whose the results are, and that is never left out."""
MAX_LEFT_OUT: Final = 64
"""Members; a registry that knows fewer is none of ours."""
ASK_AGAIN_SECONDS: Final = 3600.0
"""After which all is reported again: the registry may be a newer one by now."""
MAX_PARTS: Final = 8
"""Of the way to one member."""

_UNKNOWN: Final = "extra_forbidden"
_ANY: Final = "*"
"""Stands for a place in a list: what is unknown in one result is so in all."""

Way = tuple[str, ...]


class UnknownMembers:
    """Members that one registry does not know, by the ways to them."""

    def __init__(self) -> None:
        self._ways: set[Way] = set()
        self._since_s = 0.0

    @property
    def names(self) -> list[str]:
        """Return them as people read them: `observations.document.error_ratio`."""
        return sorted(".".join(part for part in way if part != _ANY) for way in self._ways)

    def note(self, refusal: Unprocessable, now_s: float) -> bool:
        """Note what a refusal says that is not known; whether that is anything new."""
        before = len(self._ways)
        if not before:
            self._since_s = now_s
        self._ways.update(list(_ways(refusal))[: MAX_LEFT_OUT - before])
        return len(self._ways) > before

    def without(self, body: bytes, now_s: float) -> bytes:
        """Return a report as this registry takes it; as it is once it is time to ask again."""
        if now_s - self._since_s >= ASK_AGAIN_SECONDS:
            self._ways.clear()
        if not self._ways:
            return body
        value = json.loads(body)
        for way in self._ways:
            _remove(value, way)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _ways(refusal: Unprocessable) -> Iterator[Way]:
    """Yield the ways to unknown members that a refusal names."""
    faults = refusal.details.get("faults")
    for fault in faults if isinstance(faults, list) else ():
        if not isinstance(fault, dict) or fault.get("name") != _UNKNOWN:
            continue
        pointer = fault.get("pointer")
        parts = pointer.split("/")[1:] if isinstance(pointer, str) else []
        if 3 <= len(parts) <= MAX_PARTS and parts[0] in LEAVABLE and parts[1].isdecimal():
            names = (part.replace("~1", "/").replace("~0", "~") for part in parts[2:])
            yield (parts[0], _ANY, *names)


def _remove(value: Any, way: Way) -> None:
    """Remove a member wherever the way leads to one."""
    first, *others = way
    if first == _ANY:
        for each in value if isinstance(value, list) else ():
            _remove(each, tuple(others))
    elif isinstance(value, dict) and first in value:
        if others:
            _remove(value[first], tuple(others))
        else:
            del value[first]
