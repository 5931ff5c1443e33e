"""The announcement of an agent's health in its A2A card: writing it, and reading it back."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeGuard, TypeVar, cast, overload

from pydantic import BaseModel, ValidationError

from lifesign.domain.common.finding import Finding, json_pointer
from lifesign.domain.health.document import SCHEMA_VERSION
from lifesign.errors import InvalidValue

HEALTH_EXTENSION_URI: Final = "urn:lifesign:extension:health:v1"
"""Identifier of the health extension; it names and need not resolve."""
CARD_PATHS: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Paths of A2A cards: since 0.3, and until 0.2.6."""
DEFAULT_HEALTH_PATH: Final = "/.well-known/agent-health"
"""Path of the health document (draft 4.1)."""
MAX_HEALTH_PATH_CHARS: Final = 2048

# A second slash or a backslash would lead to another host, a fragment never reaches the server,
# and braces are a placeholder that was left in.
_HEALTH_PATH: Final = re.compile(r"/(?!/)(?:(?![\\#{}])[!-~])*")
_REGISTRY: Final = re.compile(r"https?://[!-~]+")
_AGENT_ID: Final = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_VERSION: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}")


@dataclass(frozen=True, slots=True)
class CardRegistration:
    """Statement in a card that the agent is registered at a registry under an id."""

    registry: str
    """Public URL of the registry, an http(s) URL of printable ASCII."""
    agent_id: str


@dataclass(frozen=True, slots=True)
class HealthAnnouncement:
    """Where a card says that the health document is."""

    path: str | None
    """Absolute path on the card's own origin; None if none was given that can be used."""
    url: str | None
    """Absolute http(s) URL, found only under a private key; it may name another origin."""
    schema_version: str | None
    source: Literal["extension", "private_key"]
    """`private_key` is a member that no specification defines.

    Its URL is rarely a health document of the draft.
    """
    registration: CardRegistration | None = None
    """Only ever from the extension."""


ReadAnnouncement = tuple[HealthAnnouncement | None, tuple[Finding, ...]]


def is_health_path(path: object) -> TypeGuard[str]:
    """Return whether `path` is an absolute path on the card's own origin; it may have a query."""
    if not isinstance(path, str) or len(path) > MAX_HEALTH_PATH_CHARS:
        return False
    return _HEALTH_PATH.fullmatch(path) is not None


class SdkCard(Protocol):
    """A card of an A2A SDK: a pydantic model in 0.3, a protobuf message in 1.x. No SDK is imported here."""

    @property
    def capabilities(self) -> Any:
        """The card's `AgentCapabilities`."""


_Card = TypeVar("_Card", bound=SdkCard)


@overload
def announce_health(
    card: Mapping[str, Any], *, path: str = ..., registry: str | None = ..., agent_id: str | None = ...
) -> dict[str, Any]: ...
@overload
def announce_health(
    card: _Card, *, path: str = ..., registry: str | None = ..., agent_id: str | None = ...
) -> _Card: ...
def announce_health(
    card: Any,
    *,
    path: str = DEFAULT_HEALTH_PATH,
    registry: str | None = None,
    agent_id: str | None = None,
) -> Any:
    """Return a new card that announces the health document at `path`; the given card is not changed.

    `card` is a mapping, and the result a dict; or it is the `AgentCard` of an A2A SDK, 0.3 or 1.x, and the
    result another one.

    The announcement is one entry of `capabilities.extensions[]`, for a card of any generation, and no other
    key is ever added: strict readers reject unknown ones. An earlier announcement is replaced in its place,
    so that a repeated call changes nothing. Unchanged parts are shared with the given card, unless it is of
    SDK 1.x.

    `registry` and `agent_id` belong together: the public URL of a registry, and the id under which the agent
    is registered there. With both, the card proves to that registry that a crawled target is this agent.

    A signature covers the card: sign the changed card again.

    Raise InvalidValue if `path` leaves the card's origin, if only one of `registry` and `agent_id` is given
    or one of them is invalid, or if the card, its `capabilities` or their `extensions` have a type that
    cannot take the entry. Null counts as absent.
    """
    if not is_health_path(path):
        raise InvalidValue("path", path, "an absolute path on the card's own origin, such as /health")
    entry = _entry(path) if registry is None and agent_id is None else _entry_of(path, registry, agent_id)
    if isinstance(card, Mapping):
        return _announced_in_mapping(card, entry)
    if isinstance(card, BaseModel) and "capabilities" in type(card).model_fields:
        return _announced_in_model(card, entry)
    if _is_message_of_a_card(card):
        return _announced_in_message(card, entry)
    raise InvalidValue("card", _shown(card), "a mapping, or the AgentCard of an A2A SDK")


