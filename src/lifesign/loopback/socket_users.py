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
from pathlib import Path
from typing import Any, Final, Self

IS_SUPPORTED: Final = hasattr(socket, "AF_NETLINK")

Place = tuple[bytes, int]
"""IP address, packed, and port."""
Address = Sequence[Any]
"""Address of a socket, as Python has it: the IP address, the port, and more for IPv6."""

_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Begin of an IPv4 address within IPv6."""
_IPV6_LOOPBACK: Final = bytes(15) + b"\1"
_IPV4_LOOPBACK: Final = 127
"""First byte of its addresses."""
_IPV4_BYTES: Final = 4
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
    host, port = address[:2]
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host), port
    # The address of an interface ends with its name.
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return packed.removeprefix(_MAPPED), port


def is_loopback(place: Place) -> bool:
    """Return whether an address is one of loopback."""
    packed = place[0]
    return packed[0] == _IPV4_LOOPBACK if len(packed) == _IPV4_BYTES else packed == _IPV6_LOOPBACK


class SocketUsers:
    """Users of this machine's sockets, as the kernel has them now: `with SocketUsers() as users`.

    All calls raise OSError where the system does not show them.
    """

    def __init__(self) -> None:
        """Raise OSError where the system does not show users."""
        if not IS_SUPPORTED:
            raise OSError("this system does not show the users of sockets")
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._kernel = socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)
        # The kernel has answered when `send` returns.
        self._kernel.settimeout(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._kernel.close()

    def listening_at(self, server: Place) -> int | None:
        """Return the user of the socket that gets new connections to an address and port; None if none."""
        state, user = self._found(server, (bytes(len(server[0])), 0))
        return user if state == _LISTEN else None

    def of_connection(self, local: Place, remote: Place) -> int | None:
        """Return the user of the `local` end of a connection; None if no process of this machine holds it."""
        state, user = self._found(local, remote)
        return None if state == _LISTEN else user

    def _found(self, local: Place, remote: Place) -> tuple[int, int | None]:
        """Return state and user of the socket for packets from `remote` to `local`; state 0 if none."""
        request = _REQUEST.pack(
            socket.AF_INET if len(local[0]) == _IPV4_BYTES else socket.AF_INET6,
            socket.IPPROTO_TCP,
            0,
            0,
            _PORTS.pack(local[1], remote[1]),
            local[0],
            remote[0],
            0,
            _NO_COOKIE,
        )
        length = _HEADER.size + len(request)
        self._kernel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _IS_REQUEST, 0, 0) + request)
        answer = self._kernel.recv(_ANSWER_BYTES)
        if _HEADER.unpack_from(answer)[1] == _ERROR:
            code = -_CODE.unpack_from(answer, _HEADER.size)[0]
            if code in _NO_SOCKET:
                return 0, None
            raise OSError(code, os.strerror(code))
        state, user, inode = _SOCKET.unpack_from(answer, _HEADER.size)
        # A connection that was not accepted yet, or that its process has closed, has no user.
        return state, user if inode else None
