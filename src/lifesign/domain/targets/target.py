"""Targets and their shards.

A target is an address in a directory of agents; with its first liveness signal it gets a record as an agent.
Its host alone decides which worker probes it, so that one worker sends all requests to a host. Its id decides
when it is probed within the interval, so that load is even and survives restarts.
"""

import re
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import urlsplit

from lifesign.domain.net.allowed_addresses import DEFAULT_PORTS, MAX_URL_CHARACTERS, AddressRefused, vet_url
from lifesign.domain.net.international_host import with_ascii_host
from lifesign.domain.net.public_url import is_on_this_machine

SHARDS: Final = 1024
"""Number of shards into which targets are divided (protocol 8)."""
TARGET_ID_PREFIX: Final = "tgt_"
HASH_DIGITS: Final = 32
TARGET_ID_PATTERN: Final = rf"^{TARGET_ID_PREFIX}[0-9a-f]{{{HASH_DIGITS}}}$"
_TARGET_ID: Final = re.compile(TARGET_ID_PATTERN, re.IGNORECASE | re.ASCII)
_PHASE_BYTES: Final = 6
"""A fraction of so many bytes is below 1 as a float too."""
_TURN_BYTES: Final = 4
# The usual lines of a directory of a million entries: `vet_url` would neither refuse nor change them, and
# takes eight times as long. A name whose last label begins with a letter is no address.
_PLAIN: Final = re.compile(
    r"(https?://)?((?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z](?:[a-z0-9_-]{0,61}[a-z0-9_])?)"
    r"(/[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=-]*)?"
)
_DOTS: Final = re.compile(r"/\.{1,2}(?:[/?#]|$)")
_ENCODED: Final = re.compile("%[0-9A-Fa-f]{2}")
_STRAY_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
"""Characters that mean the same with and without percent-encoding (RFC 3986 2.3)."""
MAX_REMEMBERED: Final = 4_096
"""Number of cached results for texts that take long to read: a list may repeat one half a million times."""
_MAX_PLAIN_CHARACTERS: Final = 250
"""Maximum for which neither the host nor the URL can be too long."""
# The query of a URL may contain a URL.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DEFAULT_PORTS: Final[dict[str, str]] = {scheme: str(port) for scheme, port in DEFAULT_PORTS.items()}


class TargetKind(StrEnum):
    """Kind of a target: A2A agent or MCP server."""

    A2A = "a2a"
    """An agent with a card."""
    MCP = "mcp"
    """An MCP server; the URL is that of its endpoint."""


class StatedKind(StrEnum):
    """Kind of a target as the directories that list it state it."""

    A2A = TargetKind.A2A.value
    MCP = TargetKind.MCP.value
    DISPUTED = "disputed"
    """They state different kinds: the prober requests both, and a failure counts only if both fail."""


def read_target(text: str) -> str | AddressRefused:
    """Return a URL or domain as the normal form of a target's URL, or the reason why it is invalid.

    A host without a scheme means https. Scheme and host are in lower case, a name in another alphabet is in
    ASCII (`xn--…`), an IPv6 address has its shortest form, the scheme's default port is omitted, an empty
    path is `/`, characters that need no percent-encoding have none, others have it in upper case, `.` and
    `..` in a path are resolved (RFC 3986 6.2.2), and a fragment is removed: URLs that differ only in these
    are one target. Repeated slashes are kept. The normal form of the result is the result itself.

    The probe decides whether its addresses may be contacted; a URL with placeholders (`{tenant}`) and schemes
    other than http and https are refused.
    """
    if len(text) <= _MAX_PLAIN_CHARACTERS and (plain := _PLAIN.fullmatch(text)) and not _DOTS.search(text):
        return f"{plain[1] or 'https://'}{plain[2]}{plain[3] or '/'}"
    return _remembered(text) if len(text) <= _MAX_PLAIN_CHARACTERS else _read_unusual(text)


def _read_unusual(text: str) -> str | AddressRefused:
    """Read a target that may be spelled in any way."""
    url = with_ascii_host(with_scheme(text.strip()))
    if isinstance(url, AddressRefused):
        return url
    vetted = vet_url(url)
    # The probe definition decides which networks are allowed: any address may be listed.
    if isinstance(vetted, AddressRefused) and vetted.name == "invalid_url":
        return vetted
    scheme, _, rest = url.partition("#")[0].partition("://")
    scheme = scheme.lower()
    ends = [at for mark in "/?" if (at := rest.find(mark)) >= 0]
    end = min(ends, default=len(rest))
    host, port = _host_and_port(rest[:end].lower())
    port = "" if port in {"", _DEFAULT_PORTS[scheme]} else f":{port}"
    path = rest[end:] if rest[end : end + 1] == "/" else f"/{rest[end:]}"
    if not _STRAY_PERCENT.search(path):
        # Otherwise the result might have another meaning: `%%34%31`.
        path = _ENCODED.sub(_decoded, path)
    if _DOTS.search(path):
        path = _without_dots(path)
    spelled = f"{scheme}://{host}{port}{path}"
    if len(spelled) > MAX_URL_CHARACTERS:
        return AddressRefused("invalid_url", f"the URL is longer than {MAX_URL_CHARACTERS} characters")
    return spelled


