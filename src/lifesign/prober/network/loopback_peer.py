"""Users of loopback connections: whether the process at the other end belongs to this user."""

import os
import sys
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


def is_of_another_user(peer: Place, own: Place) -> bool:
    """Return whether the socket of `peer` belongs to neither this user nor root.

    A socket that its process has closed has no user any more: it counts as another user's. False if the
    tables of sockets are absent, as on other systems than Linux, or cannot be read.
    """
    try:
        tables = [path.read_text("ascii") for path in TABLES if path.exists()]
    except OSError:
        return False
    return bool(tables) and not {os.getuid(), _ROOT} & users_of(tables, peer, own)


def users_of(tables: list[str], peer: Place, own: Place) -> set[int]:
    """Return the users of open sockets at `peer` that are connected to `own`, by tables of sockets."""
    ends = [_written(peer), _written(own)]
    found = set()
    for row in (line.split() for table in tables for line in table.splitlines()[1:]):
        if [end.removeprefix(_MAPPED) for end in row[1:3]] == ends and row[3] == _ESTABLISHED:
            found.add(int(row[7]))
    return found


def _written(place: Place) -> str:
    """Return a place as the tables spell it."""
    return f"{int.from_bytes(inet_aton(place[0]), sys.byteorder):08X}:{place[1]:04X}"
