"""Users of servers on loopback."""

import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.servers import REPOSITORY

from lifesign.loopback import listeners as listeners_module
from lifesign.loopback import socket_users
from lifesign.loopback.listeners import LoopbackListeners, ServerUsers, server_users
from lifesign.loopback.socket_users import IS_SUPPORTED

ONLY_ROOT_IS_MAPPED = ("unshare", "--user", "--map-root-user")
CHECK_EACH = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from tests.loopback.test_listeners import LoopbackListeners, refusal_at
listeners = LoopbackListeners()
for port in sys.argv[1:]:
    refusal_at(listeners, ("127.0.0.1", int(port)))
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
            assert server_users(peer, own) == (OTHER, None)
        with acting_as(7):
            accepted, _ = server.accept()
        assert server_users(peer, own) == (OTHER, 7)
    with client:
        with accepted:
            assert server_users(peer, own) == (None, 7)
        assert server_users(peer, own) == (None, None)


@AS_ROOT
def test_listeners_of_both_versions_may_have_different_users() -> None:
    with server_of(OTHER, ("0.0.0.0", 0)) as (address, _), server_of(7, ("::", address[1])):
        for host, user in (("127.0.0.1", OTHER), ("::1", 7)):
            with socket.create_connection((host, address[1])) as client:
                assert server_users(client.getpeername(), client.getsockname()).listening == user


def test_nothing_is_refused_where_the_system_does_not_show_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_users, "IS_SUPPORTED", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        listeners = LoopbackListeners()
        listeners.learn({address[1]: ServerUsers(OTHER, None)})
        assert refusal_at(listeners, address) is None
        assert listeners.refusal_before(*address) is None


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


def refusal_at(listeners: LoopbackListeners, address: tuple[str, int]) -> str | None:
    with socket.create_connection(address) as client:
        return listeners.refusal(client.getpeername(), client.getsockname())


@AS_ROOT
@pytest.mark.parametrize("usual", [0, 1000])
def test_connection_that_another_user_has_accepted_is_refused_though_the_usual_server_listens(
    usual: int,
) -> None:
    listeners = LoopbackListeners()
    with server_of(usual, ("127.0.0.1", 0)) as (address, server), socket.create_connection(address) as first:
        with acting_as(1000):
            accepted, _ = server.accept()
        with accepted:
            # A server of root may accept connections as another user.
            assert listeners.refusal(first.getpeername(), first.getsockname()) is None
            assert listeners.first_users == {address[1]: (usual, 1000)}
    with server_of(OTHER, address) as (_, server):
        client = socket.create_connection(address)
        with acting_as(OTHER):
            accepted, _ = server.accept()
    with client, accepted, server_of(usual, address):
        refusal = listeners.refusal(client.getpeername(), client.getsockname())
    assert f"user {OTHER}" in (refusal or "")


@AS_ROOT
@pytest.mark.parametrize("was_accepted", [False, True])
def test_connection_that_another_user_accepted_while_the_server_of_root_was_down_is_refused(
    *, was_accepted: bool
) -> None:
    """Without an accepted connection, a later user is only trusted on one that was opened just now."""
    listeners = LoopbackListeners()
    with server_of(0, ("127.0.0.1", 0)) as (address, server), socket.create_connection(address) as first:
        accepted = server.accept()[0] if was_accepted else first
        with accepted:
            assert listeners.refusal(first.getpeername(), first.getsockname()) is None
    with server_of(OTHER, address) as (_, server):
        client = socket.create_connection(address)
        with acting_as(OTHER):
            accepted, _ = server.accept()
    with client, accepted, server_of(0, address):
        ends = client.getpeername(), client.getsockname()
        assert f"user {OTHER}" in (listeners.refusal(*ends, is_new=was_accepted) or "")
        # A process that starts meanwhile trusts nobody because of this connection.
        newcomer = LoopbackListeners()
        assert f"user {OTHER}" in (newcomer.refusal(*ends, is_new=False) or "")
    assert newcomer.first_users == {}
    assert listeners.first_users == {address[1]: (0, 0 if was_accepted else None)}


