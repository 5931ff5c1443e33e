"""Users of loopback connections."""

import os
import socket
import sys

import pytest

from lifesign.prober.network import loopback_peer
from lifesign.prober.network.loopback_peer import TABLES, peers_of_other_users, users_of_peers

PEER, OWN = ("127.0.0.1", 50210), ("127.0.0.1", 45377)
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LITTLE = pytest.mark.skipif(
    sys.byteorder != "little", reason="NOT RUN: the rows are those of a little-endian machine"
)
LINUX = pytest.mark.skipif(not TABLES[0].exists(), reason="NOT RUN: only Linux has the table of sockets")


def row(local: str, remote: str, state: str, user: int) -> str:
    return f"  1: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 1171591 2\n"


@LITTLE
@pytest.mark.parametrize(
    ("rows", "users"),
    [
        (row("0100007F:C422", "0100007F:B141", "01", 1000), {1000}),
        (row("0" * 16 + "FFFF00000100007F:C422", "0" * 16 + "FFFF00000100007F:B141", "01", 7), {7}),
        (row("0100007F:C422", "0100007F:B141", "04", 0), set()),
        (row("0100007F:B141", "0100007F:C422", "01", 1000), set()),
        (row("0100007F:C422", "0100007F:B142", "01", 1000), set()),
        ("", set()),
    ],
)
def test_users_are_those_of_the_open_socket_of_the_peer(rows: str, users: set[int]) -> None:
    assert users_of_peers([HEAD + rows, HEAD], OWN).get("0100007F:C422", set()) == users


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


def test_without_a_table_of_sockets_every_user_counts_as_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_peer, "TABLES", ())
    assert peers_of_other_users([PEER], OWN) == set()