def _announced_in_mapping(card: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    capabilities = card.get("capabilities")
    if not isinstance(capabilities, Mapping | None):
        raise InvalidValue("card.capabilities", capabilities, "an object")
    extensions = (capabilities or {}).get("extensions")
    if not isinstance(extensions, list | tuple | None):
        raise InvalidValue("card.capabilities.extensions", extensions, "a list")
    announced = _with_entry(extensions or (), entry)
    return {**card, "capabilities": {**(capabilities or {}), "extensions": announced}}


def _announced_in_model(card: BaseModel, entry: Mapping[str, Any]) -> BaseModel:
    """Return the pydantic card of SDK 0.3 with the announcement."""
    capabilities = cast("Any", card).capabilities
    if not isinstance(capabilities, BaseModel) or "extensions" not in type(capabilities).model_fields:
        raise InvalidValue("card.capabilities", _shown(capabilities), "AgentCapabilities of the A2A SDK")
    members = capabilities.model_dump(by_alias=True, exclude_unset=True)
    members["extensions"] = _with_entry(members.get("extensions") or (), entry)
    try:
        announced = type(capabilities).model_validate(members)
    except ValidationError:
        # The SDK validates the arguments of a model's constructor, but not later assignments.
        raise InvalidValue("card.capabilities", None, "valid AgentCapabilities of the A2A SDK") from None
    return card.model_copy(update={"capabilities": announced})


def _is_message_of_a_card(card: object) -> bool:
    """Return whether this is a protobuf message with the members of a card."""
    if isinstance(card, type):
        return False
    fields = getattr(getattr(card, "DESCRIPTOR", None), "fields_by_name", {})
    capabilities = fields["capabilities"].message_type if "capabilities" in fields else None
    return capabilities is not None and "extensions" in capabilities.fields_by_name


def _announced_in_message(card: Any, entry: Mapping[str, Any]) -> Any:
    """Return the protobuf card of SDK 1.x with the announcement."""
    announced = type(card)()
    announced.CopyFrom(card)
    extensions = announced.capabilities.extensions
    ours = [index for index, extension in enumerate(extensions) if extension.uri == HEALTH_EXTENSION_URI]
    for index in reversed(ours[1:]):
        del extensions[index]
    message = extensions[ours[0]] if ours else extensions.add()
    message.Clear()
    message.params.update(entry["params"])
    for name, value in entry.items():
        if name != "params":
            setattr(message, name, value)
    return announced


def _shown(value: object) -> object:
    """Return a value for an error message: of an object of any class, the name of the class."""
    return value if isinstance(value, str | int | float | list | tuple | None) else type(value).__name__


def _entry(path: str) -> dict[str, Any]:
    return {
        "uri": HEALTH_EXTENSION_URI,
        "description": "Serves the agent's health document (draft-liang-agent-health-state)",
        "required": False,
        "params": {"path": path, "schema_version": SCHEMA_VERSION},
    }


def _entry_of(path: str, registry: object, agent_id: object) -> dict[str, Any]:
    """Return the entry of a registered agent. Raises InvalidValue."""
    if not _is_registry(registry):
        raise InvalidValue("registry", registry, "the http or https URL of a registry")
    if not _is_agent_id(agent_id):
        raise InvalidValue("agent_id", agent_id, "the id of an agent in that registry")
    entry = _entry(path)
    return {**entry, "params": {**entry["params"], "registry": registry, "agent_id": agent_id}}


def _with_entry(extensions: list[Any] | tuple[Any, ...], entry: Mapping[str, Any]) -> list[Any]:
    ours = [index for index, extension in enumerate(extensions) if _is_announcement(extension)]
    if not ours:
        return [*extensions, dict(entry)]
    others = (extension for extension in extensions[ours[0] :] if not _is_announcement(extension))
    return [*extensions[: ours[0]], dict(entry), *others]


def _is_announcement(extension: object) -> bool:
    return isinstance(extension, Mapping) and extension.get("uri") == HEALTH_EXTENSION_URI


def read_announcement(extensions: Sequence[tuple[int | str, Mapping[str, Any]]]) -> ReadAnnouncement:
    """Read lifesign's extension in a card, the first one. `extensions`: all of the card, with their index."""
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
    registration = _registration(given)
    if registration is None and not {"registry", "agent_id"}.isdisjoint(given):
        message = "expected `registry`, an http(s) URL, and `agent_id` together; ignored"
        findings.append(_finding("registration_invalid", index, "params", message=message))
    return HealthAnnouncement(path, None, schema_version, "extension", registration), tuple(findings)


def _registration(params: Mapping[str, Any]) -> CardRegistration | None:
    registry, agent_id = params.get("registry"), params.get("agent_id")
    if not _is_registry(registry) or not _is_agent_id(agent_id):
        return None
    return CardRegistration(registry, agent_id)


def _is_registry(value: object) -> TypeGuard[str]:
    if not isinstance(value, str) or len(value) > MAX_HEALTH_PATH_CHARS:
        return False
    return _REGISTRY.fullmatch(value) is not None


def _is_agent_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _AGENT_ID.fullmatch(value) is not None


def _is_version(version: object) -> bool:
    return isinstance(version, str) and _VERSION.fullmatch(version) is not None


def _finding(name: str, index: int | str, *inner: str, message: str) -> Finding:
    return Finding(name, json_pointer("capabilities", "extensions", index, *inner), message)
