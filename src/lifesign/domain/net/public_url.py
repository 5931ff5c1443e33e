"""Public address of a server, and the hosts under which its pages may be read.

Another site may let its own name lead to a server that only its visitors can reach (DNS rebinding): their
browsers treat both as one site. The name reveals it: an address, and `localhost`, cannot be made to lead
elsewhere.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from lifesign.errors import InvalidValue

MAX_CHARACTERS = 2_048
EXPECTED = (
    "an http or https URL of a host, without user, path, query and fragment, such as https://registry.example"
)

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")
_PRINTABLE = re.compile(r"[!-~]+")
_HTTPS = "https"


@dataclass(frozen=True, slots=True)
class PublicUrl:
    """The URL under which clients reach the server, such as through a proxy."""

    host: str
    """Host in lower case, without port; an IPv6 address without brackets."""
    place: str
    """Host and port as a browser names them in `Host` and `Origin`."""
    is_https: bool

    @property
    def origin(self) -> str:
        """`Origin` header that a browser sends for pages of this server."""
        return f"{_HTTPS if self.is_https else 'http'}://{self.place}"

    @classmethod
    def read(cls, url: str) -> Self:
        """Read the public URL, which must have no path; InvalidValue otherwise."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise InvalidValue("public_url", url, EXPECTED) from None
        is_plain = _PRINTABLE.fullmatch(url) is not None and len(url) <= MAX_CHARACTERS
        is_complete = parts.path in {"", "/"}
        is_bare = is_complete and not (
            parts.query or parts.fragment or "?" in url or "#" in url or "@" in parts.netloc
        )
        is_known = parts.scheme in {"http", _HTTPS} and (is_address(host) or _NAME.fullmatch(host))
        if not (is_plain and is_bare and is_known) or port == 0:
            raise InvalidValue("public_url", url, EXPECTED)
        usual = 443 if parts.scheme == _HTTPS else 80
        written = f"[{host}]" if ":" in host else host
        place = written if port in {None, usual} else f"{written}:{port}"
        return cls(host=host, place=place, is_https=parts.scheme == _HTTPS)


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Return whether the `Host` of a request may be this server's: an address, `localhost`, or a known name.

    `names` are in lower case and without ports, which are ignored.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or name in names or is_address(name)


def is_address(host: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address, without brackets."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_on_this_machine(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address, so that no network is used."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
