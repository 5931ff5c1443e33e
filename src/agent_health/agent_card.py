"""Which fields of an A2A card do we read, how leniently, and how is health announced in it?

Four generations of cards are served at once, many of them broken. The reader takes what it can and names
what it had to forgive: it never raises, never guesses without a finding, and bounds everything.
The announcement itself, both ways, is `card_announcement.py`.
Bare section numbers are those of the A2A 1.0 specification.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import urlsplit

from agent_health.card_announcement import HealthAnnouncement, is_health_path, read_announcement
from agent_health.finding import Finding, json_pointer

MAX_CARD_BYTES: Final = 1024 * 1024
MAX_INTERFACES: Final = 64
"""Entries of each list that says where to call."""
MAX_EXTENSIONS: Final = 256
MAX_SKILLS: Final = 1024
MAX_AUTH_SCHEMES: Final = 64
MAX_TEXT_CHARS: Final = 4096
MAX_URL_CHARS: Final = 2048
MAX_SHOWN_CHARS: Final = 80
"""Of a peer's value in a message."""
MAX_FINDINGS: Final = 100

Generation = Literal["0.1", "0.2", "0.3", "1.0"]
CardFinding = Literal[
    # the whole answer
    "too_large", "not_utf8", "byte_order_mark", "not_json", "too_deep", "not_a_card",
    # any member
    "wrong_type", "null_for_absent", "too_long", "too_many_items", "too_many_findings",
    "unprintable_characters",
    # who and what
    "name_missing", "description_missing", "version_missing", "provider_without_organization",
    "skills_missing", "skill_without_id", "capabilities_missing", "capabilities_is_a_list",
    # which generation
    "mixed_generations", "protocol_version_missing", "protocol_version_unknown",
    "protocol_version_contradicts_shape",
    # where to call
    "url_missing", "url_not_absolute", "url_on_localhost", "url_under_private_key", "url_is_a_template",
    "url_has_credentials", "unknown_scheme", "unknown_binding", "binding_missing", "binding_respelled",
    # extensions and health
    "extension_without_uri", "extensions_outside_capabilities", "duplicate_health_extension",
    "required_health_extension", "health_path_missing", "health_path_is_not_a_path",
    "health_under_private_key",
]  # fmt: skip
"""Every name that a finding about a card can have."""

GENERATIONS: Final[Mapping[str, Generation]] = MappingProxyType(
    {"0.1": "0.1", "0.2": "0.2", "0.3": "0.3", "1.0": "1.0"}
)
# Spellings of the core bindings (4.4.6) in capitals, and what they mean.
BINDINGS: Final[Mapping[str, str]] = MappingProxyType({
    "JSONRPC":   "JSONRPC",
    "JSON-RPC":  "JSONRPC",
    "GRPC":      "GRPC",
    "HTTP+JSON": "HTTP+JSON",
    "REST":      "HTTP+JSON",
})  # fmt: skip
# `a2aEndpoint` says of itself that it speaks A2A; the others are used only if nothing else can be called.
A2A_URL_KEY: Final = "a2aEndpoint"
PRIVATE_URL_KEYS: Final = (A2A_URL_KEY, "serviceUrl", "apiEndpoint", "endpoint", "endpoints", "interfaces")
# Among named endpoints only these can mean A2A; statistics and documentation are not to be called.
PRIVATE_URL_NAMES: Final = ("a2a", "jsonrpc", "rpc", "grpc", "rest", "url")

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
# Members that a generation has left behind; they are read all the same.
LEFT_BEHIND: Final[Mapping[Generation | None, tuple[str, ...]]] = MappingProxyType({
    "1.0": ("url", "preferredTransport", "additionalInterfaces", "protocolVersion",
            "supportsAuthenticatedExtendedCard", "authentication"),
    "0.3": ("authentication",),
    "0.2": ("authentication",),
})  # fmt: skip
# Where cards announce a health URL although no specification says so; the first readable one counts.
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
"""How many of name, where to call, capabilities, skills, and version or modes make an object a card."""

