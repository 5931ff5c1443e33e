"""Users of loopback connections: whether the process at the other end belongs to this user."""

import os
from collections.abc import Collection
from typing import Final

from lifesign.loopback.socket_users import SocketUsers, place_of

_ROOT: Final = 0

Place = tuple[str, int]
"""IPv4 address and port."""


def peers_of_other_users(peers: Collection[Place], own: Place) -> set[Place]:
    """Return the peers of `own` whose sockets belong to neither this user nor root.

    A socket that its process has closed has no user any more: it counts as another user's. Empty if the
    system does not show the users of sockets, as other systems than Linux.
    """
    end, trusted = place_of(own), {os.getuid(), _ROOT}
    try:
        with SocketUsers() as users:
            return {peer for peer in peers if users.of_connection(place_of(peer), end) not in trusted}
    except OSError:
        return set()
