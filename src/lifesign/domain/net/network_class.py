"""Network classes: groups of addresses that a prober reaches, or fails to reach, by the same route.

A failure counts against a target only if a witness of the same class answers the same prober after it.
"""

from collections.abc import Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from lifesign.domain.net.allowed_addresses import SPECIAL_RANGES, Address, AddressRefused, Network, vet_url

THIS_MACHINE: Final = "this_machine"
"""127.0.0.1 and ::1."""
PUBLIC_IPV4: Final = "public_ipv4"
PUBLIC_IPV6: Final = "public_ipv6"
PUBLIC_CLASSES: Final = (PUBLIC_IPV4, PUBLIC_IPV6)
UNKNOWN_CLASS: Final = "unknown"
"""The class of an address that `networks.allow` no longer contains: it has no witness."""
IPV6_KEY_BITS: Final = 64
"""One customer usually gets a /64 network: all of its addresses are one for counting."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})


def network_class_of(address: Address, allowed: Sequence[Network]) -> str:
    """Return the network class of an address: this machine, an allowed network, public IPv4 or IPv6.

    `this_machine`, the narrowest entry of `networks.allow` that contains it (as text, for example
    `10.1.0.0/16`), `public_ipv4` or `public_ipv6`.
    """
    address = _mapped(address)
    if str(address) in _LOOPBACK:
        return THIS_MACHINE
    containing = [network for network in allowed if address in network]
    if containing:
        return str(max(containing, key=lambda network: network.prefixlen))
    return PUBLIC_IPV6 if isinstance(address, IPv6Address) else PUBLIC_IPV4


def is_loopback(url: str) -> bool:
    """Return whether the host of a URL is literally 127.0.0.1 or ::1."""
    return urlsplit(url).hostname in _LOOPBACK


def has_name(url: str) -> bool:
    """Return whether the host of a URL is a name, not an address."""
    try:
        ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return True
    return False


def address_key(address: Address) -> str:
    """Return what an address counts as: itself for IPv4, its /64 network for IPv6."""
    address = _mapped(address)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), IPV6_KEY_BITS), strict=False))
    return str(address)


def address_of_key(key: str) -> Address | None:
    """Return an address that counts as `key`; None if no address does."""
    try:
        return ip_network(key).network_address
    except ValueError:
        return None


def _mapped(address: Address) -> Address:
    """Return the IPv4 address inside an IPv4-mapped IPv6 address, else the address itself."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def range_to_allow(host: str) -> str | None:
    """Return the network to name in `--allow-network` so that a host may be contacted.

    None if no setting allows it, if it is public, or if it is a name whose addresses are not known.
    """
    vetted = vet_url(f"http://{f'[{host}]' if ':' in host else host}/")
    if not isinstance(vetted, AddressRefused) or vetted.name != "blocked_address":
        return None
    try:
        address = ip_address(host)
    except ValueError:
        # Only the names of this machine are refused without an address.
        address = ip_address("127.0.0.1")
    special = next((each for each in SPECIAL_RANGES if address in each.network), None)
    return str(special.network) if special is not None and special.may_be_allowed else None
