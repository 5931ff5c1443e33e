import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.net.allowed_addresses import (
    MAX_NETWORKS,
    SPECIAL_RANGES,
    Address,
    AddressRefused,
    Network,
    SpecialRange,
    TargetUrl,
    is_public,
    read_networks,
    vet_address,
    vet_url,
    without_password,
    without_passwords,
)
from lifesign.errors import InvalidValue

# First and last of every range, written down a second time from the registries of IANA.
CLOSED_FOR_GOOD = [
    ("0.0.0.0", "0.255.255.255"),
    ("100.100.100.200", "100.100.100.200"),
    ("168.63.129.16", "168.63.129.16"),
    ("169.254.0.23", "169.254.0.23"),
    ("169.254.42.42", "169.254.42.42"),
    ("169.254.169.254", "169.254.169.254"),
    ("169.254.170.2", "169.254.170.2"),
    ("169.254.170.23", "169.254.170.23"),
    ("192.0.0.0", "192.0.0.255"),
    ("192.88.99.0", "192.88.99.255"),
    ("224.0.0.0", "239.255.255.255"),
    ("240.0.0.0", "255.255.255.255"),
    ("::", "::"),
    ("::2", "::ffff:ffff"),
    ("2001::", "2001:1:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2001:2:1::", "2001:2:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2001:3::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("fd00:42::42", "fd00:42::42"),
    ("fd00:c1::a9fe:a9fe", "fd00:c1::a9fe:a9fe"),
    ("fd00:100::100:200", "fd00:100::100:200"),
    ("fd00:ec2::23", "fd00:ec2::23"),
    ("fd00:ec2::254", "fd00:ec2::254"),
    ("fd00:a9fe:a9fe::1", "fd00:a9fe:a9fe::1"),
    ("fd20:ce::254", "fd20:ce::254"),
    ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
]
OPEN_BY_NAME = [
    ("10.0.0.0", "10.255.255.255"),
    ("100.64.0.0", "100.127.255.255"),
    ("127.0.0.0", "127.255.255.255"),
    ("169.254.0.0", "169.254.255.255"),
    ("172.16.0.0", "172.31.255.255"),
    ("192.0.2.0", "192.0.2.255"),
    ("192.168.0.0", "192.168.255.255"),
    ("198.18.0.0", "198.19.255.255"),
    ("198.51.100.0", "198.51.100.255"),
    ("203.0.113.0", "203.0.113.255"),
    ("::1", "::1"),
    ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
    ("100::", "100::ffff:ffff:ffff:ffff"),
    ("2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff"),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("4000::", "fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ("fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
]
EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))
LOOPBACK = read_networks(["127.0.0.0/8"])
PRIVATE = ["10.1.2.3", "127.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.1.1", "192.0.2.1"]


def is_within(address: Address, ranges: list[tuple[str, str]]) -> bool:
    return any(
        ip_address(first).version == address.version
        and int(ip_address(first)) <= int(address) <= int(ip_address(last))
        for first, last in ranges
    )


def is_listed(address: Address) -> bool:
    """Return whether an address is in one of our ranges, by a plain search."""
    if isinstance(address, IPv6Address):
        number = int(address)
        if number >> 32 in (0xFFFF, 0x64_FF9B << 64):
            return is_listed(IPv4Address(number & 0xFFFF_FFFF))
        if number >> 125 != 1:
            return True
    return is_within(address, CLOSED_FOR_GOOD + OPEN_BY_NAME)


def refusal(result: object) -> AddressRefused:
    assert isinstance(result, AddressRefused), result
    assert result.reason
    return result


# Addresses


@pytest.mark.parametrize(("first", "last"), CLOSED_FOR_GOOD + OPEN_BY_NAME)
def test_a_special_range_is_refused_from_its_first_to_its_last_address(first: str, last: str) -> None:
    for edge in (first, last):
        assert refusal(vet_address(ip_address(edge))).name == "blocked_address"


