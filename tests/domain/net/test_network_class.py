"""Network classes of addresses."""

from ipaddress import ip_address, ip_network

import pytest

from lifesign.domain.net.network_class import (
    address_key,
    address_of_key,
    has_name,
    network_class_of,
    range_to_allow,
)

ALLOWED = [ip_network("10.0.0.0/8"), ip_network("10.1.0.0/16"), ip_network("127.0.0.0/8")]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", "this_machine"),
        ("::1", "this_machine"),
        ("::ffff:127.0.0.1", "this_machine"),
        ("127.0.0.2", "127.0.0.0/8"),
        ("10.1.2.3", "10.1.0.0/16"),
        ("10.2.2.3", "10.0.0.0/8"),
        ("93.184.216.34", "public_ipv4"),
        ("::ffff:93.184.216.34", "public_ipv4"),
        ("2606:2800:220:1::1", "public_ipv6"),
    ],
)
def test_network_class_of_an_address(address: str, expected: str) -> None:
    assert network_class_of(ip_address(address), ALLOWED) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", "93.184.216.34"),
        ("2606:2800:220:1:aaaa::1", "2606:2800:220:1::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_ipv6_addresses_of_one_network_count_as_one(address: str, expected: str) -> None:
    assert address_key(ip_address(address)) == expected


@pytest.mark.parametrize(
    ("host", "expected"), [("a.example", True), ("10.example", True), ("10.1.2.3", False), ("[::1]", False)]
)
def test_host_of_a_url_is_a_name_or_an_address(host: str, *, expected: bool) -> None:
    assert has_name(f"https://{host}:8443/") is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [("93.184.216.34", "93.184.216.34"), ("2606:2800:220:1::/64", "2606:2800:220:1::"), ("1/2/3", None)],
)
def test_address_of_a_key_counts_as_it(key: str, expected: str | None) -> None:
    address = address_of_key(key)
    assert str(address) == str(expected)
    assert address is None or address_key(address) == key


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", "127.0.0.0/8"),
        ("localhost", "127.0.0.0/8"),
        ("::1", "::1/128"),
        ("10.1.2.3", "10.0.0.0/8"),
        ("fd12::1", "fc00::/7"),
        ("169.254.169.254", None),
        ("fd00:ec2::254", None),
        ("224.0.0.1", None),
        ("93.184.215.14", None),
        ("agent.example", None),
    ],
)
def test_range_to_allow_is_the_special_range_that_a_setting_can_open(host: str, network: str | None) -> None:
    assert range_to_allow(host) == network
