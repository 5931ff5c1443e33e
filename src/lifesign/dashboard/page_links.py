"""Links from pages to the URLs of agents and targets.

Cookies do not know ports (RFC 6265 8.5): a browser sends the session's cookie to every server on the host of
the dashboard. Agents and directories choose their URLs, so no page links to a URL on its own host.
"""

from collections.abc import Collection
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from lifesign.domain.net.allowed_addresses import LOOPBACK_NAMES, AddressRefused, vet_url

_ALL_ADDRESSES: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def host_in(header: str) -> str:
    """Return the host of a `Host` header, in the form of `TargetUrl.host`; empty if there is none."""
    try:
        name = (urlsplit(f"//{header}").hostname or "").removesuffix(".")
    except ValueError:
        return ""
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def safe_link(url: str | None, own_hosts: Collection[str]) -> str | None:
    """Return an agent's URL if a page of these hosts may link to it; else None.

    It must be http or https in the usual spelling, without a user name: browsers read others differently. A
    page that is reached by loopback links to no loopback name or address.
    """
    target = vet_url(url or "", _ALL_ADDRESSES)
    if isinstance(target, AddressRefused) or target.host in own_hosts:
        return None
    is_local = _is_loopback(target.host) and any(map(_is_loopback, own_hosts))
    return None if is_local else url


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return host in LOOPBACK_NAMES or host.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    # Linux connects 0.0.0.0 and :: to the machine itself.
    return (mapped or address).is_loopback or address.is_unspecified
