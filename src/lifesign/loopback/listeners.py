"""Users of the servers on this machine to which a client has connected, mostly on loopback.

Any user of a machine can listen on a port above 1023 while its usual server is down. A client that sends a
secret without TLS therefore remembers whose server it first found there. It closes a connection to the server
of another user before it sends anything. Linux shows the users of sockets; elsewhere nothing is checked.
In a user namespace, all unmapped users have one number: between those there is no check, but a warning.
"""

import logging
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from lifesign.loopback.socket_users import (
    IS_SUPPORTED,
    Address,
    Place,
    SocketUsers,
    is_loopback,
    place_of,
    unmapped_user,
)

_LOG = logging.getLogger(__name__)
_ROOT: Final = 0


class ServerUsers(NamedTuple):
    """Users of the server at the other end of a connection."""

    listening: int | None
    """Who listens at its address now; None if nobody does."""
    accepted: int | None
    """Who has accepted the connection; None if nobody has yet."""


class LoopbackListeners:
    """Remembers the user of the first server at each port of this machine.

    All its addresses share it: `localhost` has two, and another user could listen on the second.
    Servers of root and of this user always pass.
    """

    def __init__(self) -> None:
        self._first: dict[int, ServerUsers] = {}
        self._has_warned = False

    @property
    def first_users(self) -> dict[int, ServerUsers]:
        """The users of the first servers by port, for `learn` in another process."""
        return dict(self._first)

    def learn(self, first_users: Mapping[int, ServerUsers]) -> None:
        """Remember the first servers that another process found, at ports that are new here."""
        for port, users in first_users.items():
            self._first.setdefault(port, users)

    def forget(self) -> None:
        """Forget all servers."""
        self._first.clear()

    def refusal(self, peer: Address | None, own: Address | None, *, is_new: bool = True) -> str | None:
        """Return why no secret may be sent over a connection without TLS; None if it may.

        `is_new`: whether it was opened just now; else the usual server may have been down at that time.
        `peer` and `own`: addresses of its two ends, None if it has ended. Warns once if the user of a server
        is unknown, or cannot be distinguished from others.
        """
        if not peer or not own:
            return None
        server, client = place_of(peer), place_of(own)
        # At another address of this machine, both ends have the same one.
        if not is_loopback(server) and server[0] != client[0]:
            return None
        host, port = peer[:2]
        try:
            with SocketUsers() as users:
                accepted = users.of_connection(server, client)
                # The kernel itself may accept a connection for a user: it does that as root.
                if accepted not in {None, _ROOT} and accepted in self._first.get(port, ()):
                    return None
                found = _server_users(users, server, client, accepted)
        except OSError as error:
            self._warn_of_refusal(error, host, port)
            return None
        return self._refusal_of(found, host, port, is_new=is_new)

    def refusal_before(self, host: str, port: int) -> str | None:
        """Return why not to connect to this IP address of loopback; None if nothing speaks against it.

        For drivers that send a secret as soon as they are connected. If there was a server before and there
        is none now, they must not connect either: another user could listen a moment later.
        """
        try:
            with SocketUsers() as users:
                listening = users.listening_at(place_of((host, port)))
        except OSError as error:
            self._warn_of_refusal(error, host, port)
            return None
        return self._refusal_of(ServerUsers(listening, None), host, port, is_new=True)

    def _refusal_of(self, server: ServerUsers, host: str, port: int, *, is_new: bool) -> str | None:
        users = [user for user in server if user is not None]
        if not users:
            return f"nothing listens on {host}, port {port}" if port in self._first else None
        if port not in self._first and not is_new and server.listening != server.accepted:
            # The usual server may be back since.
            return f"user {server.accepted} serves {host}, port {port}, where user {server.listening} listens"
        first = self._first.setdefault(port, server)
        trusted = {*first, _ROOT, os.geteuid()}
        if is_new and server.listening == _ROOT and first.accepted is None:
            # A server such as nginx listens as root, and accepts connections as another user.
            trusted.add(server.accepted)
        for user in users:
            if user not in trusted:
                before = " or ".join(str(each) for each in dict.fromkeys(first) if each is not None)
                what = f"user {user} listens on {host}, port {port}; it was user {before} before"
                return f"{what}. If this is correct, restart this program"
        if first.accepted is None:
            self._first[port] = first._replace(accepted=server.accepted)
        if unmapped_user() in users:
            reason = "this process is in a user namespace that does not map this user"
            self._warn(reason, "remove PrivateUsers=yes from the unit of this service", host, port)
        return None

    def _warn_of_refusal(self, error: OSError, host: str, port: int) -> None:
        if IS_SUPPORTED:
            remedy = "allow AF_NETLINK in RestrictAddressFamilies= of the unit of this service"
            self._warn(f"the kernel does not show it ({error.strerror or error})", remedy, host, port)

    def _warn(self, reason: str, remedy: str, host: str, port: int) -> None:
        """Warn once that the user of a server is unknown."""
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "cannot determine which user listens on %s, port %d: %s. While the server is down, any user "
                "of the machine can listen there and receive secrets; hint: %s, or use TLS, or a port below "
                "1024",
                host,
                port,
                reason,
                remedy,
            )


IN_THIS_PROCESS: Final = LoopbackListeners()
"""Shared by all clients, as a program may create one client after another."""


def server_users(peer: Address, own: Address) -> ServerUsers:
    """Return the users of the server at `peer`, to which `own` is connected.

    Raises OSError where the system does not show them.
    """
    server, client = place_of(peer), place_of(own)
    with SocketUsers() as users:
        return _server_users(users, server, client, users.of_connection(server, client))


def _server_users(users: SocketUsers, server: Place, client: Place, accepted: int | None) -> ServerUsers:
    """Return the users of a server; `accepted`: the one who had accepted the connection a moment ago."""
    listening = users.listening_at(server)
    if accepted is None:
        # If it is still not accepted, it belongs to a server that listens now. Else another user may have
        # accepted it, and then left the port to the usual server.
        accepted = users.of_connection(server, client)
    return ServerUsers(listening, accepted)