_LOCAL_HOST: Final = re.compile(r"(?:.*\.)?localhost\.?|127(?:\.[0-9]{1,3}){3}|0\.0\.0\.0|::1?")
_NEVER_IN_A_URL: Final = re.compile(r"[\s\\\x00-\x20\x7f-\x9f\ud800-\udfff\ufffd]")
_VERSION: Final = re.compile(r"([0-9]{1,4}\.[0-9]{1,4})(?:\.[0-9]{1,4})?")
_URL_FAULTS: Final[Mapping[CardFinding, str]] = MappingProxyType({
    "url_is_a_template": "a placeholder was left in the URL; nobody can call it",
    "url_not_absolute": "not an absolute http(s) URL",
    "unknown_scheme": "neither http nor https",
    "url_has_credentials": "credentials in a public card; not to be called with them",
})  # fmt: skip
# Control characters, lone surrogates and bidirectional overrides break terminals, databases and pages.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
_TOO_MANY_FINDINGS: Final = Finding("too_many_findings", "", f"{MAX_FINDINGS} or more; the rest is not named")
_Kind = TypeVar("_Kind", str, bool, list[Any], dict[str, Any])
_KIND_NAMES: Final[Mapping[type, str]] = MappingProxyType(
    {str: "text", bool: "true or false", list: "a list", dict: "an object"}
)


class CardKind(StrEnum):
    """What stood where a card was expected."""

    CARD = auto()
    REGISTRY_RECORD = auto()
    """A card with the members that a directory adds, such as `wellKnownURI`; read like a card."""
    NOT_A_CARD = auto()
    """JSON of another kind; nothing of it is read."""
    NOT_JSON = auto()
    """Not JSON, or not parsed because it is too large or too deep."""


@dataclass(frozen=True, slots=True)
class AgentInterface:
    """One place where the agent says that it can be called (4.4.6)."""

    url: str
    """As sent; see `is_callable`."""
    binding: str | None
    """`JSONRPC`, `GRPC`, `HTTP+JSON`, or another text as sent; None if the card does not say."""
    protocol_version: str | None
    """As sent, such as `0.3.0` or `1.0`; None if the card does not say."""
    tenant: str | None = None

    @property
    def is_callable(self) -> bool:
        """Whether `url` is an absolute http(s) URL without a placeholder or credentials."""
        return _url_fault(self.url) is None


@dataclass(frozen=True, slots=True)
class AgentExtension:
    """One entry of `capabilities.extensions[]` (4.4.4)."""

    uri: str
    description: str | None
    required: bool
    params: Mapping[str, Any]
    """As sent, uninspected; empty if absent."""


@dataclass(frozen=True, slots=True)
class AgentCard:
    """What could be read of a card (4.4.1); of what is no card, only `kind` and `findings` are set."""

    kind: CardKind
    generation: Generation | None = None
    """Of the card's shape, not of its interfaces; None if it cannot be told."""
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
    health: HealthAnnouncement | None = None
    findings: tuple[Finding, ...] = ()
    """In the order of reading, at most MAX_FINDINGS."""

    @property
    def is_usable(self) -> bool:
        """Whether there is at least one absolute http(s) URL to call."""
        return any(interface.is_callable for interface in self.interfaces)


def read_agent_card(raw: bytes | str) -> AgentCard:
    """Read a card as it came over the wire; never raises, whatever came."""
    findings: list[Finding] = []
    whole = _Object({}, (), findings)
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
        whole.note("not_json", message=f"not JSON{hint}: {str(error)[:80]}")
    except RecursionError:
        whole.note("too_deep", message="nested too deeply; not parsed")
    else:
        return _interpret(value, findings)
    return AgentCard(CardKind.NOT_JSON, findings=tuple(findings))


