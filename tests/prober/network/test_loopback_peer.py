"""Users of loopback connections."""

import os
import socket

import pytest

from lifesign.loopback import socket_users
from lifesign.loopback.socket_users import IS_SUPPORTED
from lifesign.prober.network.loopback_peer import peers_of_other_users

PEER, OWN = ("127.0.0.1", 50210), ("127.0.0.1", 45377)
LINUX = pytest.mark.skipif(not IS_SUPPORTED, reason="NOT RUN: only Linux shows the users of sockets")


@LINUX
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connection_of_this_user_is_no_other_users(family: socket.AddressFamily) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
        own = server.getsockname()
        client.connect(("127.0.0.1" if family is socket.AF_INET else "::ffff:127.0.0.1", own[1]))
        accepted, peer = server.accept()
        with accepted:
            assert peers_of_other_users([peer], own) == set()
            client.close()
            assert peers_of_other_users([peer], own) == {peer}


@LINUX
@pytest.mark.skipif(os.getuid() != 0, reason="NOT RUN: only root can connect as another user")
def test_connection_of_another_user_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = server.getsockname()
        os.seteuid(65534)
        try:
            client = socket.socket()
            client.connect(own)
        finally:
            os.seteuid(0)
        accepted, peer = server.accept()
        with client, accepted:
            assert peers_of_other_users([peer], own) == {peer}


def test_every_user_counts_as_this_one_if_the_system_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_users, "IS_SUPPORTED", False)
    assert peers_of_other_users([PEER], OWN) == set()
