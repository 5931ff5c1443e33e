"""Addresses from which this machine sends, as its routes are now. No packet is sent to find out."""

import contextlib
import socket
from collections.abc import Sequence
from enum import IntEnum
from ipaddress import ip_address

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.net.allowed_addresses import IPV6_GLOBAL_UNICAST, Address


class _Route(IntEnum):
    """How likely this machine reaches a destination."""

    NONE = 0
    FROM_PRIVATE_IPV6 = 1
    """To a public IPv6 address, which only address translation on the way could reach."""
    USUAL = 2


@fast_dataclass()
class LastFamily:
    """The address family of a name that is tried after the other one."""

    version: int
    """4 or 6."""
    has_route: bool


def source_towards(address: Address) -> Address | None:
    """Return the address from which this machine sends to a destination; None if there is no route."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((str(address), 53))
        return ip_address(asking.getsockname()[0])
    return None


def is_own_address(address: Address) -> bool:
    """Return whether an address belongs to this machine, so that no network is needed to reach it."""
    return source_towards(address) == address


def last_family(addresses: Sequence[Address]) -> LastFamily | None:
    """Return the family of these addresses that is less likely to be reached; None if neither is."""
    fours = next((address for address in addresses if address.version == 4), None)
    sixes = next((address for address in addresses if address.version == 6), None)
    if fours is None or sixes is None:
        return None
    of_four, of_six = _route_towards(fours), _route_towards(sixes)
    if of_four == of_six:
        return None
    return LastFamily(4 if of_four < of_six else 6, min(of_four, of_six) is not _Route.NONE)


def _route_towards(address: Address) -> _Route:
    source = source_towards(address)
    if source is None:
        return _Route.NONE
    is_private = address in IPV6_GLOBAL_UNICAST and source not in IPV6_GLOBAL_UNICAST
    return _Route.FROM_PRIVATE_IPV6 if is_private else _Route.USUAL