@pytest.mark.parametrize(("first", "last"), CLOSED_FOR_GOOD + OPEN_BY_NAME)
def test_address_next_to_a_special_range_is_not_special(first: str, last: str) -> None:
    beside = [ip_address(first) - 1] if int(ip_address(first)) else []
    if last != "255.255.255.255" and not last.startswith("ffff:"):
        beside.append(ip_address(last) + 1)
    for address in beside:
        assert (vet_address(address) is not None) == is_listed(address)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
        "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
        "192.0.1.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
        "2000::", "2001:200::", "2001:4860:4860::8888", "2606:4700::1111", "2003::",
        "3ffe:ffff::", "3fff:1000::", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
    ],
)  # fmt: skip
def test_a_global_unicast_address_may_be_contacted(address: str) -> None:
    assert vet_address(ip_address(address)) is None


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
@example(IPv6Address("2001:2::1"))
@example(IPv6Address("::ffff:10.0.0.1"))
@example(IPv6Address("64:ff9b::8.8.8.8"))
def test_exactly_the_addresses_outside_of_every_listed_range_may_be_contacted(address: Address) -> None:
    assert (vet_address(address) is not None) == is_listed(address)


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_no_address_that_the_standard_library_calls_special_passes(address: Address) -> None:
    if (
        not address.is_global
        or address.is_private
        or address.is_multicast
        or address.is_reserved
        or address.is_loopback
        or address.is_link_local
        or address.is_unspecified
    ) and address not in ip_network("64:ff9b::/96"):
        assert vet_address(address) is not None or getattr(address, "ipv4_mapped", None) is not None


@given(st.ip_addresses(v=4))
@example(IPv4Address("169.254.169.254"))
def test_ipv6_forms_of_an_ipv4_address_are_vetted_as_that_address(address: IPv4Address) -> None:
    number = int(address)
    is_refused = vet_address(address) is not None
    assert (vet_address(IPv6Address((0xFFFF << 32) | number)) is not None) == is_refused
    assert (vet_address(IPv6Address((0x64_FF9B << 96) | number)) is not None) == is_refused
    tunnels = [
        number,
        (0x2002 << 112) | (number << 80),
        (0x2001_0000 << 96) | (number << 64),
        (0x2001_0000 << 96) | (number ^ 0xFFFF_FFFF),
    ]
    for tunnel in tunnels:
        assert vet_address(IPv6Address(tunnel), EVERYTHING[:1]) is not None


def test_a_zone_is_refused_even_on_an_address_that_may_be_contacted() -> None:
    assert "zone" in refusal(vet_address(IPv6Address("2606:4700::1111%eth0"), EVERYTHING)).reason


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.0.0.5", "10.0.0.5 is private (RFC 1918)"),
        ("169.254.169.254", "169.254.169.254 is a cloud metadata address"),
        ("255.255.255.255", "255.255.255.255 is broadcast (RFC 919)"),
        ("2002:7f00:1::", "2002:7f00:1:: is a 6to4 tunnel (RFC 3056)"),
        ("2001::1", "2001::1 is a Teredo tunnel (RFC 4380)"),
        ("5f00::1", "5f00::1 is not global unicast (RFC 4291)"),
        ("::ffff:10.0.0.5", "::ffff:a00:5 contains an IPv4 address: 10.0.0.5 is private (RFC 1918)"),
    ],
)
def test_address_refusal_contains_the_kind_of_the_address(address: str, reason: str) -> None:
    assert refusal(vet_address(ip_address(address))).reason == reason


@pytest.mark.parametrize("special", SPECIAL_RANGES, ids=lambda special: str(special.network))
def test_each_special_range_refuses_its_first_or_last_address(special: SpecialRange) -> None:
    reasons = [vet_address(special.network[place]) for place in (0, -1)]
    assert any(refused is not None and refused.reason.endswith(special.what) for refused in reasons)


# Networks that are allowed by name


@pytest.mark.parametrize("address", [edge for row in OPEN_BY_NAME for edge in row])
def test_private_address_in_an_allowed_network_may_be_contacted(address: str) -> None:
    assert vet_address(ip_address(address), read_networks([address])) is None


@pytest.mark.parametrize("address", [edge for row in CLOSED_FOR_GOOD for edge in row])
def test_address_that_is_never_allowed_stays_refused_in_an_allowed_network(address: str) -> None:
    assert vet_address(ip_address(address), [ip_network(address), *EVERYTHING]) is not None


