"""Users of the TCP sockets of this machine, by Linux' sock_diag(7).

The tables in /proc/net hold the same, but reading one takes milliseconds, as the kernel looks through all
places for connections first.
"""

import errno
import os
import socket
import struct
from collections.abc import Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

IS_SUPPORTED: Final = hasattr(socket, "AF_NETLINK")

IpAddress = IPv4Address | IPv6Address
Place = tuple[IpAddress, int]
"""IP address and port."""
Address = Sequence[Any]
"""Address of a socket, as Python has it: the IP address, the port, and more for IPv6."""

_LISTEN: Final = 10
"""Linux' number of the TCP state."""
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_IS_REQUEST: Final = 1
_ERROR: Final = 2
_HEADER: Final = struct.Struct("=LHHLL")
# Family, protocol, extensions, states; ports, addresses, interface, cookie.
_REQUEST: Final = struct.Struct("=BBBxL4s16s16sL8s")
_PORTS: Final = struct.Struct("!HH")
_CODE: Final = struct.Struct("=l")
_NO_COOKIE: Final = b"\xff" * 8
# Family, state, two timers; ports, addresses; interface, cookie, expiry, both queues; user, inode.
_SOCKET: Final = struct.Struct("=xBxx4x16x16x4x8x4x4x4xLL")
_ANSWER_BYTES: Final = 4_096
_TIMEOUT_SECONDS: Final = 1.0
_NO_SOCKET: Final = frozenset({errno.ENOENT, errno.ESTALE})
_ALL_USERS: Final = 2**32 - 1
_DEFAULT_UNMAPPED_USER: Final = 65_534


@cache
def unmapped_user() -> int | None:
    """Return the number that stands for all users without a number of their own; None if there are none.

    There are such users in a user namespace that does not map all users (user_namespaces(7)). One of them
    cannot be distinguished from another.
    """
    try:
        mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    except OSError:
        mapped = 0
    if not IS_SUPPORTED or mapped >= _ALL_USERS:
        return None
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        # A service with ProcSubset=pid cannot read it.
        return _DEFAULT_UNMAPPED_USER


def place_of(address: Address) -> Place:
    """Return the IP address and port of a socket's address; an IPv4 address within IPv6 as IPv4."""
    return _plain(ip_address(address[0])), address[1]


def user_listening_at(server: Place) -> int | None:
    """Return the user of the socket that gets new connections to an address and port; None if there is none.

    Raises OSError where the system does not show it.
    """
    state, user = _found(server, (ip_address(bytes(len(server[0].packed))), 0))
    return user if state == _LISTEN else None


def user_of_connection(local: Place, remote: Place) -> int | None:
    """Return the user of the `local` end of a connection; None if no process of this machine holds it.

    Raises OSError where the system does not show it.
    """
    state, user = _found(local, remote)
    return None if state == _LISTEN else user


def _found(local: Place, remote: Place) -> tuple[int, int | None]:
    """Return state and user of the socket for packets from `remote` to `local`; state 0 if there is none."""
    if not IS_SUPPORTED:
        raise OSError("this system does not show the users of sockets")
    family = socket.AF_INET if local[0].version == 4 else socket.AF_INET6
    request = _REQUEST.pack(
        family,
        socket.IPPROTO_TCP,
        0,
        0,
        _PORTS.pack(local[1], remote[1]),
        local[0].packed,
        remote[0].packed,
        0,
        _NO_COOKIE,
    )
    length = _HEADER.size + len(request)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as diag:
        diag.settimeout(_TIMEOUT_SECONDS)
        diag.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _IS_REQUEST, 0, 0) + request)
        answer = diag.recv(_ANSWER_BYTES)
    if _HEADER.unpack_from(answer)[1] == _ERROR:
        code = -_CODE.unpack_from(answer, _HEADER.size)[0]
        if code in _NO_SOCKET:
            return 0, None
        raise OSError(code, os.strerror(code))
    state, user, inode = _SOCKET.unpack_from(answer, _HEADER.size)
    # A connection that was not accepted yet, or that its process has closed, has no user.
    return state, user if inode else None


def _plain(address: IpAddress) -> IpAddress:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
