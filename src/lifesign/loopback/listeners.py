"""Users of the servers on loopback to which a client has connected.

Any user of a machine can listen on a port above 1023 while its usual server is down. A client that sends a
secret without TLS therefore remembers whose server it first found there. It closes a connection to the server
of another user before it sends anything. Linux shows the users of sockets; elsewhere nothing is checked.
In a user namespace, all unmapped users have one number: between those there is no check, but a warning.
"""

import logging
import os
from collections.abc import Mapping
from typing import Final

from lifesign.loopback.socket_users import (
    Address,
    place_of,
    unmapped_user,
    user_listening_at,
    user_of_connection,
)

_LOG = logging.getLogger(__name__)
_ROOT: Final = 0


class LoopbackListeners:
    """Remembers the user of the first server at each port of loopback.

    The addresses of loopback share it: `localhost` has two, and another user could listen on the second.
    Servers of root and of this user always pass.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._has_warned = False

    @property
    def first_users(self) -> dict[int, int]:
        """The users of the first servers by port, for `learn` in another process."""
        return dict(self._first)

    def learn(self, first_users: Mapping[int, int]) -> None:
        """Remember the first servers that another process found, at ports that are new here."""
        for port, user in first_users.items():
            self._first.setdefault(port, user)

    def refusal(self, peer: Address | None, own: Address | None) -> str | None:
        """Return why nothing may be sent over a new connection without TLS; None if it may.

        `peer` and `own`: addresses of its two ends, None if it has ended. Warns once about a server whose
        user cannot be distinguished from others.
        """
        if not peer or not own or not place_of(peer)[0].is_loopback:
            return None
        user = server_user(peer, own)
        return None if user is None else self._refusal_of(user, *peer[:2])

    def refusal_before(self, host: str, port: int) -> str | None:
        """Return why not to connect to this IP address of loopback; None if nothing speaks against it.

        For drivers that send a secret as soon as they are connected. If there was a server before and there
        is none now, they must not connect either: another user could listen a moment later.
        """
        try:
            user = user_listening_at(place_of((host, port)))
        except OSError:
            return None
        if user is not None:
            return self._refusal_of(user, host, port)
        return f"nothing listens on {host}, port {port}" if port in self._first else None

    def _refusal_of(self, user: int, host: str, port: int) -> str | None:
        first = self._first.setdefault(port, user)
        if user not in {first, _ROOT, os.geteuid()}:
            what = f"user {user} listens on {host}, port {port}; it was user {first} before"
            return f"{what}. If this is correct, restart this program"
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
        return None


IN_THIS_PROCESS: Final = LoopbackListeners()
"""Shared by all clients, as a program may create one client after another."""


def server_user(peer: Address, own: Address) -> int | None:
    """Return the user of the server at `peer`, to which `own` is connected; None if that is unknown."""
    server = place_of(peer)
    try:
        user = user_listening_at(server)
        # The server may have stopped listening.
        return user_of_connection(server, place_of(own)) if user is None else user
    except OSError:
        return None
