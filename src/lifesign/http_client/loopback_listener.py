"""Users of the servers on loopback to which a client has connected.

Any user of a machine can listen on a port above 1023 while its usual server is down. A client that sends a
secret without TLS therefore remembers whose server it first found there. It closes a connection to the server
of another user before it sends anything. Linux shows the users of sockets; elsewhere nothing is checked.
In a user namespace, all unmapped users have one number: between those there is no check, but a warning.
"""

import logging
import os
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import aiohttp

from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.socket_users import (
    CONNECTED,
    LISTEN,
    Address,
    IpAddress,
    open_sockets,
    place_of,
    unmapped_user,
)

if TYPE_CHECKING:
    from asyncio import BaseTransport

_LOG = logging.getLogger(__name__)
_ROOT: Final = 0
_ALL_ADDRESSES: Final[Mapping[int, tuple[IpAddress, ...]]] = MappingProxyType({
    4: (IPv4Address(0), IPv6Address(0)),
    6: (IPv6Address(0),),
})  # fmt: skip
"""Addresses of servers that listen on all addresses, by the version of the client's."""


class ListenerChanged(aiohttp.ClientError):
    """Another user than before listens on a port of loopback."""

    result = ResultClass.REFUSED


class LoopbackListeners:
    """Remembers the user of the first server at each port of loopback.

    The addresses of loopback share it: `localhost` has two, and another user could listen on the second.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._has_warned = False

    def check(self, transport: "BaseTransport") -> None:
        """Raise ListenerChanged if a new connection leads to the server of another user than before.

        Servers of root and of this user always pass, and so do connections with TLS. Warns once about a
        server whose user cannot be distinguished from others.
        """
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if not peer or not own or transport.get_extra_info("sslcontext") is not None:
            return
        if not ip_address(peer[0]).is_loopback or (user := server_user(peer, own)) is None:
            return
        host, port = peer[:2]
        first = self._first.setdefault(port, user)
        if user not in {first, _ROOT, os.geteuid()}:
            what = f"user {user} listens on {host}, port {port}; it was user {first} before"
            raise ListenerChanged(f"{what}. If this is correct, restart this program")
        if user == unmapped_user() and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "cannot determine which user listens on %s, port %d: this process is in a user namespace "
                "that does not map this user. While the server is down, any user of the machine can listen "
                "there and receive secrets. Remove PrivateUsers=yes from the unit of this service, or use "
                "TLS or a port below 1024",
                host,
                port,
            )


IN_THIS_PROCESS: Final = LoopbackListeners()
"""Shared by all clients, as a program may create one client after another."""


def server_user(peer: Address, own: Address) -> int | None:
    """Return the user of the server at `peer`, to which `own` is connected; None if that is unknown."""
    server, client = place_of(peer), place_of(own)
    try:
        listening = {one.local[0]: one.user for one in open_sockets(LISTEN, local_port=server[1])}
        for address in (server[0], *_ALL_ADDRESSES[server[0].version]):
            if address in listening:
                return listening[address]
        # The server may have stopped listening.
        for one in open_sockets(CONNECTED, local_port=server[1], remote_port=client[1]):
            if (one.local, one.remote) == (server, client):
                return one.user
    except OSError:
        pass
    return None
