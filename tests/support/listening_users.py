"""Servers of other users on loopback."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lifesign.loopback.socket_users import IS_SUPPORTED

OTHER = 65_534
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not IS_SUPPORTED,
    reason="NOT RUN: only root on Linux can listen as another user",
)


@contextmanager
def silent_server(user: int, port: int = 0, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Listen as this user. Nobody accepts a connection."""
    os.seteuid(user)
    try:
        server = socket.create_server((host, port))
    finally:
        os.seteuid(0)
    with server:
        yield server


def received(server: socket.socket) -> list[bytes]:
    """Return the first bytes of each connection that came so far, and close it."""
    server.settimeout(0)
    found: list[bytes] = []
    while True:
        try:
            accepted, _ = server.accept()
        except BlockingIOError:
            return found
        with accepted:
            accepted.settimeout(10)
            found.append(accepted.recv(65_536))
