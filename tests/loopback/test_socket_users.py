"""Users of TCP sockets."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from lifesign.loopback import socket_users
from lifesign.loopback.socket_users import (
    IS_SUPPORTED,
    SocketUsers,
    is_loopback,
    place_of,
    unmapped_user,
)

LINUX = pytest.mark.skipif(not IS_SUPPORTED, reason="NOT RUN: only Linux shows the users of sockets")


@LINUX
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_socket_has_a_user_until_it_is_closed(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with SocketUsers() as users, socket.create_server((host, 0), family=family) as server:
        listens = place_of(server.getsockname())
        assert users.listening_at(listens) == os.geteuid()
        with socket.create_connection((host, listens[1])) as client:
            connects = place_of(client.getsockname())
            assert users.of_connection(connects, listens) == os.geteuid()
            assert users.of_connection(listens, connects) is None
            accepted, _ = server.accept()
            assert users.of_connection(listens, connects) == os.geteuid()
            accepted.close()
            assert users.of_connection(listens, connects) is None
            assert users.listening_at(connects) is None
        assert users.of_connection(listens, (listens[0], 1)) is None
        server.close()
        assert users.listening_at(listens) is None


@LINUX
def test_refusal_of_the_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "AF_INET", 255)
    with SocketUsers() as users, pytest.raises(OSError, match=r"Invalid argument|not supported"):
        users.listening_at(place_of(("127.0.0.1", 80)))


def test_ipv4_address_within_ipv6_is_plain() -> None:
    assert place_of(("::ffff:192.0.2.7", 80, 0, 0)) == (ip_address("192.0.2.7").packed, 80)
    assert place_of(("fe80::1%eth0", 80, 0, 2)) == (ip_address("fe80::1").packed, 80)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "192.0.2.7", "::2"])
def test_loopback_is_recognised(host: str) -> None:
    plain = ip_address(host.removeprefix("::ffff:"))
    assert is_loopback(place_of((host, 80))) is plain.is_loopback


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
