"""Interfaces in a card: the URLs at which its agent can be called.

1.0 lists them in `supportedInterfaces`, 0.x in `url` and `additionalInterfaces`, and some cards in members of
their own. Section numbers without a source are those of the A2A 1.0 specification.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from lifesign.domain.parsing.lenient_json import LenientObject, shown

MAX_INTERFACES: Final = 64
"""Entries that are read of each list of interfaces."""
MAX_URL_CHARS: Final = 2048

Generation = Literal["0.1", "0.2", "0.3", "1.0"]
InterfaceFinding = Literal[
    "protocol_version_missing", "protocol_version_unknown",
    "url_missing", "url_not_absolute", "url_on_localhost", "url_under_private_key", "url_is_a_template",
    "url_has_credentials", "unknown_scheme", "unknown_binding", "binding_missing", "binding_respelled",
]  # fmt: skip
"""The names of the findings about where to call."""

GENERATIONS: Final[Mapping[str, Generation]] = MappingProxyType(
    {"0.1": "0.1", "0.2": "0.2", "0.3": "0.3", "1.0": "1.0"}
)
# Spellings of the core bindings (4.4.6) in capitals, with their standard names.
BINDINGS: Final[Mapping[str, str]] = MappingProxyType({
    "JSONRPC":   "JSONRPC",
    "JSON-RPC":  "JSONRPC",
    "GRPC":      "GRPC",
    "HTTP+JSON": "HTTP+JSON",
    "REST":      "HTTP+JSON",
})  # fmt: skip
JSON_BINDINGS: Final = frozenset({"JSONRPC", "HTTP+JSON", None})
"""An interface that names no binding was JSON-RPC in all generations that did not have to."""
# `a2aEndpoint` names A2A itself; the others are used only if no other interface can be called.
A2A_URL_KEY: Final = "a2aEndpoint"
PRIVATE_URL_KEYS: Final = (A2A_URL_KEY, "serviceUrl", "apiEndpoint", "endpoint", "endpoints", "interfaces")
# Among named endpoints only these can mean A2A; others serve statistics or documentation.
PRIVATE_URL_NAMES: Final = ("a2a", "jsonrpc", "rpc", "grpc", "rest", "url")

_LOCAL_HOST: Final = re.compile(r"(?:.*\.)?localhost\.?|127(?:\.[0-9]{1,3}){3}|0\.0\.0\.0|::1?")
_NEVER_IN_A_URL: Final = re.compile(r"[\s\\\x00-\x20\x7f-\x9f\ud800-\udfff\ufffd]")
_VERSION: Final = re.compile(r"([0-9]{1,4}\.[0-9]{1,4})(?:\.[0-9]{1,4})?")
_URL_FAULTS: Final[Mapping[InterfaceFinding, str]] = MappingProxyType({
    "url_is_a_template": "the URL contains an unreplaced placeholder",
    "url_not_absolute": "not an absolute http(s) URL",
    "unknown_scheme": "neither http nor https",
    "url_has_credentials": "credentials in a public card; an interface with such a URL is not called",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class AgentInterface:
    """One interface of an agent, as its card declares it (4.4.6)."""

    url: str
    """As sent; see `is_callable`."""
    binding: str | None
    """`JSONRPC`, `GRPC`, `HTTP+JSON`, or another text as sent; None if the card names no binding."""
    protocol_version: str | None
    """Version as sent, such as `0.3.0` or `1.0`; None if the card has none."""
    tenant: str | None = None

    @property
    def is_callable(self) -> bool:
        """Whether the interface's URL is an absolute http(s) URL without a placeholder or credentials."""
        return url_fault(self.url) is None


def read_interfaces(card: LenientObject, declared: str | None) -> tuple[AgentInterface, ...]:
    """Return the interfaces of a card without duplicates: 1.0's, then those of 0.x, then private ones.

    `declared` is the protocol version of the card as a whole, for interfaces that name none.
    """
    found = [*_current_interfaces(card, declared), *_older_interfaces(card, declared)]
    is_enough = any(interface.is_callable for interface in found)
    for way, url in private_urls(card.members):
        if not is_enough or way == (A2A_URL_KEY,):
            card.note(
                "url_under_private_key",
                *way,
                message="this is not the place for the URL in an A2A card; used anyway",
            )
            if checked := _checked_url(card, url, *way):
                found.append(AgentInterface(checked, None, declared))
    if not found and "url" not in card.members:
        card.note("url_missing", "url", message="the card has no URL for calls")
    unique: dict[tuple[str, str | None, str | None], AgentInterface] = {}
    for one in found:
        unique.setdefault((one.url, one.binding, major_minor(one.protocol_version)), one)
    return tuple(unique.values())


