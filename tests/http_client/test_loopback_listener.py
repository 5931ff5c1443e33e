"""Users of servers on loopback."""

import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from tests.support.servers import REPOSITORY

from lifesign.http_client import loopback_listener, socket_users
from lifesign.http_client.loopback_listener import ListenerChanged, LoopbackListeners, server_user
from lifesign.http_client.socket_users import IS_SUPPORTED

ONLY_ROOT_IS_MAPPED = ("unshare", "--user", "--map-root-user")
CHECK_EACH = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from tests.http_client.test_loopback_listener import LoopbackListeners, check
listeners = LoopbackListeners()
for port in sys.argv[1:]:
    check(listeners, ("127.0.0.1", int(port)))
"""
OTHER = 65_534
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not IS_SUPPORTED,
    reason="NOT RUN: only root on Linux can listen as another user",
)


@AS_ROOT
@pytest.mark.parametrize(
    ("listens", "connects"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("::1", "::1"),
        ("::", "::1"),
    ],
)
def test_user_is_that_of_the_listener_or_of_the_accepted_connection(listens: str, connects: str) -> None:
    with server_of(OTHER, (listens, 0), is_dual=":" in listens) as (address, server):
        client = socket.create_connection((connects, address[1]))
        own, peer = client.getsockname(), client.getpeername()
        with server_of(7, ("127.0.0.2", 0)):
            assert server_user(peer, own) == OTHER
        with acting_as(7):
            accepted, _ = server.accept()
    with client:
        with accepted:
            assert server_user(peer, own) == 7
        assert server_user(peer, own) is None


@AS_ROOT
def test_listeners_of_both_versions_may_have_different_users() -> None:
    with server_of(OTHER, ("0.0.0.0", 0)) as (address, _), server_of(7, ("::", address[1])):
        for host, user in (("127.0.0.1", OTHER), ("::1", 7)):
            with socket.create_connection((host, address[1])) as client:
                assert server_user(client.getpeername(), client.getsockname()) == user


def test_user_is_unknown_where_the_system_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_users, "IS_SUPPORTED", False)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        assert server_user(client.getpeername(), client.getsockname()) is None


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def server_of(
    user: int, address: tuple[str, int], *, is_dual: bool = False
) -> Iterator[tuple[tuple[str, int], socket.socket]]:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with acting_as(user):
        server = socket.create_server(address, family=family, dualstack_ipv6=is_dual)
    with server:
        yield server.getsockname()[:2], server


def check(listeners: LoopbackListeners, address: tuple[str, int], *, tls: object = None) -> None:
    with socket.create_connection(address) as client:
        facts = {"peername": client.getpeername(), "sockname": client.getsockname(), "sslcontext": tls}
        listeners.check(Mock(get_extra_info=facts.get))


@AS_ROOT
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_server_of_another_user_than_before_is_refused(host: str) -> None:
    listeners = LoopbackListeners()
    with server_of(1000, (host, 0)) as (address, _):
        check(listeners, address)
    with server_of(OTHER, address), pytest.raises(ListenerChanged, match=f"user {OTHER}"):
        check(listeners, address)
    with server_of(OTHER, address):
        check(listeners, address, tls=object())
    for user in (0, 1000):
        with server_of(user, address):
            check(listeners, address)
    with server_of(OTHER, (host, 0)) as (another, _):
        check(listeners, another)


@AS_ROOT
def test_server_of_another_user_on_another_address_of_loopback_is_refused() -> None:
    listeners = LoopbackListeners()
    with server_of(1000, ("127.0.0.1", 0)) as (address, _):
        check(listeners, address)
    with server_of(OTHER, ("::1", address[1])) as (another, _), pytest.raises(ListenerChanged, match="::1"):
        check(listeners, another)


def warnings_in_a_user_namespace(*ports: int) -> list[str]:
    """Return what a client writes that checks the listeners of these ports where only root is mapped."""
    command = [*ONLY_ROOT_IS_MAPPED, sys.executable, "-c", CHECK_EACH, *map(str, ports)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr.splitlines()


@AS_ROOT
def test_client_in_a_user_namespace_warns_once_about_a_server_whose_user_is_not_mapped() -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run([*ONLY_ROOT_IS_MAPPED, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("NOT RUN: this system does not allow user namespaces")
    with (
        server_of(0, ("127.0.0.1", 0)) as ((_, of_root), _),
        server_of(1000, ("127.0.0.1", 0)) as ((_, unmapped), _),
        server_of(OTHER, ("127.0.0.1", 0)) as ((_, another), _),
    ):
        [warning] = warnings_in_a_user_namespace(of_root, unmapped, unmapped, another)
    assert f"port {unmapped}:" in warning
    assert "PrivateUsers=yes" in warning


@AS_ROOT
def test_server_of_a_user_who_is_not_mapped_is_refused_after_that_of_a_mapped_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loopback_listener, "unmapped_user", lambda: OTHER)
    listeners = LoopbackListeners()
    with server_of(1000, ("127.0.0.1", 0)) as (address, _):
        check(listeners, address)
    with server_of(OTHER, address), pytest.raises(ListenerChanged):
        check(listeners, address)
    assert caplog.records == []
    with server_of(OTHER, ("127.0.0.1", 0)) as (another, _), caplog.at_level(logging.WARNING):
        check(listeners, another)
    assert len(caplog.records) == 1
