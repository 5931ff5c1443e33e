"""Users of the TCP sockets of this machine, by Linux' sock_diag(7).

The tables in /proc/net hold the same, but reading one takes milliseconds, as the kernel looks through all
places for connections first.
"""

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

# Sets of Linux' numbers of TCP states.
ESTABLISHED: Final = frozenset({1})
LISTEN: Final = frozenset({10})
CONNECTED: Final = frozenset(range(1, 12)) - LISTEN

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_ERROR: Final = 2
_DONE: Final = 3
_HEADER: Final = struct.Struct("=LHHLL")
_REQUEST: Final = struct.Struct("=BBBBL")
_PORTS: Final = struct.Struct("!HH")
_CODE: Final = struct.Struct("=l")
_COOKIE_OF_NONE: Final = b"\xff" * 8
# Family, state, two timers; ports, addresses; interface, cookie, expiry, both queues; user, inode.
_SOCKET: Final = struct.Struct("=BBBB4s16s16sL8sLLLLL")
_ANSWER_BYTES: Final = 65_536
_TIMEOUT_SECONDS: Final = 1.0
_ALL_USERS: Final = 2**32 - 1
_DEFAULT_UNMAPPED_USER: Final = 65_534


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """One end of a TCP connection, or a listening socket."""

    local: Place
    remote: Place
    user: int
    """Number of the user who owns it, in the user namespace of this process."""


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


def open_sockets(states: frozenset[int], *, local_port: int = 0, remote_port: int = 0) -> list[OpenSocket]:
    """Return the sockets in these states that a process holds open, all or those with these ports.

    Raises OSError where the system does not show them.
    """
    if not IS_SUPPORTED:
        raise OSError("this system does not show the users of sockets")
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in _dumped(family, states, local_port, remote_port):
            *_, ports, local, remote, _, _, _, _, _, user, inode = _SOCKET.unpack_from(message)
            if inode:
                local_end, remote_end = _PORTS.unpack(ports)
                found.append(
                    OpenSocket(
                        (_address(family, local), local_end), (_address(family, remote), remote_end), user
                    )
                )
    return found


def _dumped(family: int, states: frozenset[int], local_port: int, remote_port: int) -> Iterator[bytes]:
    """Yield the kernel's message for each socket."""
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, sum(1 << state for state in states))
    socket_id = _PORTS.pack(local_port, remote_port) + bytes(36) + _COOKIE_OF_NONE
    length = _HEADER.size + len(request) + len(socket_id)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as diag:
        diag.settimeout(_TIMEOUT_SECONDS)
        diag.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + request + socket_id)
        while True:
            data = diag.recv(_ANSWER_BYTES)
            while data:
                length, message_type, *_ = _HEADER.unpack_from(data)
                message = data[_HEADER.size : length]
                if message_type == _DONE:
                    return
                if message_type == _ERROR:
                    code = -_CODE.unpack_from(message)[0]
                    raise OSError(code, os.strerror(code))
                yield message
                data = data[(length + 3) & ~3 :]


def _address(family: int, packed: bytes) -> IpAddress:
    return IPv4Address(packed[:4]) if family == socket.AF_INET else _plain(IPv6Address(packed))


def _plain(address: IpAddress) -> IpAddress:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