@AS_ROOT
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_server_of_another_user_than_before_is_refused(host: str) -> None:
    listeners = LoopbackListeners()
    with server_of(1000, (host, 0)) as (address, _):
        assert refusal_at(listeners, address) is None
    with server_of(OTHER, address):
        assert f"user {OTHER}" in (refusal_at(listeners, address) or "")
    for user in (0, 1000):
        with server_of(user, address):
            assert refusal_at(listeners, address) is None
    with server_of(OTHER, (host, 0)) as (another, _):
        assert refusal_at(listeners, another) is None


@AS_ROOT
def test_other_addresses_of_this_machine_are_checked_like_loopback() -> None:
    address = address_of_this_machine()
    if address is None:
        pytest.skip("NOT RUN: this machine has no address besides those of loopback")
    listeners = LoopbackListeners()
    with server_of(1000, (address, 0)) as (place, _):
        assert refusal_at(listeners, place) is None
    with server_of(OTHER, place):
        assert f"user {OTHER}" in (refusal_at(listeners, place) or "")


def test_servers_of_other_machines_are_not_checked() -> None:
    listeners = LoopbackListeners()
    for peer in ("192.0.2.1", "2001:db8::1"):
        listeners.learn({80: ServerUsers(OTHER, None)})
        assert listeners.refusal((peer, 80), ("192.0.2.9" if ":" not in peer else "2001:db8::9", 1)) is None


def address_of_this_machine() -> str | None:
    """Return an address of this machine that is none of loopback; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(asking.getsockname()[0])


@AS_ROOT
def test_server_of_another_user_on_another_address_of_loopback_is_refused() -> None:
    listeners = LoopbackListeners()
    with server_of(1000, ("127.0.0.1", 0)) as (address, _):
        assert refusal_at(listeners, address) is None
    with server_of(OTHER, ("::1", address[1])) as (another, _):
        assert "::1" in (refusal_at(listeners, another) or "")


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


@pytest.mark.skipif(not IS_SUPPORTED, reason="NOT RUN: only Linux shows the users of sockets")
def test_a_kernel_that_shows_no_users_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As in a service whose RestrictAddressFamilies= lacks AF_NETLINK.
    monkeypatch.setattr(socket, "AF_NETLINK", 255)
    listeners = LoopbackListeners()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert refusal_at(listeners, address) is None
        assert listeners.refusal_before(*address) is None
    [record] = caplog.records
    assert "allow AF_NETLINK" in record.getMessage()


@AS_ROOT
def test_server_of_a_user_who_is_not_mapped_is_refused_after_that_of_a_mapped_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners_module, "unmapped_user", lambda: OTHER)
    listeners = LoopbackListeners()
    with server_of(1000, ("127.0.0.1", 0)) as (address, _):
        assert refusal_at(listeners, address) is None
    with server_of(OTHER, address):
        assert refusal_at(listeners, address) is not None
    assert caplog.records == []
    with server_of(OTHER, ("127.0.0.1", 0)) as (another, _), caplog.at_level(logging.WARNING):
        assert refusal_at(listeners, another) is None
    assert len(caplog.records) == 1


@AS_ROOT
def test_port_is_checked_before_a_connection() -> None:
    listeners = LoopbackListeners()
    with server_of(1000, ("127.0.0.1", 0)) as ((host, port), _):
        assert listeners.refusal_before(host, port) is None
    for user in (0, 1000):
        with server_of(user, (host, port)):
            assert listeners.refusal_before(host, port) is None
    for other in (host, "::1"):
        with server_of(OTHER, (other, port)):
            assert f"user {OTHER}" in (listeners.refusal_before(other, port) or "")


@pytest.mark.skipif(not IS_SUPPORTED, reason="NOT RUN: this system does not show the users of sockets")
def test_port_without_its_server_is_not_connected_to() -> None:
    listeners = LoopbackListeners()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners.refusal_before("127.0.0.1", port) is None
    assert f"port {port}" in (listeners.refusal_before("127.0.0.1", port) or "")
    assert LoopbackListeners().refusal_before("127.0.0.1", port) is None


@AS_ROOT
def test_another_process_learns_the_first_users() -> None:
    listeners, successor = LoopbackListeners(), LoopbackListeners()
    with server_of(1000, ("127.0.0.1", 0)) as (address, _):
        refusal_at(listeners, address)
    successor.learn(listeners.first_users)
    successor.learn({address[1]: ServerUsers(OTHER, None)})
    with server_of(OTHER, address):
        assert refusal_at(successor, address) is not None