def interpret_agent_card(value: object) -> AgentCard:
    """Read a card that was already parsed from JSON; never raises."""
    return _interpret(value, [])


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True)
class _Object:
    """One JSON object of the card, the way to it, and the card's one list of findings.

    What cannot be taken counts as absent and leaves a finding.
    """

    members: dict[str, Any]
    way: tuple[str | int, ...]
    findings: list[Finding]

    def note(self, name: CardFinding, *inner: str | int, message: str) -> None:
        self.add(Finding(name, json_pointer(*self.way, *inner), message))

    def add(self, finding: Finding) -> None:
        if len(self.findings) < MAX_FINDINGS:
            is_last = len(self.findings) == MAX_FINDINGS - 1
            self.findings.append(_TOO_MANY_FINDINGS if is_last else finding)

    def require(self, key: str, missing: CardFinding) -> None:
        if key not in self.members:
            self.note(missing, key, message=f"`{key}` is required")

    def take(self, key: str, kind: type[_Kind]) -> _Kind | None:
        value = self.members.get(key)
        if isinstance(value, kind):
            return value
        if value is not None:
            self.note(
                "wrong_type", key, message=f"expected {_KIND_NAMES[kind]}, got {_shown(value)}; ignored"
            )
        elif key in self.members:
            self.note("null_for_absent", key, message="null; what does not exist is left out")
        return None

    def text(self, key: str) -> str | None:
        value = self.take(key, str)
        return None if value is None else self.clean(value, key)

    def clean(self, text: str, *inner: str | int) -> str:
        if len(text) > MAX_TEXT_CHARS:
            self.note("too_long", *inner, message=f"cut to {MAX_TEXT_CHARS} of {len(text)} characters")
        cleaned, count = _UNPRINTABLE.subn("\ufffd", text[:MAX_TEXT_CHARS])
        if count:
            self.note("unprintable_characters", *inner, message=f"{count} replaced by U+FFFD")
        return cleaned

    def flag(self, key: str) -> bool:
        return self.take(key, bool) or False

    def items(self, key: str, limit: int) -> list[Any]:
        items = self.take(key, list) or []
        if len(items) > limit:
            self.note("too_many_items", key, message=f"{len(items)} items; only the first {limit} are read")
        return items[:limit]

    def objects(self, key: str, limit: int) -> Iterator["_Object"]:
        for index, item in enumerate(self.items(key, limit)):
            if isinstance(item, dict):
                yield _Object(item, (*self.way, key, index), self.findings)
            else:
                self.note(
                    "wrong_type", key, index, message=f"expected an object, got {_shown(item)}; ignored"
                )

    def inside(self, key: str) -> "_Object":
        """The object under `key`, an empty one if there is none."""
        return _Object(self.take(key, dict) or {}, (*self.way, key), self.findings)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:MAX_SHOWN_CHARS])
    if isinstance(value, bool):
        return str(value).lower()
    # A number may have more digits than Python agrees to print.
    return _KIND_NAMES.get(type(value), "a number" if isinstance(value, int | float) else "something else")


def _interpret(value: object, findings: list[Finding]) -> AgentCard:
    if not isinstance(value, dict):
        _Object({}, (), findings).note("not_a_card", message=f"expected an object, got {_shown(value)}")
        return AgentCard(CardKind.NOT_A_CARD, findings=tuple(findings))
    card = _Object(value, (), findings)
    if _card_evidence(value) < MIN_CARD_EVIDENCE:
        card.note("not_a_card", message="too few of a card's members: name, url, capabilities, skills")
        return AgentCard(CardKind.NOT_A_CARD, findings=tuple(findings))
    for key, missing in REQUIRED_MEMBERS:
        card.require(key, missing)
    declared = _protocol_version(card)
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
        interfaces=_interfaces(card, declared),
        extensions=tuple(_extensions(extensions)),
        skill_ids=tuple(_skill_ids(card)),
        has_extended_card=card.flag("supportsAuthenticatedExtendedCard")
        | capabilities.flag("extendedAgentCard"),
        streaming=capabilities.flag("streaming"),
        push_notifications=capabilities.flag("pushNotifications"),
        is_signed=bool(card.take("signatures", list)),
        auth_schemes=_auth_schemes(card),
        health=_health(card, extensions),
        findings=tuple(findings),
    )


def _card_evidence(members: dict[str, Any]) -> int:
    is_somewhere = any(
        isinstance(members.get(key), list) for key in ("supportedInterfaces", "additionalInterfaces")
    )
    return sum((
        isinstance(members.get("name"), str),
        is_somewhere or isinstance(members.get("url"), str) or any(_private_urls(members)),
        isinstance(members.get("capabilities"), dict | list),
        isinstance(members.get("skills"), list),
        not {"protocolVersion", "defaultInputModes", "defaultOutputModes"}.isdisjoint(members),
    ))  # fmt: skip


def _generation(card: _Object, declared: str | None) -> Generation | None:
    generation = _generation_of_shape(card, declared)
    if declared is None and generation in {None, "0.3"}:
        card.require("protocolVersion", "protocol_version_missing")
    strays = [key for key in LEFT_BEHIND.get(generation, ()) if card.members.get(key) is not None]
    if strays:
        card.note(
            "mixed_generations", strays[0], message=f"not in a {generation} card: {', '.join(strays)}; read"
        )
    return generation


