"""Users of TCP sockets."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from lifesign.loopback import socket_users
from lifesign.loopback.socket_users import (
    CONNECTED,
    ESTABLISHED,
    IS_SUPPORTED,
    LISTEN,
    open_sockets,
    place_of,
    unmapped_user,
)

LINUX = pytest.mark.skipif(not IS_SUPPORTED, reason="NOT RUN: only Linux shows the users of sockets")


@LINUX
def test_sockets_are_found_by_state_and_ports_until_they_are_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listens = place_of(server.getsockname())
        [listening] = open_sockets(LISTEN, local_port=listens[1])
        assert (listening.local, listening.user) == (listens, os.geteuid())
        with socket.create_connection(server.getsockname()) as client:
            connects = place_of(client.getsockname())
            accepted, _ = server.accept()
            [found] = open_sockets(ESTABLISHED, local_port=listens[1], remote_port=connects[1])
            assert (found.local, found.remote, found.user) == (listens, connects, os.geteuid())
            accepted.close()
            assert open_sockets(CONNECTED, local_port=listens[1], remote_port=connects[1]) == []


@LINUX
def test_many_sockets_are_found() -> None:
    clients = []
    with socket.create_server(("127.0.0.1", 0), backlog=1_100) as server:
        try:
            clients = [socket.create_connection(server.getsockname()) for _ in range(1_000)]
            assert len(open_sockets(ESTABLISHED, remote_port=server.getsockname()[1])) == len(clients)
        finally:
            for client in clients:
                client.close()


@LINUX
def test_refusal_of_the_kernel_is_an_error() -> None:
    with pytest.raises(OSError, match=r"Invalid argument|No such file"):
        list(socket_users._dumped(255, LISTEN, 0, 0))


def test_ipv4_address_within_ipv6_is_plain() -> None:
    assert place_of(("::ffff:192.0.2.7", 80, 0, 0)) == (ip_address("192.0.2.7"), 80)
    assert place_of(("::1", 80, 0, 0)) == (ip_address("::1"), 80)


@pytest.mark.parametrize(
    ("uid_map", "overflow", "expected"),
    [
        ("0 0 4294967295\n", "65534\n", None),
        ("0 0 1000\n1000 1000 4294966295\n", "65534\n", None),
        ("0 0 1\n", "65534\n", 65_534),
        ("0 0 1\n 61001 61001 1\n", "1234\n", 1_234),
        ("0 100000 65536\n", None, 65_534),
        ("", "65534\n", 65_534),
        (None, None, 65_534),
    ],
)
def test_number_of_unmapped_users_is_read_unless_all_are_mapped(
    monkeypatch: pytest.MonkeyPatch, uid_map: str | None, overflow: str | None, expected: int | None
) -> None:
    files = {Path("/proc/self/uid_map"): uid_map, Path("/proc/sys/kernel/overflowuid"): overflow}

    def read_text(path: Path) -> str:
        text = files[path]
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(socket_users, "IS_SUPPORTED", True)
    assert unmapped_user.__wrapped__() == expected