def read_protocol_version(place: LenientObject) -> str | None:
    """Return the `protocolVersion` of a card or an interface as sent, None if it names none."""
    version = place.text("protocolVersion")
    if version is not None and major_minor(version) not in GENERATIONS:
        place.note(
            "protocol_version_unknown", "protocolVersion", message=f"{shown(version)} is not a version of A2A"
        )
    return version


def askable(interfaces: Iterable[AgentInterface]) -> AgentInterface | None:
    """Return the first interface that takes JSON, else the first with a protocol binding of its own.

    None if there is none: gRPC needs a client that was made for it.
    """
    callable_ones = [one for one in interfaces if one.is_callable and one.binding != "GRPC"]
    in_json = (one for one in callable_ones if one.binding in JSON_BINDINGS)
    return next(in_json, callable_ones[0] if callable_ones else None)


def major_minor(version: str | None) -> str | None:
    """Return `0.3` for `0.3.0`; other texts are returned unchanged."""
    match = _VERSION.fullmatch(version or "")
    return match[1] if match else version


def private_urls(members: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield possible URLs in members of a card that the specification does not define, with their paths."""
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


# Each URL of a card is checked three times.
@lru_cache(maxsize=MAX_INTERFACES)
def url_fault(url: str) -> InterfaceFinding | None:
    """Return the finding because of which a URL cannot be called; None for a valid http(s) URL."""
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


def _current_interfaces(card: LenientObject, declared: str | None) -> Iterator[AgentInterface]:
    for place in card.objects("supportedInterfaces", MAX_INTERFACES):
        version = read_protocol_version(place)
        if version is None:
            message = f"required; the card's own is taken: {declared or 'none'}"
            place.note("protocol_version_missing", "protocolVersion", message=message)
            version = declared
        binding = _binding(place, "protocolBinding")
        tenant = place.text("tenant")
        if url := _url(place):
            yield AgentInterface(url, binding, version, tenant)


def _older_interfaces(card: LenientObject, declared: str | None) -> Iterator[AgentInterface]:
    if "url" in card.members:
        # Without `preferredTransport` it is JSON-RPC, the only one before 0.2.4 (A2A 0.3.0, 5.6.1).
        binding = _binding(card, "preferredTransport") if "preferredTransport" in card.members else "JSONRPC"
        if url := _url(card):
            yield AgentInterface(url, binding, declared)
    for place in card.objects("additionalInterfaces", MAX_INTERFACES):
        binding = _binding(place, "transport")
        if url := _url(place):
            yield AgentInterface(url, binding, declared)


def _binding(place: LenientObject, key: str) -> str | None:
    place.require(key, "binding_missing")
    given = place.text(key)
    if given is None:
        return None
    binding = BINDINGS.get(given.upper())
    if binding is None:
        place.note("unknown_binding", key, message=f"{shown(given)} is not a binding of A2A; kept")
    elif binding != given:
        place.note("binding_respelled", key, message=f"{shown(given)} is read as {binding}")
    return binding or given


def _url(place: LenientObject) -> str | None:
    url = place.take("url", str)
    if not url:
        place.note("url_missing", "url", message="the URL for calls is absent or empty")
        return None
    return _checked_url(place, url, "url")


def _checked_url(place: LenientObject, url: str, *way: str | int) -> str | None:
    if len(url) > MAX_URL_CHARS:
        # A URL that was cut is another URL.
        place.note("too_long", *way, message=f"{len(url)} characters, more than {MAX_URL_CHARS}; ignored")
        return None
    fault = url_fault(url)
    if fault:
        place.note(fault, *way, message=_URL_FAULTS[fault])
    elif _LOCAL_HOST.fullmatch(urlsplit(url).hostname or ""):
        place.note("url_on_localhost", *way, message="the URL leads to the caller's own machine")
    return place.clean(url, *way)