def _generation_of_shape(card: _Object, declared: str | None) -> Generation | None:
    supported = card.members.get("supportedInterfaces")
    if isinstance(supported, list) and any(isinstance(item, dict) for item in supported):
        return "1.0"
    generation = GENERATIONS.get(_major_minor(declared) or "")
    if generation == "1.0":
        message = "a 1.0 card says where to call in `supportedInterfaces`"
        card.note("protocol_version_contradicts_shape", "protocolVersion", message=message)
    elif generation:
        return generation
    dated = (dating for key, kind, dating in DATING_MEMBERS if isinstance(card.members.get(key), kind))
    return next(dated, None)


def _capabilities(card: _Object) -> _Object:
    if "extensions" in card.members:
        message = "extensions belong into `capabilities`; not read"
        card.note("extensions_outside_capabilities", "extensions", message=message)
    if isinstance(card.members.get("capabilities"), list):
        card.note("capabilities_is_a_list", "capabilities", message="expected an object, got a list; ignored")
        return _Object({}, ("capabilities",), card.findings)
    return card.inside("capabilities")


def _provider(card: _Object) -> str | None:
    provider = card.inside("provider")
    if provider.members:
        provider.require("organization", "provider_without_organization")
    return provider.text("organization")


def _skill_ids(card: _Object) -> Iterator[str]:
    for skill in card.objects("skills", MAX_SKILLS):
        skill.require("id", "skill_without_id")
        if skill_id := skill.text("id"):
            yield skill_id


def _auth_schemes(card: _Object) -> tuple[str, ...]:
    older = card.inside("authentication")
    names: dict[str, None] = {}
    for index, name in enumerate(older.items("schemes", MAX_AUTH_SCHEMES)):
        if isinstance(name, str):
            names[older.clean(name, "schemes", index)] = None
        else:
            older.note("wrong_type", "schemes", index, message=f"expected text, got {_shown(name)}; ignored")
    newer = card.inside("securitySchemes")
    if len(newer.members) > MAX_AUTH_SCHEMES:
        newer.note("too_many_items", message=f"only the first {MAX_AUTH_SCHEMES} schemes are read")
    for name in islice(newer.members, MAX_AUTH_SCHEMES):
        names[newer.clean(str(name))] = None
    return tuple(names)


def _extensions(entries: Sequence[_Object]) -> Iterator[AgentExtension]:
    for entry in entries:
        entry.require("uri", "extension_without_uri")
        uri, description, required = entry.text("uri"), entry.text("description"), entry.flag("required")
        params = entry.take("params", dict) or {}
        if uri:
            yield AgentExtension(uri, description, required, params)


def _interfaces(card: _Object, declared: str | None) -> tuple[AgentInterface, ...]:
    found = [*_current_interfaces(card, declared), *_older_interfaces(card, declared)]
    is_enough = any(interface.is_callable for interface in found)
    for way, url in _private_urls(card.members):
        if not is_enough or way == (A2A_URL_KEY,):
            card.note(
                "url_under_private_key", *way, message="no A2A card has its URL here; used all the same"
            )
            if checked := _checked_url(card, url, *way):
                found.append(AgentInterface(checked, None, declared))
    if not found and "url" not in card.members:
        card.note("url_missing", "url", message="the card does not say where to call")
    unique: dict[tuple[str, str | None, str | None], AgentInterface] = {}
    for one in found:
        unique.setdefault((one.url, one.binding, _major_minor(one.protocol_version)), one)
    return tuple(unique.values())


def _protocol_version(place: _Object) -> str | None:
    version = place.text("protocolVersion")
    if version is not None and _major_minor(version) not in GENERATIONS:
        place.note(
            "protocol_version_unknown", "protocolVersion", message=f"{_shown(version)} is no A2A version"
        )
    return version


def _major_minor(version: str | None) -> str | None:
    match = _VERSION.fullmatch(version or "")
    return match[1] if match else version


