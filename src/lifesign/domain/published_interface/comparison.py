"""Comparison of two published interfaces: what changed, and whether callers break.

A change breaks callers if something that they used was removed (a skill, tool, URL to call or output), or if
they have to send more than before (a required input, a required extension, a security requirement).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from lifesign.domain.common.finding import json_pointer
from lifesign.domain.published_interface.published import (
    Form,
    canonical,
    digest_form,
    is_digest,
    short,
)

MAX_CHANGES: Final = 256
"""Maximum number of changes in one comparison; those that break callers are kept first."""
MAX_POINTER_CHARS: Final = 300
MAX_LEVELS: Final = 16

_ANY: Final = "*"


class ChangeKind(StrEnum):
    """Kind of a difference between two interfaces: added, removed or changed."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


# Place and kind of the changes that break callers; `*` is any one name.
_BREAKING: Final = (
    (("kind",), ChangeKind.CHANGED),
    (("interfaces", _ANY), ChangeKind.REMOVED),
    (("skills", _ANY), ChangeKind.REMOVED),
    (("tools", _ANY), ChangeKind.REMOVED),
    (("tools", _ANY, "output_schema"), ChangeKind.REMOVED),
    (("output_modes", _ANY), ChangeKind.REMOVED),
    (("skills", _ANY, "output_modes", _ANY), ChangeKind.REMOVED),
    (("required_extensions", _ANY), ChangeKind.ADDED),
)
_GROUPS: Final = frozenset({
    "interfaces", "skills", "tools", "input_modes", "output_modes", "required_extensions", "security_schemes",
})  # fmt: skip
"""Members of an interface, and of a skill, of which an absent one is an empty one."""
_SCHEMAS: Final = frozenset({"input_schema", "output_schema"})
_NO_FORM: Final[Form] = {}


