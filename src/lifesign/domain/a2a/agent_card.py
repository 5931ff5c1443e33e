"""Agent cards: their members and generation.

Four generations of cards are in use, and many cards are broken. The reader reads what it can and reports each
fault that it ignored: it never raises, never guesses without a finding, and bounds everything.
`card_interfaces.py` reads the interfaces, `card_announcement.py` the announced health URL,
`lenient_object.py` single members. Section numbers without a source are those of the A2A 1.0 specification.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn

from lifesign.domain.a2a.announcement import HealthAnnouncement, is_health_path, read_announcement
from lifesign.domain.a2a.interfaces import (
    GENERATIONS,
    MAX_URL_CHARS,
    AgentInterface,
    Generation,
    InterfaceFinding,
    major_minor,
    private_urls,
    read_interfaces,
    read_protocol_version,
    url_fault,
)
from lifesign.domain.a2a.security_schemes import security_schemes
from lifesign.domain.common.finding import Finding
from lifesign.domain.parsing.lenient_json import LenientObject, MemberFinding, shown

MAX_CARD_BYTES: Final = 1024 * 1024
MAX_EXTENSIONS: Final = 256
MAX_SKILLS: Final = 1024
MAX_AUTH_SCHEMES: Final = 64

CardFinding = Literal[
    MemberFinding,
    InterfaceFinding,
    # the whole answer
    "too_large", "not_utf8", "byte_order_mark", "not_json", "too_deep", "not_a_card",
    # identity and content
    "name_missing", "description_missing", "version_missing", "provider_without_organization",
    "skills_missing", "skill_without_id", "capabilities_missing", "capabilities_is_a_list",
    # which generation
    "mixed_generations", "protocol_version_contradicts_shape",
    # extensions and health
    "extension_without_uri", "extensions_outside_capabilities", "duplicate_health_extension",
    "required_health_extension", "health_path_missing", "health_path_is_not_a_path",
    "health_under_private_key", "registration_invalid",
]  # fmt: skip
"""Every name that a finding about a card can have."""

# A card that names no version is dated by the newest member in it; the first match decides.
DATING_MEMBERS: Final[tuple[tuple[str, type, Generation], ...]] = (
    ("signatures", list, "0.3"),
    ("preferredTransport", str, "0.3"),
    ("additionalInterfaces", list, "0.2"),
    ("securitySchemes", dict, "0.2"),
    ("security", list, "0.2"),
    ("supportsAuthenticatedExtendedCard", bool, "0.2"),
    ("authentication", dict, "0.1"),
)
# Members that newer generations no longer have; they are still read.
REMOVED_MEMBERS: Final[Mapping[Generation | None, tuple[str, ...]]] = MappingProxyType({
    "1.0": ("url", "preferredTransport", "additionalInterfaces", "protocolVersion",
            "supportsAuthenticatedExtendedCard", "authentication"),
    "0.3": ("authentication",),
    "0.2": ("authentication",),
})  # fmt: skip
# Members in which cards announce a health URL without a specification; the first readable one counts.
PRIVATE_HEALTH_PLACES: Final = (
    ("endpoints", "health"), ("endpoints", "health_check"), ("health",), ("health_check",), ("healthCheck",),
    ("health_url",), ("healthUrl",), ("health_endpoint",), ("healthEndpoint",),
)  # fmt: skip
REQUIRED_MEMBERS: Final[tuple[tuple[str, CardFinding], ...]] = (
    ("name", "name_missing"),
    ("description", "description_missing"),
    ("version", "version_missing"),
    ("capabilities", "capabilities_missing"),
    ("skills", "skills_missing"),
)
REGISTRY_KEYS: Final = ("wellKnownURI", "wellKnownUri", "registryTags")
MIN_CARD_EVIDENCE: Final = 3
"""Minimum number of members that make an object a card: name, URL, capabilities, skills, version or modes."""


class CardKind(StrEnum):
    """Kind of a document that was found at a card's URL."""

    CARD = auto()
    REGISTRY_RECORD = auto()
    """A card with the members that a directory adds, such as `wellKnownURI`; read like a card."""
    NOT_A_CARD = auto()
    """JSON of another kind; nothing of it is read."""
    NOT_JSON = auto()
    """Not JSON, or not parsed because it is too large or too deep."""


@dataclass(frozen=True, slots=True)
class AgentExtension:
    """One entry of `capabilities.extensions[]` (4.4.4)."""

    uri: str
    description: str | None
    required: bool
    params: Mapping[str, Any]
    """Value as sent, not inspected; empty if absent."""