@pytest.mark.parametrize("address", PRIVATE)
def test_a_mapped_address_is_allowed_with_its_ipv4_network_and_a_translated_one_is_not(address: str) -> None:
    allowed = read_networks([address])
    assert vet_address(IPv6Address(f"::ffff:{address}"), allowed) is None
    assert vet_address(IPv6Address(f"64:ff9b::{address}"), [*allowed, *EVERYTHING]) is not None


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6), st.integers(1, 32))
def test_allowed_network_allows_no_address_outside_of_it(address: Address, prefix: int) -> None:
    network: Network = ip_network((int(IPv4Address("10.0.0.0")), max(prefix, 8)))
    if address not in network and getattr(address, "ipv4_mapped", None) is None:
        assert vet_address(address, [network]) == vet_address(address)


def test_network_notations_are_parsed() -> None:
    assert read_networks(["10.1.0.0/16", "fd12::/16", "192.168.7.7"]) == (
        ip_network("10.1.0.0/16"),
        ip_network("fd12::/16"),
        ip_network("192.168.7.7/32"),
    )
    assert read_networks([]) == ()


@pytest.mark.parametrize(
    "text",
    ["", "x", " 10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/33", "0.0.0.0/0", "::/0", "::ffff:10.0.0.0/104",
     "fe80::%eth0/64", "localhost"],
)  # fmt: skip
def test_invalid_network_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        read_networks(["10.0.0.0/8", text], "webhook_networks")
    assert raised.value.name == "webhook_networks"
    assert raised.value.given == text


def test_too_many_networks_are_refused() -> None:
    assert len(read_networks(["10.0.0.0/8"] * MAX_NETWORKS)) == MAX_NETWORKS
    with pytest.raises(InvalidValue, match="at most"):
        read_networks(["10.0.0.0/8"] * (MAX_NETWORKS + 1))


# URLs


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://agent.example", TargetUrl("http", "agent.example", 80, None)),
        ("https://agent.example/", TargetUrl("https", "agent.example", 443, None)),
        ("HTTPS://Agent.EXAMPLE.:8443/a?b#c", TargetUrl("https", "agent.example", 8443, None)),
        ("https://agent.example?user@host", TargetUrl("https", "agent.example", 443, None)),
        ("https://agent.example#@10.0.0.1", TargetUrl("https", "agent.example", 443, None)),
        ("https://agent.example/@10.0.0.1", TargetUrl("https", "agent.example", 443, None)),
        ("http://agent.example:/", TargetUrl("http", "agent.example", 80, None)),
        ("http://agent.example:1", TargetUrl("http", "agent.example", 1, None)),
        ("http://agent.example:65535", TargetUrl("http", "agent.example", 65_535, None)),
        ("http://xn--bcher-kva.example", TargetUrl("http", "xn--bcher-kva.example", 80, None)),
        ("http://a_b.example", TargetUrl("http", "a_b.example", 80, None)),
        ("http://127.0.0.1.example", TargetUrl("http", "127.0.0.1.example", 80, None)),
        ("http://0xagent", TargetUrl("http", "0xagent", 80, None)),
        ("http://8.8.8.8:8080/", TargetUrl("http", "8.8.8.8", 8080, IPv4Address("8.8.8.8"))),
        ("http://8.8.8.8.", TargetUrl("http", "8.8.8.8", 80, IPv4Address("8.8.8.8"))),
        (
            "http://[2606:4700:0::1111]:81",
            TargetUrl("http", "2606:4700::1111", 81, IPv6Address("2606:4700::1111")),
        ),
        (f"http://{'a' * 63}.example", TargetUrl("http", f"{'a' * 63}.example", 80, None)),
    ],
)
def test_a_url_leads_to_a_host_and_a_port(url: str, target: TargetUrl) -> None:
    assert vet_url(url) == target


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "characters of RFC 3986"),
        ("agent.example", "absolute URL"),
        ("//agent.example", "absolute URL"),
        ("http:agent.example", "absolute URL"),
        ("http:/agent.example", "absolute URL"),
        ("ftp://agent.example", "http and https"),
        ("file:///etc/passwd", "http and https"),
        ("httpx://agent.example", "http and https"),
        ("http://", "host name"),
        ("http:///path", "host name"),
        ("http://:80/", "host name"),
        ("http://.", "host name"),
        ("http://a..b", "host name"),
        ("http://agent.example..", "host name"),
        ("http://.agent.example", "host name"),
        ("http://-agent.example", "host name"),
        ("http://agent-.example", "host name"),
        (f"http://{'a' * 64}.example", "host name"),
        (f"http://{'a.' * 126}aa", "host name"),
        ("http://agent%2eexample", "host name"),
        ("http://user@agent.example", "user name"),
        ("http://user:pass@agent.example", "user name"),
        ("http://@agent.example", "user name"),
        ("http://agent.example:0", "port"),
        ("http://agent.example:65536", "port"),
        ("http://agent.example:000080", "port"),
        ("http://agent.example:" + "9" * 2000, "port"),
        ("http://agent.example:80:90", "a port"),
        ("http://agent.example:8o", "port from 1 to 65535"),
        ("http://agent.example:-1", "port from 1 to 65535"),
        ("http://[2606:4700::1111]:abc", "port from 1 to 65535"),
        ("http://[2606:4700::1111", "in brackets"),
        ("http://::1", "in brackets"),
        ("http://[::1", "a port"),
        ("http://::1]", "a port"),
        ("http://[::1]x", "a port"),
        ("http://[]", "IPv6"),
        ("http://[v1.a]", "IPv6"),
        ("http://[8.8.8.8]", "IPv6"),
        ("http://[agent.example]", "IPv6"),
        ("http://[2606:4700::1111%25eth0]", "zone"),
        ("http://[2606:4700::1111%eth0]", "zone"),
        ("http://8.8.8", "four decimal numbers"),
        ("http://8.8.8.8.8", "four decimal numbers"),
        ("http://08.8.8.8", "four decimal numbers"),
        ("http://8.8.8.256", "four decimal numbers"),
        ("http://agent.1", "four decimal numbers"),
        ("http://1..", "host name"),
        ("http://agent.example/a b", "characters of RFC 3986"),
        ("http://agent.example\n", "characters of RFC 3986"),
        (" http://agent.example", "characters of RFC 3986"),
        ("http://agent.example\\@10.0.0.1", "characters of RFC 3986"),
        ("http://b\u00fccher.example", "characters of RFC 3986"),
        ("http://agent\u3002example", "characters of RFC 3986"),
        ("http://agent.example/\ud800", "characters of RFC 3986"),
    ],
)
def test_invalid_target_url_is_refused_with_the_reason(url: str, reason: str) -> None:
    assert reason in refusal(vet_url(url)).reason


