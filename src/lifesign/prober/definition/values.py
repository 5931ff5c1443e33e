"""Types of the single values of a probe definition, and their syntax."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from ipaddress import ip_address
from types import MappingProxyType
from typing import Annotated, Any, Final
from unicodedata import normalize
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from lifesign.domain.net.allowed_addresses import (
    MAX_HOST_CHARACTERS,
    AddressRefused,
    Network,
    read_networks,
    vet_url,
)
from lifesign.domain.net.international_host import ascii_host, with_ascii_host
from lifesign.domain.net.network_class import PUBLIC_CLASSES, network_class_of
from lifesign.domain.observation.witness_rule import MIN_PUBLIC_CANARY_HOSTS
from lifesign.domain.targets.target import host_of, read_target
from lifesign.errors import InvalidValue

MIN_PHASE_SECONDS: Final = 0.05
MAX_PHASE_SECONDS: Final = 120
MAX_SPAN_SECONDS: Final = 30 * 86_400
"""The longest back-off, and the longest time between two readings of a card or a directory."""
MAX_NAME_CHARS: Final = 64
DNS_PORT: Final = 53

NAME_PATTERN: Final = "^[a-z0-9][a-z0-9._-]{0,63}$"
# The contact is part of a comment of the User-Agent, which a bracket, backslash or line break would end.
CONTACT_PATTERN: Final = (
    r"^(mailto:[A-Za-z0-9._%+~-]+@[A-Za-z0-9.-]+|https://[A-Za-z0-9.-]+[A-Za-z0-9._~:/?#@!$&*+,=%-]*)$"
)
FORMAT_PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,63}$"
HEALTH_PATH_PATTERN: Final = r"^/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*$"
HOST_PATTERN: Final = r"^\.?[A-Za-z0-9_:]([A-Za-z0-9_.:-]*[A-Za-z0-9_:])?$"
POINTER_PATTERN: Final = "^(/[ -~]*)?$"

FORMS: Final[Mapping[str, str]] = MappingProxyType({
    NAME_PATTERN: "1 to 64 lower-case letters, digits and . _ -, the first a letter or a digit",
    CONTACT_PATTERN: "an address for the operators of probed agents: mailto:ops@example.org or https://example.org/probe",
    FORMAT_PATTERN: "the name of a format, such as plain_list, or auto",
    HEALTH_PATH_PATTERN: "a path such as /ping",
    POINTER_PATTERN: "a JSON pointer, such as /state",
    HOST_PATTERN: "a host name, or one with a dot before it for it and all below: .example.org",
})  # fmt: skip
"""Description of each pattern, for error messages."""

_HASH_DIGITS: Final = 8
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9._-]+")


def name_from(text: str) -> str:
    """Return a valid name, made from a host or a file name; `directory` if nothing is left.

    If more than the case had to be changed, a hash distinguishes names that would be the same.
    """
    lowered = normalize("NFC", text.lower())
    name = _NOT_IN_A_NAME.sub("-", lowered).lstrip("._-")[:MAX_NAME_CHARS]
    if name and name == lowered:
        return name
    digest = sha256(lowered.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{name[: MAX_NAME_CHARS - _HASH_DIGITS - 1].rstrip('.-') or 'directory'}-{digest}"


def resolver_address(text: str) -> tuple[str, int] | None:
    """Return address and port of a name server (`192.0.2.1`, `[2001:db8::1]:53`); None if invalid."""
    host, port = text, str(DNS_PORT)
    if text.startswith("[") or text.count(":") == 1:
        found = re.fullmatch(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^:]*))(?::([0-9]{1,5}))?", text)
        if found is None:
            return None
        host, port = found[1] or found[2], found[3] or port
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (str(address), int(port)) if 1 <= int(port) <= 65_535 else None


def _normalize_target(value: str) -> str:
    target = read_target(value)
    if isinstance(target, AddressRefused):
        raise PydanticCustomError("target", "{reason}", {"reason": target.reason})
    return target


def _normalize_canary(value: str) -> str:
    return _normalize_target(_check_url(value))


def _normalize_canary_class(value: str) -> str:
    """Accept a public network class, or a network in its canonical spelling."""
    if value in PUBLIC_CLASSES:
        return value
    try:
        (network,) = read_networks([value])
    except InvalidValue:
        raise PydanticCustomError(
            "canary_class",
            "expected {classes}, or a network of networks.allow such as 10.1.0.0/16",
            {"classes": " or ".join(PUBLIC_CLASSES)},
        ) from None
    return str(network)


def check_canaries(network_class: str, urls: Sequence[str], allowed: Sequence[Network]) -> None:
    """Raise PydanticCustomError for canaries that cannot be witnesses of their network class."""
    if network_class in PUBLIC_CLASSES:
        if len({host_of(url) for url in urls}) < MIN_PUBLIC_CANARY_HOSTS:
            raise PydanticCustomError(
                "too_few_canaries",
                "{network_class}: expected https URLs at {least} different hosts or more",
                {"network_class": network_class, "least": MIN_PUBLIC_CANARY_HOSTS},
            )
        if any(not url.startswith("https:") for url in urls):
            raise PydanticCustomError(
                "canary_without_tls",
                "{network_class}: expected https URLs: without TLS, another host on the way may answer",
                {"network_class": network_class},
            )
    elif network_class not in map(str, allowed):
        raise PydanticCustomError(
            "canary_class",
            "{network_class}: expected a network that networks.allow names too",
            {"network_class": network_class},
        )
    elif not urls:
        raise PydanticCustomError(
            "too_few_canaries", "{network_class}: expected a URL", {"network_class": network_class}
        )
    for url in urls:
        target = vet_url(url, allowed)
        is_refused = isinstance(target, AddressRefused)
        address = None if isinstance(target, AddressRefused) else target.address
        if is_refused or (address is not None and network_class_of(address, allowed) != network_class):
            raise PydanticCustomError(
                "canary_elsewhere",
                "{network_class}: expected addresses of this class; {host} is of another one",
                {"network_class": network_class, "host": host_of(url)},
            )


def _check_url(value: str) -> str:
    url = with_ascii_host(value)
    vetted = url if isinstance(url, AddressRefused) else vet_url(url)
    # `networks.allow` decides separately which networks are allowed: any address is accepted here.
    if isinstance(vetted, AddressRefused) and vetted.name == "invalid_url":
        raise PydanticCustomError("url", "{reason}", {"reason": vetted.reason})
    return value if isinstance(url, AddressRefused) else url


def _normalize_host(value: Any) -> Any:
    """Spell a host in ASCII, with the dot before it if there is one."""
    if not isinstance(value, str) or value.isascii():
        return value
    host = ascii_host(value.removeprefix("."))
    if isinstance(host, AddressRefused):
        raise PydanticCustomError("host", "{reason}", {"reason": host.reason})
    return f".{host}" if value.startswith(".") else host


def _check_network(value: str) -> str:
    try:
        read_networks([value])
    except InvalidValue as error:
        raise PydanticCustomError("network", "expected {expected}", {"expected": error.expected}) from None
    return value


def _check_resolver(value: str) -> str:
    if resolver_address(value) is None:
        raise PydanticCustomError(
            "resolver", "expected an address, or one with a port: 192.0.2.1, 192.0.2.1:53, [2001:db8::1]:53"
        )
    return value


def check_path(value: str) -> str:
    """Return a path; refuse one that means another host, or that servers interpret differently."""
    path = value.partition("?")[0]
    if path.startswith("//"):
        raise PydanticCustomError(
            "other_host", "expected a path that begins with one slash: after // a server reads a host name"
        )
    if any(unquote(segment) in {".", ".."} for segment in path.split("/")):
        raise PydanticCustomError(
            "dot_segment", "expected a path without the parts . and ..: write the resulting path"
        )
    return value


def drop_duplicates(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values without duplicates, in their order."""
    return tuple(dict.fromkeys(values))


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Contact = Annotated[str, Field(max_length=200, pattern=CONTACT_PATTERN)]
Format = Annotated[str, Field(pattern=FORMAT_PATTERN)]
HealthPath = Annotated[str, Field(max_length=512, pattern=HEALTH_PATH_PATTERN), AfterValidator(check_path)]
"""A path on the target's own origin; with a query, if it is to have one, and without a fragment."""
Host = Annotated[
    str, Field(max_length=MAX_HOST_CHARACTERS + 1, pattern=HOST_PATTERN), BeforeValidator(_normalize_host)
]
Target = Annotated[str, AfterValidator(_normalize_target)]
"""A URL or a domain, in the spelling of `read_target`."""
CanaryClass = Annotated[str, AfterValidator(_normalize_canary_class)]
"""`public_ipv4`, `public_ipv6`, or a network."""
CanaryUrl = Annotated[str, AfterValidator(_normalize_canary)]
RegistryUrl = Annotated[str, AfterValidator(_check_url)]
NetworkName = Annotated[str, AfterValidator(_check_network)]
ResolverName = Annotated[str, AfterValidator(_check_resolver)]
Switch = Annotated[bool, Field(strict=True)]
PhaseSeconds = Annotated[
    float, Field(strict=True, ge=MIN_PHASE_SECONDS, le=MAX_PHASE_SECONDS, allow_inf_nan=False)
]
SpanSeconds = Annotated[float, Field(strict=True, gt=0, le=MAX_SPAN_SECONDS, allow_inf_nan=False)]
