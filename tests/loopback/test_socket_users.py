"""Users of TCP sockets."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from lifesign.loopback import socket_users
from lifesign.loopback.socket_users import (
    IS_SUPPORTED,
    place_of,
    unmapped_user,
    user_listening_at,
    user_of_connection,
)

LINUX = pytest.mark.skipif(not IS_SUPPORTED, reason="NOT RUN: only Linux shows the users of sockets")


@LINUX
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_socket_has_a_user_until_it_is_closed(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        listens = place_of(server.getsockname())
        assert user_listening_at(listens) == os.geteuid()
        with socket.create_connection((host, listens[1])) as client:
            connects = place_of(client.getsockname())
            assert user_of_connection(connects, listens) == os.geteuid()
            assert user_of_connection(listens, connects) is None
            accepted, _ = server.accept()
            assert user_of_connection(listens, connects) == os.geteuid()
            accepted.close()
            assert user_of_connection(listens, connects) is None
            assert user_listening_at(connects) is None
        assert user_of_connection(listens, (listens[0], 1)) is None
    assert user_listening_at(listens) is None


@LINUX
def test_refusal_of_the_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "AF_INET", 255)
    with pytest.raises(OSError, match=r"Invalid argument|No such file|not supported"):
        user_listening_at((ip_address("127.0.0.1"), 80))


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
