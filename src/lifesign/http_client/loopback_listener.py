"""Users of the servers on loopback to which a client has connected.

Any user of a machine can listen on a port above 1023 while its usual server is down. A client that sends a
secret without TLS therefore remembers whose server it first found there. It closes a connection to the server
of another user before it sends anything. Linux shows the users of sockets; elsewhere nothing is checked.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from lifesign.domain.observation.results import ResultClass

if TYPE_CHECKING:
    from asyncio import BaseTransport

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The sockets of this machine, on Linux."""
_ROOT: Final = 0
_LISTENS: Final = "0A"
_ANY: Final = ("0" * 8, "0" * 32)
"""The addresses of servers that listen on all addresses of IPv4, and of both versions."""
_NO_INODE: Final = "0"
_MAPPED: Final = "0" * 16 + ("FFFF0000" if sys.byteorder == "little" else "0000FFFF")
"""Beginning of an IPv4 address in a socket of IPv6."""

Address = Sequence[Any]
"""Address of a socket, as Python has it: the IP address, the port, and more for IPv6."""


class ListenerChanged(aiohttp.ClientError):
    """Another user than before listens on a port of loopback."""

    result = ResultClass.REFUSED


class LoopbackListeners:
    """Remembers the user of the first server at each address on loopback."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], int] = {}

    def check(self, transport: "BaseTransport") -> None:
        """Raise ListenerChanged if a new connection leads to the server of another user than before.

        Servers of root and of this user always pass, and so do connections with TLS.
        """
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if not peer or not own or transport.get_extra_info("sslcontext") is not None:
            return
        if not ip_address(peer[0]).is_loopback or (user := server_user(peer, own)) is None:
            return
        host, port = peer[:2]
        first = self._first.setdefault((host, port), user)
        if user not in {first, _ROOT, os.geteuid()}:
            what = f"user {user} listens on {host}, port {port}; it was user {first} before"
            raise ListenerChanged(f"{what}. If this is correct, restart this program")


IN_THIS_PROCESS: Final = LoopbackListeners()
"""Shared by all clients, as a program may create one client after another."""


def server_user(peer: Address, own: Address) -> int | None:
    """Return the user of the server at `peer`, to which `own` is connected; None if that is unknown."""
    try:
        tables = [table for table in TABLES if table.exists()]
        listening = _listening_users(tables, peer[1])
        for address in (_written(peer[0]), *_ANY):
            if address in listening:
                return listening[address]
        # The server may have stopped listening.
        return _accepted_user(tables, peer, own)
    except OSError:
        return None


def _listening_users(tables: Sequence[Path], port: int) -> dict[str, int]:
    """Return the users of the sockets that listen on a port, by their addresses."""
    found: dict[str, int] = {}
    for table in tables:
        for row in _rows(table):
            if row[3] != _LISTENS:
                # Those that listen come first, and there may be thousands of others.
                break
            address, _, row_port = row[1].partition(":")
            if int(row_port, 16) == port:
                found[address.removeprefix(_MAPPED)] = int(row[7])
    return found


def _accepted_user(tables: Sequence[Path], peer: Address, own: Address) -> int | None:
    """Return the user of the socket that a server has accepted for a connection."""
    server, client = ((_written(host), port) for host, port in (peer[:2], own[:2]))
    for table in tables:
        for row in _rows(table):
            # A socket without an inode is not accepted yet, or closed.
            if (_place(row[1]), _place(row[2])) == (server, client) and row[9] != _NO_INODE:
                return int(row[7])
    return None


def _rows(table: Path) -> Iterator[list[str]]:
    with table.open(encoding="ascii") as lines:
        next(lines, None)
        for line in lines:
            yield line.split()


def _place(written: str) -> tuple[str, int]:
    address, _, port = written.partition(":")
    return address.removeprefix(_MAPPED), int(port, 16)


def _written(host: str) -> str:
    """Return an IP address in the form of the tables: words of four bytes in the order of this machine."""
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    packed = address.packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words)