@dataclass(frozen=True, slots=True)
class AgentCard:
    """The readable members of an agent card (4.4.1). If it is no card, only `kind` and `findings` are set."""

    kind: CardKind
    generation: Generation | None = None
    """Generation of the card's shape, not of its interfaces; None if unknown."""
    name: str | None = None
    description: str | None = None
    version: str | None = None
    """The agent's own version, not the protocol's."""
    provider: str | None = None
    """Name of the organisation (4.4.2)."""
    interfaces: tuple[AgentInterface, ...] = ()
    """Preferred first: 1.0's, then those of 0.x, then those under private keys; none twice."""
    extensions: tuple[AgentExtension, ...] = ()
    skill_ids: tuple[str, ...] = ()
    has_extended_card: bool = False
    streaming: bool = False
    push_notifications: bool = False
    is_signed: bool = False
    """Whether there is a signature (4.4.7); it is not checked."""
    auth_schemes: tuple[str, ...] = ()
    """Names: 0.1's `authentication.schemes`, then the keys of `securitySchemes` (4.5.1)."""
    security_schemes: tuple[str, ...] = ()
    """Kinds of login, such as `http bearer` (`security_schemes.py`)."""
    health: HealthAnnouncement | None = None
    findings: tuple[Finding, ...] = ()
    """In the order of reading, at most MAX_FINDINGS."""


class _NoNumber(ValueError):
    """NaN or an infinity, which the parser would accept."""


def read_agent_card(raw: bytes | str) -> AgentCard:
    """Return the members of a card from its bytes. Faults become findings; it never raises."""
    findings: list[Finding] = []
    whole = LenientObject({}, (), findings)
    text = ""
    try:
        if len(raw) > MAX_CARD_BYTES:
            whole.note("too_large", message=f"more than {MAX_CARD_BYTES} bytes; not parsed")
            return AgentCard(CardKind.NOT_JSON, findings=tuple(findings))
        text = raw if isinstance(raw, str) else raw.decode()
        if text.startswith("\ufeff"):
            whole.note("byte_order_mark", message="JSON is sent without a byte order mark (RFC 8259 8.1)")
        value = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        whole.note("not_utf8", message=f"not UTF-8 from byte {error.start} on")
    except ValueError as error:
        hint = " (HTML?)" if text.lstrip()[:1] == "<" else ""
        whole.note("not_json", message=f"not JSON{hint}: {json_fault(error)}")
    except RecursionError:
        whole.note("too_deep", message="nested too deeply; not parsed")
    else:
        return _interpret(value, findings)
    return AgentCard(CardKind.NOT_JSON, findings=tuple(findings))


def interpret_agent_card(value: object) -> AgentCard:
    """Return the members of a card that was parsed from JSON. Faults become findings; it never raises."""
    return _interpret(value, [])


def _refuse_constant(name: str) -> NoReturn:
    raise _NoNumber(f"{name} is not JSON")


def json_fault(error: ValueError) -> str:
    """Return in words, for people, why a text is not JSON, from the parser's exception."""
    if isinstance(error, json.JSONDecodeError | _NoNumber):
        return str(error)
    return f"a whole number has more than {sys.get_int_max_str_digits()} digits"


def _interpret(value: object, findings: list[Finding]) -> AgentCard:
    if not isinstance(value, dict):
        LenientObject({}, (), findings).note("not_a_card", message=f"expected an object, got {shown(value)}")
        return AgentCard(CardKind.NOT_A_CARD, findings=tuple(findings))
    card = LenientObject(value, (), findings)
    if _card_evidence(value) < MIN_CARD_EVIDENCE:
        card.note("not_a_card", message="too few members of a card: name, url, capabilities, skills")
        return AgentCard(CardKind.NOT_A_CARD, findings=tuple(findings))
    for key, missing in REQUIRED_MEMBERS:
        card.require(key, missing)
    declared = read_protocol_version(card)
    generation = _generation(card, declared)
    capabilities = _capabilities(card)
    extensions = tuple(capabilities.objects("extensions", MAX_EXTENSIONS))
    return AgentCard(
        kind=CardKind.REGISTRY_RECORD if any(key in value for key in REGISTRY_KEYS) else CardKind.CARD,
        generation=generation,
        name=card.text("name"),
        description=card.text("description"),
        version=card.text("version"),
        provider=_provider(card),
        interfaces=read_interfaces(card, declared),
        extensions=tuple(_extensions(extensions)),
        skill_ids=tuple(_skill_ids(card)),
        has_extended_card=card.flag("supportsAuthenticatedExtendedCard")
        | capabilities.flag("extendedAgentCard"),
        streaming=capabilities.flag("streaming"),
        push_notifications=capabilities.flag("pushNotifications"),
        is_signed=bool(card.take("signatures", list)),
        auth_schemes=_auth_schemes(card),
        security_schemes=security_schemes(value),
        health=_health(card, extensions),
        findings=tuple(findings),
    )


