"""Addresses that may be contacted.

Directories, cards and webhooks name hosts that strangers chose. Without this check, a probe could connect to
an internal database, or read a cloud machine's credentials from its metadata address.

A name must be resolved first: resolve it once, check every address, and connect to a checked address. A
redirect is a new URL and is checked again. The ranges are the project's own table: the ranges that
`ipaddress` calls private or global differ between versions of Python. A NAT64 gateway with a prefix other
than the well-known one cannot be distinguished from an ordinary network.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from types import MappingProxyType
from typing import Final, Literal

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.errors import InvalidValue

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Scheme = Literal["http", "https"]

MAX_URL_CHARACTERS: Final = 2048
MAX_HOST_CHARACTERS: Final = 253
MAX_LABEL_CHARACTERS: Final = 63
"""Maximum length of a part of a host name between dots."""
MAX_NETWORKS: Final = 1_000
DEFAULT_PORTS: Final[Mapping[Scheme, int]] = MappingProxyType({"http": 80, "https": 443})


@dataclass(frozen=True, slots=True)
class SpecialRange:
    """A range of non-public addresses, and whether a setting may allow to contact it."""

    network: Network
    what: str
    """Completes "this address is …"."""
    may_be_allowed: bool = False
    """True if a network setting can allow it. Other ranges contain secrets, or cannot be served from."""


def _ranges(*rows: tuple[str, str], may_be_allowed: bool = False) -> list[SpecialRange]:
    return [SpecialRange(ip_network(network), what, may_be_allowed) for network, what in rows]


# The first match gives the reason: narrow ranges come before wide ones.
SPECIAL_RANGES: Final = (
    *_ranges(
        ("169.254.169.254/32", "a cloud metadata address"),
        # Container and pod credentials (AWS).
        ("169.254.170.2/32", "a cloud metadata address"),
        ("169.254.170.23/32", "a cloud metadata address"),
        # Alibaba, Oracle and Azure have theirs outside of the link-local range.
        ("100.100.100.200/32", "a cloud metadata address"),
        ("192.0.0.192/32", "a cloud metadata address"),
        ("168.63.129.16/32", "a cloud metadata address"),
        ("fd00:ec2::254/128", "a cloud metadata address"),
        ("fd00:ec2::23/128", "a cloud metadata address"),
        ("fd20:ce::254/128", "a cloud metadata address"),
        # Tencent, Scaleway, Oracle, Alibaba and Linode.
        ("169.254.0.23/32", "a cloud metadata address"),
        ("169.254.42.42/32", "a cloud metadata address"),
        ("fd00:42::42/128", "a cloud metadata address"),
        ("fd00:c1::a9fe:a9fe/128", "a cloud metadata address"),
        ("fd00:100::100:200/128", "a cloud metadata address"),
        ("fd00:a9fe:a9fe::1/128", "a cloud metadata address"),
        # Linux connects 0.0.0.0 and :: to the machine itself.
        ("0.0.0.0/8", "unspecified (RFC 1122)"),
        ("192.0.0.0/24", "reserved for protocols (RFC 6890)"),
        ("192.88.99.0/24", "a 6to4 relay (RFC 7526)"),
        ("224.0.0.0/4", "multicast (RFC 5771)"),
        ("255.255.255.255/32", "broadcast (RFC 919)"),
        ("240.0.0.0/4", "reserved (RFC 1112)"),
        ("::/128", "unspecified (RFC 4291)"),
        ("2001::/32", "a Teredo tunnel (RFC 4380)"),
        ("2002::/16", "a 6to4 tunnel (RFC 3056)"),
        ("ff00::/8", "multicast (RFC 4291)"),
    ),
    *_ranges(
        ("10.0.0.0/8", "private (RFC 1918)"),
        ("172.16.0.0/12", "private (RFC 1918)"),
        ("192.168.0.0/16", "private (RFC 1918)"),
        ("100.64.0.0/10", "shared by a carrier's customers (RFC 6598)"),
        ("127.0.0.0/8", "loopback (RFC 1122)"),
        ("169.254.0.0/16", "link-local (RFC 3927)"),
        ("192.0.2.0/24", "for documentation (RFC 5737)"),
        ("198.51.100.0/24", "for documentation (RFC 5737)"),
        ("203.0.113.0/24", "for documentation (RFC 5737)"),
        ("198.18.0.0/15", "for benchmarks (RFC 2544)"),
        ("::1/128", "loopback (RFC 4291)"),
        ("fe80::/10", "link-local (RFC 4291)"),
        ("fec0::/10", "site-local (RFC 3879)"),
        ("fc00::/7", "private (RFC 4193)"),
        ("64:ff9b:1::/48", "translated by a gateway of this site (RFC 8215)"),
        ("2001:2::/48", "for benchmarks (RFC 5180)"),
        ("2001:db8::/32", "for documentation (RFC 3849)"),
        ("3fff::/20", "for documentation (RFC 9637)"),
        may_be_allowed=True,
    ),
    *_ranges(
        ("::/96", "an IPv4-compatible address (RFC 4291)"),
        ("2001::/23", "reserved for protocols (RFC 2928)"),
    ),
)
# As numbers: `in` of a network costs as much as comparing with all ranges.
_BOUNDS: Final[Mapping[int, Sequence[tuple[int, int, SpecialRange]]]] = MappingProxyType({
    version: tuple(
        (int(special.network.network_address), int(special.network.broadcast_address), special)
        for special in SPECIAL_RANGES
        if special.network.version == version
    )
    for version in (4, 6)
})  # fmt: skip
IPV6_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
IPV6_NAT64: Final = IPv6Network("64:ff9b::/96")
"""Range that the gateway of a network without IPv4 maps to the IPv4 internet (RFC 6052)."""

_SCHEMES: Final[Mapping[str, Scheme]] = MappingProxyType({"http": "http", "https": "https"})
_LOOPBACKS: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
LOOPBACK_NAMES: Final = frozenset({
    "localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "localhost.localdomain",
    "localhost4.localdomain4", "localhost6.localdomain6",
})  # fmt: skip

WITH_CREDENTIALS: Final = "a URL with a user name or a password is never contacted"
"""The reason of a `AddressRefused`."""
NO_PORT: Final = "expected a port from 1 to 65535"
"""The reason of a `AddressRefused`."""

# Characters that RFC 3986 allows. Parsers of URLs interpret all others differently: a backslash is a slash to
# some, a line break is ignored, and other alphabets have digits and dots of their own.
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?:[/?#].*)?")
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]*))?")
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# No top-level domain is a number, so a host that ends in one is an attempt at an IPv4 address.
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
# Up to the last @ before a path; or, if there is a colon without a port, up to the last @ of all: then the
# password contains a slash. It may contain white space.
_TO_HOST: Final = r"(?:[^/?#]*@|(?![0-9]+(?:[/?#\s]|$)).*@)"
_USER: Final = re.compile(rf"(?:[^/?#]*@|[^/?#:@\[]+:{_TO_HOST})", re.DOTALL)
_PASSWORD_IN_QUERY: Final = re.compile(r"([?&](?:ssl)?password=)[^&\s]*")
_WORD: Final = re.compile(r"\S+")
_AFTER_USER: Final = re.compile(r"[/?#:@\[]")
_AFTER_PORT: Final = re.compile(r"[0-9]+(?:[/?#]|$)")
_PATH: Final = re.compile(r"[/?#]")


@dataclass(frozen=True, slots=True)
class AddressRefused:
    """Reason why a URL or an address must not be contacted."""

    name: Literal["invalid_url", "blocked_address"]
    reason: str
    """Reason for people. It never quotes the URL, which may contain a password."""


@fast_dataclass()
class TargetUrl:
    """Destination of a URL. Connect to these values, not to another parser's result."""

    scheme: Scheme
    host: str
    """Host in lower case, without a final dot or brackets."""
    port: int
    address: Address | None
    """The host, if it is a literal address that may be contacted; None: vet the addresses of the name."""


