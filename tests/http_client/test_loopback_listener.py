"""Users of servers on loopback."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from lifesign.http_client import loopback_listener
from lifesign.http_client.loopback_listener import TABLES, ListenerChanged, LoopbackListeners, server_user

OTHER = 65_534
SERVER, CLIENT = ("127.0.0.1", 8440), ("127.0.0.1", 50_210)
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
V4, ANY_V4, ANY_V6, MAPPED = "0100007F", "0" * 8, "0" * 32, "0000000000000000FFFF00000100007F"
LITTLE = pytest.mark.skipif(
    sys.byteorder != "little", reason="NOT RUN: the rows are those of a little-endian machine"
)
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not TABLES[0].exists(),
    reason="NOT RUN: only root on Linux can listen as another user",
)


def listening(address: str, user: int, port: str = "20F8") -> str:
    return row(f"{address}:{port}", f"{'0' * len(address)}:0000", "0A", user)


def accepted(address: str, user: int, inode: int) -> str:
    return row(f"{address}:20F8", f"{address}:C422", "01", user, inode)


def row(local: str, remote: str, state: str, user: int, inode: int = 7) -> str:
    return f"  1: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 {inode} 2\n"


@LITTLE
@pytest.mark.parametrize(
    ("v4", "v6", "user"),
    [
        (listening(V4, 7), "", 7),
        ("", listening(MAPPED, 7), 7),
        (listening(ANY_V4, 7), "", 7),
        ("", listening(ANY_V6, 7), 7),
        (listening(V4, 7) + listening(ANY_V4, 8), listening(ANY_V6, 9), 7),
        (listening(V4, 7, "20F9"), "", None),
        (listening("0200007F", 7), "", None),
        (accepted(V4, 7, 1171591), "", 7),
        ("", accepted(MAPPED, 7, 1171591), 7),
        (accepted(V4, 0, 0), "", None),
        ("", "", None),
    ],
)
def test_user_is_that_of_the_most_specific_listener_or_of_the_connection(
    v4: str, v6: str, user: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (tmp_path / "tcp", tmp_path / "tcp6", tmp_path / "absent")
    for table, rows in zip(tables, (v4, v6), strict=False):
        table.write_text(HEAD + rows)
    monkeypatch.setattr(loopback_listener, "TABLES", tables)
    assert server_user(SERVER, CLIENT) == user


@contextmanager
def server_of(user: int, address: tuple[str, int]) -> Iterator[tuple[str, int]]:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    os.seteuid(user)
    try:
        server = socket.create_server(address, family=family)
    finally:
        os.seteuid(0)
    with server:
        yield server.getsockname()[:2]


def check(listeners: LoopbackListeners, address: tuple[str, int], *, tls: object = None) -> None:
    with socket.create_connection(address) as client:
        facts = {"peername": client.getpeername(), "sockname": client.getsockname(), "sslcontext": tls}
        listeners.check(Mock(get_extra_info=facts.get))


@AS_ROOT
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_server_of_another_user_than_before_is_refused(host: str) -> None:
    listeners = LoopbackListeners()
    with server_of(1000, (host, 0)) as address:
        check(listeners, address)
    with server_of(OTHER, address), pytest.raises(ListenerChanged, match=f"user {OTHER}"):
        check(listeners, address)
    with server_of(OTHER, address):
        check(listeners, address, tls=object())
    for user in (0, 1000):
        with server_of(user, address):
            check(listeners, address)
    with server_of(OTHER, (host, 0)) as another:
        check(listeners, another)
