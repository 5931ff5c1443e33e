"""Source addresses of this machine."""

import socket
from ipaddress import ip_address

import pytest

from lifesign.domain.net.allowed_addresses import Address
from lifesign.prober.network import source_address
from lifesign.prober.network.source_address import (
    LastFamily,
    is_own_address,
    last_family,
    source_towards,
)


@pytest.mark.parametrize(
    ("address", "is_own"),
    # All of 127.0.0.0/8 answers here, from 127.0.0.1; 192.0.2.0/24 and 2001:db8::/32 are for documentation.
    [("127.0.0.1", True), ("127.0.0.2", False), ("192.0.2.199", False), ("2001:db8::199", False)],
)
def test_address_is_local_if_it_is_its_own_source_address(address: str, *, is_own: bool) -> None:
    assert is_own_address(ip_address(address)) is is_own


def test_source_address_of_outgoing_packets_is_local() -> None:
    source = source_towards(ip_address("203.0.113.9"))
    if source is None:
        pytest.skip("NOT RUN: this machine has no route to the network")
    assert is_own_address(source)
    assert not source.is_loopback


def test_source_address_is_absent_without_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    assert source_towards(ip_address("203.0.113.9")) is None
    assert not is_own_address(ip_address("203.0.113.9"))


@pytest.mark.parametrize(
    ("four", "six", "destination", "last"),
    [
        (None, None, "2001:db8::1", None),
        ("192.168.1.5", "2001:db8::2", "2001:db8::1", None),
        ("192.168.1.5", None, "2001:db8::1", LastFamily(6, has_route=False)),
        (None, "2001:db8::2", "2001:db8::1", LastFamily(4, has_route=False)),
        # An address of one's own site leads to that site, and only by translation to the internet.
        ("192.168.1.5", "fd00::2", "fd00:1::1", None),
        ("192.168.1.5", "fd00::2", "2001:db8::1", LastFamily(6, has_route=True)),
    ],
)
def test_address_family_without_a_usual_route_is_tried_last(
    four: str | None,
    six: str | None,
    destination: str,
    last: LastFamily | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = {4: four, 6: six}

    def source(address: Address) -> Address | None:
        found = sources[address.version]
        return None if found is None else ip_address(found)

    monkeypatch.setattr(source_address, "source_towards", source)
    assert last_family([ip_address("192.0.2.1"), ip_address(destination)]) == last
    assert last_family([ip_address("192.0.2.1")]) is None