@dataclass(frozen=True, slots=True)
class InterfaceChange:
    """One difference between two interfaces."""

    pointer: str
    """JSON pointer into the normalised interface."""
    change: ChangeKind
    breaking: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between two interfaces."""

    changes: tuple[InterfaceChange, ...] = ()
    """In the order of their pointers, at most `most`."""
    omitted: int = 0
    """Further changes."""
    breaking: bool = False
    """Whether any change breaks callers, also an omitted one."""


def compare(old: Form, new: Form, most: int = MAX_CHANGES) -> Comparison:
    """Return the differences between two normalised interfaces, at most `most` of them."""
    found = sorted(_differences(old, new), key=lambda change: (change.pointer, change.change))
    reported = sorted(found, key=lambda change: not change.breaking)[:most]
    reported.sort(key=lambda change: (change.pointer, change.change))
    return Comparison(tuple(reported), len(found) - len(reported), any(change.breaking for change in found))


def _differences(old: Form, new: Form) -> Iterator[InterfaceChange]:
    for name in sorted(old.keys() | new.keys()):
        before: Any = old.get(name)
        after: Any = new.get(name)
        if name in _GROUPS:
            before, after = before or _NO_FORM, after or _NO_FORM
        if name == "security":
            yield from _security((name,), before, after)
        elif name == "skills" and _are_open(before, after):
            yield from _skills(before, after, old.get("output_modes"), new.get("output_modes"))
        else:
            yield from _walk((name,), before, after)


def _walk(way: tuple[str, ...], old: Any, new: Any) -> Iterator[InterfaceChange]:
    """Yield the differences between two values at the same place; None: absent."""
    if _is_same(old, new):
        return
    if not _are_open(old, new) or len(way) >= MAX_LEVELS:
        yield _change(way, old, new)
        return
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if name == "required" and _is_in_schema(way):
            yield from _required((*way, name), before, after)
        else:
            yield from _walk((*way, name), before, after)


def _skills(old: Form, new: Form, old_modes: Any, new_modes: Any) -> Iterator[InterfaceChange]:
    """Yield the differences between skills; a skill without output modes has those of the card."""
    for name in sorted(old.keys() | new.keys()):
        before: Any = old.get(name)
        after: Any = new.get(name)
        way = ("skills", name)
        if not _are_open(before, after):
            yield from _walk(way, before, after)
            continue
        own = before.get("output_modes"), after.get("output_modes")
        if own != (None, None):
            yield from _walk((*way, "output_modes"), own[0] or old_modes or {}, own[1] or new_modes or {})
        yield from _security((*way, "security"), before.get("security"), after.get("security"))
        rest = [
            {key: each[key] for key in each.keys() - {"output_modes", "security"}} for each in (before, after)
        ]
        yield from _walk(way, *rest)


def _security(way: tuple[str, ...], old: Any, new: Any) -> Iterator[InterfaceChange]:
    """Yield the difference between two lists of requirements, of which a caller must meet one.

    It breaks callers if a caller that met an old requirement meets no new one: each old requirement must
    contain a new one. Every caller meets an empty list.
    """
    if _is_same(old or _NO_FORM, new or _NO_FORM):
        return
    if is_digest(old) or is_digest(new):
        yield _change(way, old, new)
        return
    before, after = _alternatives(old), _alternatives(new)
    is_breaking = not all(any(one <= other for one in after) for other in before)
    yield _change(way, old or None, new or None, is_breaking=is_breaking)


def _alternatives(requirements: Any) -> Sequence[frozenset[str]]:
    if not isinstance(requirements, dict) or not requirements:
        return [frozenset()]
    return [
        frozenset(each) if isinstance(each, dict) else frozenset({name})
        for name, each in requirements.items()
    ]


def _required(way: tuple[str, ...], old: Any, new: Any) -> Iterator[InterfaceChange]:
    """Yield the differences between the required members of two JSON schemas."""
    before, after = _names(old), _names(new)
    for name in before ^ after:
        kind = ChangeKind.ADDED if name in after else ChangeKind.REMOVED
        yield _named((*way, name), kind, is_breaking=way[2] == "input_schema" and name in after)


def _names(required: Any) -> set[str]:
    return {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()


def _is_in_schema(way: tuple[str, ...]) -> bool:
    """Return whether a place is inside the JSON schema of a tool, not in its list of properties."""
    return len(way) > 2 and way[0] == "tools" and way[2] in _SCHEMAS and way[-1] != "properties"


def _are_open(old: Any, new: Any) -> bool:
    """Return whether both values are objects with known members."""
    return isinstance(old, dict) and isinstance(new, dict) and not is_digest(old) and not is_digest(new)


def _is_same(old: Any, new: Any) -> bool:
    if old == new:
        return True
    if is_digest(old) != is_digest(new) and old is not None and new is not None:
        # One of them was too large to be kept, because of its other members.
        return digest_form(old) == digest_form(new)
    # Not-a-number, which a peer may send, differs from itself.
    return not _are_open(old, new) and canonical(old) == canonical(new)


def _change(way: tuple[str, ...], old: Any, new: Any, *, is_breaking: bool = False) -> InterfaceChange:
    kind = ChangeKind.REMOVED if new is None else ChangeKind.CHANGED
    kind = ChangeKind.ADDED if old is None else kind
    return _named(way, kind, is_breaking=is_breaking or _is_breaking(way, kind))


def _named(way: tuple[str, ...], kind: ChangeKind, *, is_breaking: bool) -> InterfaceChange:
    return InterfaceChange(short(json_pointer(*way), MAX_POINTER_CHARS), kind, is_breaking)


def _is_breaking(way: tuple[str, ...], kind: ChangeKind) -> bool:
    if any(kind is wanted and _matches(way, pattern) for pattern, wanted in _BREAKING):
        return True
    # A property that callers read from a tool's answer.
    is_output = len(way) > 4 and way[0] == "tools" and way[2] == "output_schema" and way[-2] == "properties"
    return is_output and kind is ChangeKind.REMOVED


def _matches(way: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(way) == len(pattern) and all(
        part in {_ANY, name} for name, part in zip(way, pattern, strict=True)
    )
