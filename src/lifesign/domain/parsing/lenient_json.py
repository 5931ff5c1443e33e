"""Lenient access to the members of a peer's JSON object.

An invalid value counts as absent and leaves a finding; nothing raises, and everything is bounded.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from lifesign.domain.common.finding import Finding, json_pointer

MAX_TEXT_CHARS: Final = 4096
MAX_SHOWN_CHARS: Final = 80
"""Maximum length of a peer's value in a message."""
MAX_FINDINGS: Final = 100

MemberFinding = Literal[
    "wrong_type", "null_for_absent", "too_long", "too_many_items", "too_many_findings",
    "unprintable_characters",
]  # fmt: skip
"""The names of the findings that any member can have."""

# Control characters, lone surrogates and bidirectional overrides break terminals, databases and pages.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
_TOO_MANY_FINDINGS: Final = Finding("too_many_findings", "", f"{MAX_FINDINGS} or more; the rest is not named")
_Kind = TypeVar("_Kind", str, bool, list[Any], dict[str, Any])
_KIND_NAMES: Final[Mapping[type, str]] = MappingProxyType(
    {str: "text", bool: "true or false", list: "a list", dict: "an object"}
)


@dataclass(frozen=True, slots=True)
class LenientObject:
    """Reads one JSON object of a document. Wrong members become findings instead of errors."""

    members: dict[str, Any]
    """Members as sent; only those that `take` and similar functions return have a known type."""
    way: tuple[str | int, ...]
    """Path from the root of the document."""
    findings: list[Finding]
    """Findings about the whole document, in the order of reading, at most MAX_FINDINGS.

    Shared by all its objects.
    """

    def note(self, name: str, *inner: str | int, message: str) -> None:
        """Add a finding about the member at the path `inner` below this object."""
        self.add(Finding(name, json_pointer(*self.way, *inner), message))

    def add(self, finding: Finding) -> None:
        """Add a finding. Beyond the limit, only a last one says that there were more."""
        if len(self.findings) < MAX_FINDINGS:
            is_last = len(self.findings) == MAX_FINDINGS - 1
            self.findings.append(_TOO_MANY_FINDINGS if is_last else finding)

    def require(self, key: str, missing: str) -> None:
        """Add a finding with the name `missing` if the object has no such member."""
        if key not in self.members:
            self.note(missing, key, message=f"`{key}` is required")

    def take(self, key: str, kind: type[_Kind]) -> _Kind | None:
        """Return a member if it has this type; None otherwise, with a finding."""
        value = self.members.get(key)
        if isinstance(value, kind):
            return value
        if value is not None:
            self.note("wrong_type", key, message=f"expected {_KIND_NAMES[kind]}, got {shown(value)}; ignored")
        elif key in self.members:
            self.note("null_for_absent", key, message="null; omit absent values")
        return None

    def text(self, key: str) -> str | None:
        """Return a member's text, safe to store and show; None if it is no text."""
        value = self.take(key, str)
        return None if value is None else self.clean(value, key)

    def clean(self, text: str, *inner: str | int) -> str:
        """Return a text of the member at `inner`, shortened and without unprintable characters."""
        if len(text) <= MAX_TEXT_CHARS and text.isprintable():
            return text
        if len(text) > MAX_TEXT_CHARS:
            self.note("too_long", *inner, message=f"cut to {MAX_TEXT_CHARS} of {len(text)} characters")
        cleaned, count = _UNPRINTABLE.subn("\ufffd", text[:MAX_TEXT_CHARS])
        if count:
            self.note("unprintable_characters", *inner, message=f"{count} replaced by U+FFFD")
        return cleaned

    def flag(self, key: str) -> bool:
        """Return whether a member is true."""
        return self.take(key, bool) or False

    def items(self, key: str, limit: int) -> list[Any]:
        """Return the first `limit` items of the list in a member; none if it contains no list."""
        items = self.take(key, list) or []
        if len(items) > limit:
            self.note("too_many_items", key, message=f"{len(items)} items; only the first {limit} are read")
        return items[:limit]

    def objects(self, key: str, limit: int) -> Iterator["LenientObject"]:
        """Yield the objects among the first `limit` items of the list in a member."""
        for index, item in enumerate(self.items(key, limit)):
            if isinstance(item, dict):
                yield LenientObject(item, (*self.way, key, index), self.findings)
            else:
                self.note("wrong_type", key, index, message=f"expected an object, got {shown(item)}; ignored")

    def inside(self, key: str) -> "LenientObject":
        """Return the object in a member; an empty one if it contains no object."""
        return LenientObject(self.take(key, dict) or {}, (*self.way, key), self.findings)


def shown(value: object) -> str:
    """Return a foreign value for a message: the beginning of a text, or the type of another value."""
    if isinstance(value, str):
        return repr(value[:MAX_SHOWN_CHARS])
    if isinstance(value, bool):
        return str(value).lower()
    # A number may have more digits than Python agrees to print.
    return _KIND_NAMES.get(type(value), "a number" if isinstance(value, int | float) else "something else")
