import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.listening_users import AS_ROOT, OTHER, silent_server

from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers
from lifesign.storage.engine import postgresql_hosts
from lifesign.storage.engine.postgresql_hosts import vetted

NAMES = {"own": ["::1", "127.0.1.1"], "db": ["192.0.2.7"], "none": []}
"""Addresses by name."""
FREE_PORT = 1
"""Nothing listens there, and nothing is remembered."""


@pytest.fixture(autouse=True)
def _resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo

    def resolve(host: str, port: int, *a: Any, **k: Any) -> list[tuple[Any, ...]]:
        if host in NAMES and not NAMES[host]:
            raise socket.gaierror(-2, "Name not known")
        return [each for name in NAMES.get(host, [host]) for each in found(name, port, *a, **k)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("LocalHost.", ["127.0.0.1", "::1", "LocalHost."]),
        ("own", ["127.0.1.1", "::1", "own"]),
        ("0.0.0.0", ["127.0.0.1", "0.0.0.0"]),
        ("127.1", ["127.0.0.1", "127.1"]),
        ("::1", ["::1"]),
        ("db", ["db"]),
    ],
)
async def test_only_a_name_of_this_machine_becomes_its_addresses(host: str, hosts: list[str]) -> None:
    assert await vetted(host, FREE_PORT, is_verified=False) == (hosts, [])
    assert await vetted(host, FREE_PORT, is_verified=True) == ([host], [])


async def test_name_server_does_not_lead_localhost_to_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(NAMES, "localhost", ["192.0.2.1"])
    assert await vetted("localhost", FREE_PORT, is_verified=False) == (["127.0.0.1", "::1"], [])


@pytest.mark.parametrize("host", ["none", "a..b"])
async def test_host_without_an_address_is_refused(host: str) -> None:
    hosts, [why] = await vetted(host, FREE_PORT, is_verified=False)
    assert (hosts, why.partition(" (")[0]) == ([], f"the host {host} cannot be resolved")


async def test_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_hosts, "RESOLVE_SECONDS", 0.05)
    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: end.wait(60))
    hosts, [why] = await vetted("db", FREE_PORT, is_verified=False)
    end.set()
    assert hosts == []
    assert why.endswith("(TimeoutError)")


@pytest.mark.parametrize("name", ["", "/.s.PGSQL.5432"])
def test_socket_that_any_user_could_create_is_not_used(name: str, tmp_path: Path) -> None:
    host = f"{tmp_path}{name}"
    assert asyncio.run(vetted(host, FREE_PORT, is_verified=False)) == ([host], [])
    tmp_path.chmod(0o1777)
    for is_verified in (False, True):
        hosts, [why] = asyncio.run(vetted(host, FREE_PORT, is_verified=is_verified))
        assert hosts == []
        assert f"socket in {tmp_path}." in why


@AS_ROOT
async def test_other_addresses_are_used_without_the_name() -> None:
    with silent_server(OTHER, host="127.0.1.1") as server:
        port = server.getsockname()[1]
        with silent_server(0, port):
            IN_THIS_PROCESS.learn({port: ServerUsers(0, None)})
            hosts, whys = await vetted("own", port, is_verified=False)
            assert (hosts, len(whys)) == ([], 2)
            assert (await vetted("localhost", port, is_verified=False))[0] == ["127.0.0.1"]


@AS_ROOT
async def test_all_addresses_of_this_machine_are_checked() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.7", 9))
        except OSError:
            pytest.skip("NOT RUN: this machine has no other address than those of loopback")
        own = probe.getsockname()[0]
    with silent_server(OTHER, host=own) as server:
        port = server.getsockname()[1]
        IN_THIS_PROCESS.learn({port: ServerUsers(1000, None)})
        hosts, [why] = await vetted(own, port, is_verified=False)
    assert hosts == []
    assert f"user {OTHER} listens" in why
