"""Addresses from which this machine sends, as its routes are now. No packet is sent to find out."""

import contextlib
import socket
from ipaddress import ip_address

from lifesign.domain.net.allowed_addresses import Address


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