def test_url_above_the_length_limit_is_refused() -> None:
    url = "http://agent.example/".ljust(2048, "a")
    assert isinstance(vet_url(url), TargetUrl)
    assert "longer" in refusal(vet_url(url + "a")).reason
    assert "longer" in refusal(vet_url(url * 1000)).reason


def test_a_refusal_never_quotes_a_password() -> None:
    assert "hunter2" not in refusal(vet_url("http://user:hunter2@agent.example")).reason


@pytest.mark.parametrize("host", PRIVATE)
def test_literal_address_is_classified_at_once(host: str) -> None:
    url = f"http://{host}/"
    assert refusal(vet_url(url)).name == "blocked_address"
    assert isinstance(vet_url(url, read_networks([host])), TargetUrl)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "localhost.", "a.localhost", "a.b.localhost.", "localhost.localdomain",
     "ip6-localhost", "ip6-loopback", "localhost6", "localhost4.localdomain4"],
)  # fmt: skip
def test_localhost_by_any_name_needs_an_allowed_loopback(host: str) -> None:
    assert refusal(vet_url(f"http://{host}:8000/")).name == "blocked_address"
    assert refusal(vet_url(f"http://{host}:8000/", read_networks(["10.0.0.0/8"]))).name == "blocked_address"
    for loopback in (LOOPBACK, read_networks(["::1"])):
        vetted = vet_url(f"http://{host}:8000/", loopback)
        assert isinstance(vetted, TargetUrl)
        assert vetted.address is None


@pytest.mark.parametrize("host", ["localhost.example", "notlocalhost", "localhosts"])
def test_name_similar_to_localhost_is_an_ordinary_name(host: str) -> None:
    assert isinstance(vet_url(f"http://{host}/"), TargetUrl)


