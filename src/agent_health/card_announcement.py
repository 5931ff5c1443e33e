"""How does an agent announce its health in its A2A card, and how is that read back?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeGuard

from agent_health.document import SCHEMA_VERSION
from agent_health.errors import InvalidSetting
from agent_health.finding import Finding, json_pointer

HEALTH_EXTENSION_URI: Final = "https://agent-health.github.io/extensions/health/v1"
"""Identifier of the health extension; it names and need not resolve."""
CARD_PATHS: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where A2A agents serve their card: since 0.3, and until 0.2.6."""
DEFAULT_HEALTH_PATH: Final = "/.well-known/agent-health"
"""Where the health document is served (draft 4.1)."""
MAX_HEALTH_PATH_CHARS: Final = 2048

# A second slash or a backslash would lead to another host, a fragment never reaches the server,
# and braces are a placeholder that was left in.
_HEALTH_PATH: Final = re.compile(r"/(?!/)(?:(?![\\#{}])[!-~])*")
_VERSION: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}")


@dataclass(frozen=True, slots=True)
class HealthAnnouncement:
    """Where the card says that the agent's health can be read."""

    path: str | None
    """Absolute path on the card's own origin; None if none was given that can be used."""
    url: str | None
    """Absolute http(s) URL, only ever from a private key: it may lead to another origin."""
    schema_version: str | None
    source: Literal["extension", "private_key"]
    """What a `private_key` leads to is seldom a health document of the draft."""


ReadAnnouncement = tuple[HealthAnnouncement | None, tuple[Finding, ...]]


def is_health_path(path: object) -> TypeGuard[str]:
    """Whether `path` is an absolute path that stays on the card's own origin; it may carry a query."""
    if not isinstance(path, str) or len(path) > MAX_HEALTH_PATH_CHARS:
        return False
    return _HEALTH_PATH.fullmatch(path) is not None


def announce_health(card: Mapping[str, Any], *, path: str = DEFAULT_HEALTH_PATH) -> dict[str, Any]:
    """Return a new card that announces the health document at `path`; the given card stays as it was.

    The announcement is one entry of `capabilities.extensions[]`, for a card of any generation, and no other
    key is ever added: strict readers reject unknown ones. An earlier announcement is replaced in its place,
    so announcing twice is announcing once. What is not changed is shared with the given card.

    A signature covers the card: sign a signed card anew afterwards.

    InvalidSetting if `path` leads off the card's origin, or if the card, its `capabilities` or their
    `extensions` have a type that cannot take the entry. Null counts as absent.
    """
    if not is_health_path(path):
        raise InvalidSetting("path", path, "an absolute path on the card's own origin, such as /health")
    if not isinstance(card, Mapping):
        raise InvalidSetting("card", card, "an object")
    capabilities = card.get("capabilities")
    if not isinstance(capabilities, Mapping | None):
        raise InvalidSetting("card.capabilities", capabilities, "an object")
    extensions = (capabilities or {}).get("extensions")
    if not isinstance(extensions, list | tuple | None):
        raise InvalidSetting("card.capabilities.extensions", extensions, "a list")
    announced = _with_entry(extensions or (), path)
    return {**card, "capabilities": {**(capabilities or {}), "extensions": announced}}


def _with_entry(extensions: list[Any] | tuple[Any, ...], path: str) -> list[Any]:
    entry = {
        "uri": HEALTH_EXTENSION_URI,
        "description": "Serves the agent's health document (draft-liang-agent-health-state)",
        "required": False,
        "params": {"path": path, "schema_version": SCHEMA_VERSION},
    }
    ours = [index for index, extension in enumerate(extensions) if _is_announcement(extension)]
    if not ours:
        return [*extensions, entry]
    others = (extension for extension in extensions[ours[0] :] if not _is_announcement(extension))
    return [*extensions[: ours[0]], entry, *others]


def _is_announcement(extension: object) -> bool:
    return isinstance(extension, Mapping) and extension.get("uri") == HEALTH_EXTENSION_URI


def read_announcement(extensions: Sequence[tuple[int | str, Mapping[str, Any]]]) -> ReadAnnouncement:
    """Read what the first of our entries announces; `extensions` are those of a card, with their index."""
    ours = [(index, entry) for index, entry in extensions if _is_announcement(entry)]
    if not ours:
        return None, ()
    index, entry = ours[0]
    findings = [
        _finding("duplicate_health_extension", extra, message="announced more than once; the first counts")
        for extra, _ in ours[1:]
    ]
    if entry.get("required") is True:
        message = "health is never required: callers that do not know the extension would refuse the agent"
        findings.append(_finding("required_health_extension", index, "required", message=message))
    params = entry.get("params")
    given = params if isinstance(params, Mapping) else {}
    path, schema_version = given.get("path"), given.get("schema_version")
    if path is None:
        findings.append(
            _finding("health_path_missing", index, "params", "path", message="`path` is required")
        )
    elif not is_health_path(path):
        message = "not an absolute path on the card's own origin; ignored"
        findings.append(_finding("health_path_is_not_a_path", index, "params", "path", message=message))
        path = None
    if schema_version is not None and not _is_version(schema_version):
        message = "expected a version such as 0.1.0; ignored"
        findings.append(_finding("wrong_type", index, "params", "schema_version", message=message))
        schema_version = None
    return HealthAnnouncement(path, None, schema_version, "extension"), tuple(findings)


def _is_version(version: object) -> bool:
    return isinstance(version, str) and _VERSION.fullmatch(version) is not None


def _finding(name: str, index: int | str, *inner: str, message: str) -> Finding:
    return Finding(name, json_pointer("capabilities", "extensions", index, *inner), message)