def vet_address(address: Address, allowed: Sequence[Network] = ()) -> AddressRefused | None:
    """Return why an address may not be contacted, or None if it may.

    Allowed are global unicast addresses and those in `allowed`; never metadata addresses, multicast,
    unspecified and reserved addresses, and tunnels. An IPv6 address that maps to an IPv4 address is checked
    as that one.
    """
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return AddressRefused(
                "blocked_address", f"{address} has a zone, which is valid on one machine only"
            )
        if address.ipv4_mapped is not None:
            return _vet_embedded(address, address.ipv4_mapped, allowed)
        if address in IPV6_NAT64:
            # An explicitly allowed network is local, not behind a gateway.
            return _vet_embedded(address, IPv4Address(int(address) & 0xFFFF_FFFF), ())
    number = int(address)
    for first, last, special in _BOUNDS[address.version]:
        if first <= number <= last:
            return _unless_allowed(address, special, allowed)
    if address.version == 6 and address not in IPV6_GLOBAL_UNICAST:
        special = SpecialRange(IPv6Network("::/0"), "not global unicast (RFC 4291)", may_be_allowed=True)
        return _unless_allowed(address, special, allowed)
    return None


def is_in(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether an address lies in one of these networks. IPv4 written as IPv6 counts as IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return any((mapped or address) in network for network in networks)


def is_public(url: str, allowed: Sequence[Network] = ()) -> bool:
    """Return whether a URL may lead to a public address that is in none of the allowed networks.

    Every host name except localhost and those below .invalid counts as public, because its address is not
    known yet. A URL that is never contacted is not public.
    """
    target = vet_url(url)
    if isinstance(target, AddressRefused):
        return False
    if target.address is None:
        # RFC 6761 6.4: no such name has an address.
        return target.host.rpartition(".")[2] != "invalid"
    return not is_in(target.address, allowed)


def vet_url(url: str, allowed: Sequence[Network] = ()) -> TargetUrl | AddressRefused:  # noqa: PLR0911 - one per reason
    """Return the host and port of a URL that may be contacted, or the reason why it may not be.

    http and https, no credentials, a host, a port from 1 to 65535, at most `MAX_URL_CHARACTERS`. A literal
    address is checked at once, and accepted only in its usual spelling: four decimal numbers, or IPv6 in
    brackets without a zone. `localhost` and its aliases need an allowed loopback.
    """
    if len(url) > MAX_URL_CHARACTERS:
        return _invalid(f"the URL is longer than {MAX_URL_CHARACTERS} characters")
    if not _CHARACTERS.fullmatch(url):
        return _invalid("a URL consists of the characters of RFC 3986; percent-encode all others")
    parts = _URL.fullmatch(url)
    if parts is None:
        return _invalid("expected an absolute URL, such as https://agent.example/")
    scheme = _SCHEMES.get(parts["scheme"].lower())
    if scheme is None:
        return _invalid("only http and https URLs are contacted")
    if "@" in parts["authority"]:
        return _invalid(WITH_CREDENTIALS)
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        return _invalid(_authority_fault(parts["authority"]))
    port = _port(authority["port"], DEFAULT_PORTS[scheme])
    if port is None:
        return _invalid(NO_PORT)
    host = _vet_host(authority["host"].lower(), allowed)
    if isinstance(host, AddressRefused):
        return host
    address = None if isinstance(host, str) else host
    return TargetUrl(scheme, str(host), port, address)


def without_password(url: str) -> str:
    """Return a URL that a person entered with `...` instead of user and password.

    A user name alone is hidden too: it may be a token.
    """
    start = url.find("://") + 3 if "://" in url else 0
    user = _USER.match(url, start)
    return url if user is None else f"{url[:start]}...@{url[user.end() :]}"


def without_passwords(text: str) -> str:
    """Return a text with `...` in place of the password of every URL, also of one in its query."""
    if "://" not in text:
        return text
    if "password=" in text:
        text = _PASSWORD_IN_QUERY.sub(r"\1...", text)
    if "@" not in text:
        return text
    return _WORD.sub(lambda word: _without_passwords(word[0]), text)


def _without_passwords(word: str) -> str:
    """Same for a text without white space, in one pass.

    A regular expression would search the last @ again at each `://`.
    """
    last = word.rfind("@")
    parts: list[str] = []
    done = 0
    at = word.find("://")
    while 0 <= at < last:
        user = at + 3
        colon = _AFTER_USER.search(word, user)
        end = -1 if colon is None or colon[0] != ":" else _end_of_password(word, colon.end(), last)
        if colon is not None and end >= 0:
            parts += (word[done : colon.start()], ":...@")
            done = end + 1
        at = word.find("://", max(user, done))
    return "".join((*parts, word[done:]))


def _end_of_password(word: str, start: int, last: int) -> int:
    """Return the position of the @ after a password that begins at `start`; -1 if it is a port instead."""
    path = _PATH.search(word, start)
    end = word.rfind("@", start, len(word) if path is None else path.start())
    if end >= 0:
        return end
    return -1 if _AFTER_PORT.match(word, start) else last


def read_networks(texts: Iterable[str], name: str = "networks") -> tuple[Network, ...]:
    """Read networks such as `10.1.0.0/16`, `fd12::/16` or a single address.

    InvalidValue with the setting's `name` for invalid networks, for host bits, for all addresses at once, and
    for networks that can never match: those with a zone, and IPv4-mapped IPv6.
    """
    networks: list[Network] = []
    for text in texts:
        try:
            network = ip_network(text)
        except ValueError as error:
            raise InvalidValue(name, text, "a network such as 10.1.0.0/16") from error
        if "%" in text:
            raise InvalidValue(name, text, "a network without a zone")
        if network.prefixlen == 0:
            raise InvalidValue(name, text, "a network smaller than all addresses")
        if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
            raise InvalidValue(name, text, "an IPv4 network in IPv4 notation, for example 10.1.0.0/16")
        networks.append(network)
        if len(networks) > MAX_NETWORKS:
            raise InvalidValue(name, f"more than {MAX_NETWORKS}", f"at most {MAX_NETWORKS} networks")
    return tuple(networks)


def _unless_allowed(
    address: Address, special: SpecialRange, allowed: Sequence[Network]
) -> AddressRefused | None:
    if special.may_be_allowed and any(address in network for network in allowed):
        return None
    return AddressRefused("blocked_address", f"{address} is {special.what}")


def _vet_embedded(
    address: IPv6Address, embedded: IPv4Address, allowed: Sequence[Network]
) -> AddressRefused | None:
    refused = vet_address(embedded, allowed)
    if refused is None:
        return None
    return AddressRefused(refused.name, f"{address} contains an IPv4 address: {refused.reason}")


def _authority_fault(text: str) -> str:
    """Return why a text is no host, and no host with a port."""
    host, colon, _ = text.rpartition(":")
    if colon and (authority := _AUTHORITY.fullmatch(host)) is not None and authority["port"] is None:
        return NO_PORT
    brackets = ", an IPv6 address in brackets ([2001:db8::1]:8080)" if text.count(":") > 1 else ""
    return f"expected a host, or a host and a port{brackets}"


def _vet_host(host: str, allowed: Sequence[Network]) -> Address | str | AddressRefused:
    """Return the literal address or the name that a host is, in lower case; or why it is refused."""
    # The final dot marks a complete name; resolvers and certificates recognise the name without it.
    host = host.removesuffix(".")
    if not host:
        return _invalid("expected a host name, such as agent.example")
    if host.startswith("[") or _NUMBER.fullmatch(host, host.rfind(".") + 1):
        literal = _literal(host)
        return literal if isinstance(literal, AddressRefused) else vet_address(literal, allowed) or literal
    if len(host) > MAX_HOST_CHARACTERS or not _NAME.fullmatch(host):
        return _invalid(_host_name_fault(host))
    is_loopback = host in LOOPBACK_NAMES or host.endswith(".localhost")
    if is_loopback and all(vet_address(loopback, allowed) for loopback in _LOOPBACKS):
        return AddressRefused("blocked_address", f"{host} is loopback (RFC 6761)")
    return host


def _host_name_fault(host: str) -> str:
    """Return why a text is no host name."""
    labels = host.split(".")
    if "" in labels:
        return "a host name does not begin with a dot, and has no two dots in a row"
    if len(host) > MAX_HOST_CHARACTERS:
        return f"a host name has at most {MAX_HOST_CHARACTERS} characters"
    if any(len(label) > MAX_LABEL_CHARACTERS for label in labels):
        return f"a part of a host name between dots has at most {MAX_LABEL_CHARACTERS} characters"
    return (
        "expected a host name: letters, digits, _ and, not at either end of a part, hyphens; write "
        "other alphabets as xn--…"
    )


def _literal(host: str) -> Address | AddressRefused:
    try:
        return IPv6Address(host[1:-1]) if host.startswith("[") else IPv4Address(host)
    except AddressValueError:
        if host.startswith("["):
            return _invalid("expected an IPv6 address in the brackets")
        return _invalid("an IPv4 address is written as four decimal numbers without leading zeros")


def _port(text: str | None, default: int) -> int | None:
    """Return the port, None if it is invalid; nothing after the colon means the default (RFC 3986 3.2.3)."""
    if not text:
        return default
    # The length is checked first: converting many digits to a number takes long.
    return int(text) if len(text) <= 5 and 1 <= int(text) <= 65_535 else None


def _invalid(reason: str) -> AddressRefused:
    return AddressRefused("invalid_url", reason)
