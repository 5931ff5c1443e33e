"""Users of loopback connections: whether the process at the other end belongs to this user."""

import os
import sys
from collections.abc import Collection
from pathlib import Path
from socket import inet_aton
from typing import Final

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The sockets of this machine, on Linux."""
_ESTABLISHED: Final = "01"
_MAPPED: Final = "0000000000000000FFFF0000"
"""Beginning of an IPv4 address in a socket of IPv6."""
_ROOT: Final = 0

Place = tuple[str, int]
"""IPv4 address and port."""


def peers_of_other_users(peers: Collection[Place], own: Place) -> set[Place]:
    """Return the peers of `own` whose sockets belong to neither this user nor root.

    A socket that its process has closed has no user any more: it counts as another user's. Empty if the
    tables of sockets are absent, as on other systems than Linux, or cannot be read. The tables are read once:
    that takes milliseconds if there are thousands of connections.
    """
    try:
        tables = [path.read_text("ascii") for path in TABLES if path.exists()]
    except OSError:
        return set()
    if not tables:
        return set()
    users = users_of_peers(tables, own)
    return {peer for peer in peers if not {os.getuid(), _ROOT} & users.get(_written(peer), set())}


def users_of_peers(tables: list[str], own: Place) -> dict[str, set[int]]:
    """Return the users of open sockets that are connected to `own`, by their places, by tables of sockets."""
    end = _written(own)
    found: dict[str, set[int]] = {}
    for row in (line.split() for table in tables for line in table.splitlines()[1:] if end in line):
        if row[2].removeprefix(_MAPPED) == end and row[3] == _ESTABLISHED:
            found.setdefault(row[1].removeprefix(_MAPPED), set()).add(int(row[7]))
    return found


def _written(place: Place) -> str:
    """Return a place in the form of the tables."""
    return f"{int.from_bytes(inet_aton(place[0]), sys.byteorder):08X}:{place[1]:04X}"
