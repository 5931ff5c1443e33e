"""Source addresses of this machine."""

import socket
from ipaddress import ip_address

import pytest

from lifesign.prober.network.source_address import is_own_address, source_towards


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