def _decoded(encoded: re.Match[str]) -> str:
    """Return an unreserved character as itself, and any other byte in upper case."""
    character = chr(int(encoded[0][1:], 16))
    return character if character in _UNRESERVED else encoded[0].upper()


def _without_dots(path: str) -> str:
    """Return a path, perhaps with a query, in which `.` and `..` are resolved (RFC 3986 5.2.4)."""
    path, mark, query = path.partition("?")
    segments: list[str] = []
    segment = ""
    for segment in path.split("/")[1:]:
        if segment == "..":
            del segments[-1:]
        elif segment != ".":
            segments.append(segment)
    # A path that ends in dots is a directory.
    end = "/" if segments and segment in {".", ".."} else ""
    return f"/{'/'.join(segments)}{end}{mark}{query}"


_remembered: Final = lru_cache(maxsize=MAX_REMEMBERED)(_read_unusual)


def with_scheme(text: str) -> str:
    """Return a text as a URL: `https://` is added if there is no scheme."""
    return text if _SCHEME.match(text) else f"https://{text}"


def _host_and_port(authority: str) -> tuple[str, str]:
    """Return host and port, in their shortest form, of a text that `vet_url` accepted."""
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, ""
    if host.startswith("["):
        host = f"[{IPv6Address(host[1:-1])}]"
    return host.removesuffix("."), str(int(port)) if port else ""


def is_on_origin_of(url: str, target_url: str) -> bool:
    """Return whether a URL has the origin of a target: the same scheme, host and port (RFC 6454).

    Another origin may belong to a third party: it counts for a target only while its card names it.
    """
    # Nearly all have the same spelling, which is found in a tenth of the time.
    return url.split("/", 3)[:3] == target_url.split("/", 3)[:3] or origin_of(url) == origin_of(target_url)


def origin_of(url: str) -> str:
    """Return the origin of a URL as it is requested: all spellings of one origin give the same text.

    Scheme and host are in lower case, the host has no final dot, and the scheme's default port is omitted. It
    is the origin of the `TargetUrl` to which the prober connects. ValueError if the port is invalid.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").removesuffix(".")
    place = f"{parts.scheme}://[{host}]" if ":" in host else f"{parts.scheme}://{host}"
    is_default = parts.port is None or str(parts.port) == _DEFAULT_PORTS.get(parts.scheme)
    return place if is_default else f"{place}:{parts.port}"


def target_id(url: str) -> str:
    """Return the id of the target at a URL: `tgt_` and 32 hex digits."""
    return f"{TARGET_ID_PREFIX}{sha256(url.encode()).hexdigest()[:HASH_DIGITS]}"


def is_target_id(name: str) -> bool:
    """Return whether a name has the form of a target's id, ignoring case, since people read it.

    A target's id follows from its URL: no agent may register with it, and no key may belong to it.
    """
    return _TARGET_ID.fullmatch(name) is not None


def host_of(url: str) -> str:
    """Return the host of a URL as `read_target` spells it, in lower case, without brackets."""
    authority = url.partition("://")[2].partition("/")[0].lower()
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def is_in_the_clear(url: str) -> bool:
    """Return whether a request to a URL in `read_target`'s form crosses a network unencrypted."""
    return url.startswith("http:") and not is_on_this_machine(host_of(url))


def has_single_label_host(url: str) -> bool:
    """Return whether the host of a URL in `read_target`'s form is a single label other than `localhost`.

    An intranet may have such a host. Elsewhere it is usually a word that was mistaken for a host.
    """
    authority = url.partition("://")[2].partition("/")[0]
    # An address has a dot, or brackets.
    return "." not in authority and authority[0] != "[" and authority.partition(":")[0] != "localhost"


def shard_of(host: str) -> int:
    """Return the number of the shard to which all targets on a host belong, 0 to SHARDS - 1."""
    return int.from_bytes(sha256(host.encode()).digest()[:4]) % SHARDS


def phase_of(subject_id: str) -> float:
    """Return at which part of the interval a target is probed: a fixed number from 0 to below 1."""
    return int.from_bytes(_rhythm_of(subject_id)[:_PHASE_BYTES]) / (1 << 8 * _PHASE_BYTES)


def turn_of(subject_id: str) -> int:
    """Return a number that decides in which intervals a target is probed, if not in each of n.

    From 0 to 2**32 - 1, constant, and independent of its phase.
    """
    return int.from_bytes(_rhythm_of(subject_id)[_PHASE_BYTES : _PHASE_BYTES + _TURN_BYTES])


def _rhythm_of(subject_id: str) -> bytes:
    return sha256(b"phase:" + subject_id.encode()).digest()
