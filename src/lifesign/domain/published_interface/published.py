"""Published interface of a target: a bounded JSON object that does not depend on the order of sets.

A peer chooses the content. Each text, key, group and the whole have a limit; larger parts are replaced by
their SHA-256, so that changes of them are still noticed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from pydantic_core import PydanticCustomError

from lifesign.domain.parsing.json_limits import check_json_size
from lifesign.domain.text.safe_text import harmless

MAX_INTERFACE_BYTES: Final = 32_768
"""Size as canonical JSON."""
MAX_INTERFACE_LEVELS: Final = 20
"""Levels of nesting of a whole interface."""
MAX_KEY_CHARS: Final = 64
MAX_URL_KEY_CHARS: Final = 200
"""For keys that contain a URL."""
MAX_TEXT_CHARS: Final = 256
MAX_ENTRIES: Final = 200
"""Members of one group, such as the skills of a card."""
DIGEST_KEY: Final = "sha256"
"""The only member of an object that replaces a value which is too large."""

_DIGEST_CHARS: Final = 16
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Form = dict[str, Any]


class InterfaceKind(StrEnum):
    """Kind of document that an interface was read from: agent card or list of tools."""

    AGENT_CARD = "agent_card"
    MCP_TOOLS = "mcp_tools"


@dataclass(frozen=True, slots=True)
class Interface:
    """What an agent's card or an MCP server's tools promise to callers, normalised to be compared."""

    form: Form
    text: str
    """Canonical JSON of `form`, ASCII only."""
    digest: str
    """SHA-256 of `text`, hexadecimal."""

    @property
    def kind(self) -> InterfaceKind:
        """The kind of document from which the interface was read."""
        return InterfaceKind(self.form["kind"])


def interface_of(form: Form) -> Interface:
    """Return the interface that has this form."""
    return _with_text(form, canonical(form))


def _with_text(form: Form, text: str) -> Interface:
    return Interface(form, text, sha256(text.encode()).hexdigest())


def bounded_interface(kind: InterfaceKind, groups: Mapping[str, Any]) -> Interface:
    """Create an interface from these groups. If it is too large, digests replace the largest entries.

    Entries of skills and tools first, by size, then whole groups.
    """
    form: Form = {"kind": kind.value, **groups}
    text = canonical(form)
    size = len(text)
    if size <= MAX_INTERFACE_BYTES:
        return _with_text(form, text)
    for entries in (form.get("skills"), form.get("tools"), form):
        if size <= MAX_INTERFACE_BYTES or not isinstance(entries, dict):
            continue
        sizes = {key: len(canonical(entry)) for key, entry in entries.items() if key != "kind"}
        for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
            if size <= MAX_INTERFACE_BYTES:
                break
            digest = digest_form(entries[key])
            size -= sizes[key] - len(canonical(digest))
            entries[key] = digest
    return interface_of(form)


def check_interface(form: Form) -> Form:
    """Return an interface's form as another process sent it; PydanticCustomError if it is invalid."""
    check_json_size(form, MAX_INTERFACE_LEVELS, MAX_INTERFACE_BYTES)
    if form.get("kind") not in [*InterfaceKind]:
        raise PydanticCustomError("interface_kind", "expected `kind` to be agent_card or mcp_tools")
    return form


def canonical(value: object) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces, ASCII."""
    return _CANONICAL.encode(value)


def digest_form(value: object) -> Form:
    """Return the digest that stands for a value that is too large to be stored."""
    return value if is_digest(value) else {DIGEST_KEY: sha256(canonical(value).encode()).hexdigest()}  # type: ignore[return-value]


def is_digest(value: object) -> bool:
    """Return whether a value is a digest that stands for a value that was too large."""
    return isinstance(value, dict) and value.keys() == {DIGEST_KEY} and isinstance(value[DIGEST_KEY], str)


def short(text: str, most: int = MAX_TEXT_CHARS) -> str:
    """Return a text, cut and without unprintable characters; if this changes it, with a digest at the end.

    A hidden character in a description is read by a model.
    """
    if len(text) <= most and text.isprintable():
        return text
    shown = harmless(text[:most])
    if shown == text:
        return shown
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{shown[: most - _DIGEST_CHARS - 1]}\N{HORIZONTAL ELLIPSIS}{digest}"


def group(entries: Iterable[tuple[str, Any]], most: int = MAX_ENTRIES, chars: int = MAX_KEY_CHARS) -> Form:
    """Return named entries as one object. If several have the same name, the first counts.

    Beyond `most` entries, in the order of their names, one digest under the empty name replaces the rest.
    """
    found: Form = {}
    for name, entry in entries:
        if name:
            found.setdefault(short(name, chars), entry)
    if len(found) <= most:
        return found
    names = sorted(found)
    return {name: found[name] for name in names[:most]} | {
        "": digest_form({name: found[name] for name in names[most:]})
    }


def name_set(value: object, most: int = MAX_ENTRIES) -> Form:
    """Return the texts in a JSON list as an object with the member `true` for each: a set."""
    if not isinstance(value, list):
        return {}
    return group(((text, True) for text in value if isinstance(text, str)), most)


def optional_text(value: object) -> str | None:
    """Return a text, shortened to its limit; None if the value is no text, or empty."""
    return short(value) if isinstance(value, str) and value else None


def without_absent(members: Mapping[str, Any]) -> Form:
    """Return members of an object without those that are None or an empty object."""
    return {name: value for name, value in members.items() if value is not None and value != {}}