def spelled(number: int) -> list[str]:
    """One part of an IPv4 address in every base that inet_aton reads."""
    return [
        str(number),
        f"0{number:o}",
        f"000{number:o}",
        f"0x{number:x}",
        f"0X{number:02X}",
        f"0x00{number:x}",
    ]


def loopback_spellings() -> list[str]:
    """Host parts of URLs that have led clients to 127.0.0.1."""
    groups = [[127, 0, 0, 1], [127, 0, 1], [127, 1], [0x7F00_0001]]
    hosts = [
        ".".join(parts) + dot
        for numbers in groups
        for parts in product(*(spelled(number) for number in numbers))
        for dot in ("", ".")
    ]
    wrapped = ["4294967296.127.0.1", "6425673729", "383.256.256.257", "127.0.0.257"]
    digits = "".join(chr(0xFF10 + int(digit)) if digit.isdigit() else digit for digit in "127.0.0.1")
    odd = [
        digits,
        "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
        "127\u30020\u30020\u30021",
        "127\uff0e0\uff0e0\uff0e1",
        "\u0661\u0662\u0667.0.0.1",
        "127.0.0.1\u200b",
        "%31%32%37.0.0.1",
        "127%2e0%2e0%2e1",
        "127.0.0.1%00",
        "127.0.0.1\x00.example",
        "127.0.0.1\t",
        "12\n7.0.0.1",
        "agent.example@127.0.0.1",
        "agent.example\\@127.0.0.1",
        "127.0.0.1\\@agent.example",
        "[127.0.0.1]",
    ]
    six = [
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[0000:0000:0000:0000:0000:0000:0000:0001]",
        "[::0.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::FFFF:7F00:1]",
        "[0:0:0:0:0:ffff:127.0.0.1]",
        "[::ffff:0:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[2001::80ff:fffe]",
        "[::1%25lo]",
        "[::1%lo]",
        "[fe80::1%25lo]",
        "[::]",
        "0.0.0.0",
        "0",
    ]
    return [*hosts, *wrapped, *odd, *six]


def test_no_spelling_of_loopback_passes() -> None:
    spellings = loopback_spellings()
    assert len(spellings) > 3_000
    passed = [
        host
        for host in spellings
        for ending in ("", "/", ":80/", "?", "#agent.example")
        if not isinstance(vet_url(f"http://{host}{ending}"), AddressRefused)
    ]
    assert passed == []


def test_an_unusual_spelling_is_refused_even_where_loopback_is_allowed() -> None:
    passed = [
        host for host in loopback_spellings() if isinstance(vet_url(f"http://{host}", LOOPBACK), TargetUrl)
    ]
    mapped = ["[::ffff:127.0.0.1]", "[::FFFF:7F00:1]", "[0:0:0:0:0:ffff:127.0.0.1]"]
    assert passed == ["127.0.0.1", "127.0.0.1.", *mapped]


@given(st.text("0123456789abcdefxX.", min_size=1, max_size=20))
@example("0x7f.1")
@example("017700000001")
@example("127.0.0.1")
@example("1.2.3.4")
def test_every_system_spelling_of_an_address_is_classified_or_refused(host: str) -> None:
    vetted = vet_url(f"http://{host}/")
    try:
        read = IPv4Address(socket.inet_aton(host))
    except OSError:
        return
    if isinstance(vetted, TargetUrl):
        assert vetted.address == read
        assert vet_address(read) is None


@given(st.text(max_size=60) | st.text("htps:/[]@.%0123456789abcdefx", max_size=60))
def test_any_text_is_vetted_as_a_url_without_an_exception(text: str) -> None:
    for url in (text, f"http://{text}", f"http://[{text}]/"):
        vetted = vet_url(url)
        if isinstance(vetted, TargetUrl):
            assert vetted.host
            assert 1 <= vetted.port <= 65_535
            assert vetted.address is None or not is_listed(vetted.address)