def _card_evidence(members: dict[str, Any]) -> int:
    is_somewhere = any(
        isinstance(members.get(key), list) for key in ("supportedInterfaces", "additionalInterfaces")
    )
    return sum((
        isinstance(members.get("name"), str),
        is_somewhere or isinstance(members.get("url"), str) or any(private_urls(members)),
        isinstance(members.get("capabilities"), dict | list),
        isinstance(members.get("skills"), list),
        not {"protocolVersion", "defaultInputModes", "defaultOutputModes"}.isdisjoint(members),
    ))  # fmt: skip


def _generation(card: LenientObject, declared: str | None) -> Generation | None:
    generation = _generation_of_shape(card, declared)
    if declared is None and generation in {None, "0.3"}:
        card.require("protocolVersion", "protocol_version_missing")
    strays = [key for key in REMOVED_MEMBERS.get(generation, ()) if card.members.get(key) is not None]
    if strays:
        card.note(
            "mixed_generations", strays[0], message=f"not in a {generation} card: {', '.join(strays)}; read"
        )
    return generation


def _generation_of_shape(card: LenientObject, declared: str | None) -> Generation | None:
    supported = card.members.get("supportedInterfaces")
    if isinstance(supported, list) and any(isinstance(item, dict) for item in supported):
        return "1.0"
    generation = GENERATIONS.get(major_minor(declared) or "")
    if generation == "1.0":
        message = "a 1.0 card has its URLs in `supportedInterfaces`"
        card.note("protocol_version_contradicts_shape", "protocolVersion", message=message)
    elif generation:
        return generation
    dated = (dating for key, kind, dating in DATING_MEMBERS if isinstance(card.members.get(key), kind))
    return next(dated, None)


def _capabilities(card: LenientObject) -> LenientObject:
    if "extensions" in card.members:
        message = "extensions belong in `capabilities`; ignored"
        card.note("extensions_outside_capabilities", "extensions", message=message)
    if isinstance(card.members.get("capabilities"), list):
        card.note("capabilities_is_a_list", "capabilities", message="expected an object, got a list; ignored")
        return LenientObject({}, ("capabilities",), card.findings)
    return card.inside("capabilities")


def _provider(card: LenientObject) -> str | None:
    provider = card.inside("provider")
    if provider.members:
        provider.require("organization", "provider_without_organization")
    return provider.text("organization")


def _skill_ids(card: LenientObject) -> Iterator[str]:
    for skill in card.objects("skills", MAX_SKILLS):
        skill.require("id", "skill_without_id")
        if skill_id := skill.text("id"):
            yield skill_id


def _auth_schemes(card: LenientObject) -> tuple[str, ...]:
    older = card.inside("authentication")
    names: dict[str, None] = {}
    for index, name in enumerate(older.items("schemes", MAX_AUTH_SCHEMES)):
        if isinstance(name, str):
            names[older.clean(name, "schemes", index)] = None
        else:
            older.note("wrong_type", "schemes", index, message=f"expected text, got {shown(name)}; ignored")
    newer = card.inside("securitySchemes")
    if len(newer.members) > MAX_AUTH_SCHEMES:
        newer.note("too_many_items", message=f"only the first {MAX_AUTH_SCHEMES} schemes are read")
    for name in islice(newer.members, MAX_AUTH_SCHEMES):
        names[newer.clean(str(name))] = None
    return tuple(names)


def _extensions(entries: Sequence[LenientObject]) -> Iterator[AgentExtension]:
    for entry in entries:
        entry.require("uri", "extension_without_uri")
        uri, description, required = entry.text("uri"), entry.text("description"), entry.flag("required")
        params = entry.take("params", dict) or {}
        if uri:
            yield AgentExtension(uri, description, required, params)


def _health(card: LenientObject, extensions: Sequence[LenientObject]) -> HealthAnnouncement | None:
    # The place of an extension in its list is the last step of the way to it.
    announced, findings = read_announcement(
        [(extension.way[-1], extension.members) for extension in extensions]
    )
    for finding in findings:
        card.add(finding)
    return announced or _private_health(card)


def _private_health(card: LenientObject) -> HealthAnnouncement | None:
    for way in PRIVATE_HEALTH_PLACES:
        value: object = card.members
        for step in way:
            value = value.get(step) if isinstance(value, dict) else None
        if not isinstance(value, str):
            continue
        # Some name the method too, as in `GET /health`.
        place = value.removeprefix("GET ").strip()
        path = place if is_health_path(place) else None
        url = place if len(place) <= MAX_URL_CHARS and url_fault(place) is None else None
        if path or url:
            card.note(
                "health_under_private_key", *way, message=f"health is announced at {shown(place)}; used"
            )
            return HealthAnnouncement(path, url, None, "private_key")
    return None