def _private_urls(members: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text that stands for a URL outside the specification, after the way to it."""
    for key in PRIVATE_URL_KEYS:
        value = members.get(key)
        if isinstance(value, str):
            yield (key,), value
        elif isinstance(value, dict):
            named = ((name, value.get(name)) for name in PRIVATE_URL_NAMES)
            yield from (((key, name), url) for name, url in named if isinstance(url, str))
        elif isinstance(value, list):
            for index, item in enumerate(value[:MAX_INTERFACES]):
                url = item.get("url") if isinstance(item, dict) else item
                if isinstance(url, str):
                    yield (key, index, "url") if isinstance(item, dict) else (key, index), url


def _url_fault(url: str) -> CardFinding | None:
    """The finding that keeps `url` from being called, None if it is an absolute http(s) URL."""
    if "{" in url or "}" in url:
        return "url_is_a_template"
    try:
        parts = urlsplit(url)
        is_absolute = bool(parts.scheme and parts.hostname) and parts.port != 0
    except ValueError:
        return "url_not_absolute"
    if not is_absolute or _NEVER_IN_A_URL.search(url):
        return "url_not_absolute"
    if parts.scheme not in {"http", "https"}:
        return "unknown_scheme"
    return "url_has_credentials" if "@" in parts.netloc else None


def _current_interfaces(card: _Object, declared: str | None) -> Iterator[AgentInterface]:
    for place in card.objects("supportedInterfaces", MAX_INTERFACES):
        version = _protocol_version(place)
        if version is None:
            message = f"required; the card's own is taken: {declared or 'none'}"
            place.note("protocol_version_missing", "protocolVersion", message=message)
            version = declared
        binding = _binding(place, "protocolBinding")
        tenant = place.text("tenant")
        if url := _url(place):
            yield AgentInterface(url, binding, version, tenant)


def _older_interfaces(card: _Object, declared: str | None) -> Iterator[AgentInterface]:
    if "url" in card.members:
        # Without `preferredTransport` it is JSON-RPC, the only one before 0.2.4 (A2A 0.3.0, 5.6.1).
        binding = _binding(card, "preferredTransport") if "preferredTransport" in card.members else "JSONRPC"
        if url := _url(card):
            yield AgentInterface(url, binding, declared)
    for place in card.objects("additionalInterfaces", MAX_INTERFACES):
        binding = _binding(place, "transport")
        if url := _url(place):
            yield AgentInterface(url, binding, declared)


def _binding(place: _Object, key: str) -> str | None:
    place.require(key, "binding_missing")
    given = place.text(key)
    if given is None:
        return None
    binding = BINDINGS.get(given.upper())
    if binding is None:
        place.note("unknown_binding", key, message=f"{_shown(given)} is none of A2A's; kept as it is")
    elif binding != given:
        place.note("binding_respelled", key, message=f"{_shown(given)} is read as {binding}")
    return binding or given


def _url(place: _Object) -> str | None:
    url = place.take("url", str)
    if not url:
        place.note("url_missing", "url", message="the place where to call is absent or empty")
        return None
    return _checked_url(place, url, "url")


def _checked_url(place: _Object, url: str, *way: str | int) -> str | None:
    if len(url) > MAX_URL_CHARS:
        # A URL that was cut is another URL.
        place.note("too_long", *way, message=f"{len(url)} characters, more than {MAX_URL_CHARS}; ignored")
        return None
    fault = _url_fault(url)
    if fault:
        place.note(fault, *way, message=_URL_FAULTS[fault])
    elif _LOCAL_HOST.fullmatch(urlsplit(url).hostname or ""):
        place.note("url_on_localhost", *way, message="leads back to whoever reads it")
    return place.clean(url, *way)


def _health(card: _Object, extensions: Sequence[_Object]) -> HealthAnnouncement | None:
    # The place of an extension in its list is the last step of the way to it.
    announced, findings = read_announcement(
        [(extension.way[-1], extension.members) for extension in extensions]
    )
    for finding in findings:
        card.add(finding)
    return announced or _private_health(card)


def _private_health(card: _Object) -> HealthAnnouncement | None:
    for way in PRIVATE_HEALTH_PLACES:
        value: object = card.members
        for step in way:
            value = value.get(step) if isinstance(value, dict) else None
        # Some name the method too, as in `GET /health`.
        place = value.removeprefix("GET ").strip() if isinstance(value, str) else ""
        path = place if is_health_path(place) else None
        url = place if len(place) <= MAX_URL_CHARS and _url_fault(place) is None else None
        if path or url:
            card.note(
                "health_under_private_key", *way, message=f"health is announced at {_shown(place)}; used"
            )
            return HealthAnnouncement(path, url, None, "private_key")
    return None