@pytest.mark.parametrize(
    ("given", "shown", "in_a_text"),
    [
        ("https://u:s3cret@host/x", "https://...@host/x", "https://u:...@host/x"),
        ("postgresql://u:s3cret@host/x", "postgresql://...@host/x", "postgresql://u:...@host/x"),
        ("https://u:s3@cret@host", "https://...@host", "https://u:...@host"),
        ("https://u:/s3?c#ret@host", "https://...@host", "https://u:...@host"),
        ("https://:s3cret@host", "https://...@host", "https://:...@host"),
        ("HTTPS://u:s3cret@[::1]:80/", "HTTPS://...@[::1]:80/", "HTTPS://u:...@[::1]:80/"),
    ],
)
def test_a_password_is_hidden(given: str, shown: str, in_a_text: str) -> None:
    assert without_password(given) == shown
    assert without_passwords(f"not {given} nor {given!r}") == f"not {in_a_text} nor {in_a_text!r}"


@pytest.mark.parametrize("password", ["s3cret word", "s3cret\tword", "s3 /cret word", " s3cret @ word\n"])
def test_password_with_white_space_is_hidden_in_a_url(password: str) -> None:
    assert without_password(f"https://u:{password}@host/x") == "https://...@host/x"


def test_token_in_place_of_a_url_is_hidden_and_a_user_name_is_reported() -> None:
    assert without_password("https://s3cret@host/x") == "https://...@host/x"
    assert without_password("u:s3cret@host/x") == "...@host/x"
    assert without_passwords("expected postgresql://USER@HOST/NAME") == "expected postgresql://USER@HOST/NAME"


def test_password_in_the_query_of_a_url_is_hidden() -> None:
    url = "postgresql://h/db?user=u&password=s3cret&sslpassword=t0p&sslmode=require"
    hidden = "postgresql://h/db?user=u&password=...&sslpassword=...&sslmode=require"
    assert without_passwords(f"{url} or u@h") == f"{hidden} or u@h"
    assert without_passwords("?password=none") == "?password=none"


@pytest.mark.parametrize(
    "url",
    ["https://host/@u:p/a", "https://host:80/@u", "host/x@y", "https://[::1]:80/@x", "https://host?a=b@c"],
)
def test_where_there_is_no_password_nothing_is_hidden(url: str) -> None:
    assert without_password(url) == url
    assert without_passwords(f"{url}, ops@example.org") == f"{url}, ops@example.org"


@given(st.text("a:/@?#[ ", max_size=40))
def test_no_password_remains_in_a_url(text: str) -> None:
    shown = without_passwords(f"https://u:s3cret{text}@host")
    assert "s3cret" not in shown or " " in text


TO_HOST = r"(?:[^/?#\s]*@|(?![0-9]+(?:[/?#\s]|$))\S*@)"
IN_A_TEXT = re.compile(rf"(?<=://)([^/?#\s:@\[]*):{TO_HOST}")
"""The hidden part as a regular expression; it takes quadratic time."""


@given(
    st.lists(st.sampled_from(["a", "1", "://", ":", "/", "@", "?", "#", "[", " ", "\n", "//"]), max_size=20)
)
def test_password_removal_agrees_with_a_regular_expression(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert without_passwords(text) == IN_A_TEXT.sub(r"\1:...@", text)


def test_ipv6_address_without_brackets_is_refused_with_the_right_form() -> None:
    vetted = vet_url("http://2001:db8::1:8080/")
    assert isinstance(vetted, AddressRefused)
    assert "[2001:db8::1]:8080" in vetted.reason
    vetted = vet_url("http://a.example:b/")
    assert isinstance(vetted, AddressRefused)
    assert "brackets" not in vetted.reason


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://agent.example/", True),
        ("http://93.184.215.14/", True),
        ("http://[2606:4700::1]/", True),
        ("http://10.9.9.9/", False),
        ("http://127.0.0.1:8000/", False),
        ("http://localhost:8000/", False),
        ("http://agent.invalid/", False),
        ("http://198.51.100.7/", False),
        ("https://invalid.example/", True),
        ("ftp://agent.example/", False),
    ],
)
def test_public_urls_are_names_and_global_addresses(url: str, *, expected: bool) -> None:
    assert is_public(url) is expected
    assert is_public(url, read_networks(["10.0.0.0/8"])) is expected


def test_address_in_allowed_network_is_not_public() -> None:
    assert not is_public("http://93.184.215.14/", read_networks(["93.184.215.0/24"]))
    assert not is_public("http://[::ffff:93.184.215.14]/", read_networks(["93.184.215.0/24"]))
