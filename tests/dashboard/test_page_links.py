"""Links to the URLs of agents, which must not lead to the dashboard's own host."""

import pytest

from lifesign.dashboard.page_links import host_in, safe_link


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "javascript:alert(1)",
        "data:text/html,x",
        "ftp://a.example/",
        "//a.example",
        "https:///x",
        "http://[",
        "http://user@a.example/",
        "http://a.example\\@b.example/",
    ],
)
def test_unsafe_url_is_not_a_link(url: str | None) -> None:
    assert safe_link(url, {"registry.example"}) is None


@pytest.mark.parametrize(
    "url", ["https://a.example/x?y=1", "http://10.0.0.7:9000/", "http://127.0.0.1:9000/"]
)
def test_links_to_other_hosts_are_unchanged(url: str) -> None:
    assert safe_link(url, {"registry.example", "10.0.0.1"}) == url


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://registry.example:9000/", "registry.example"),
        ("https://Registry.Example.:9000/", "registry.example:8440"),
        ("http://registry.example/", "Registry.example."),
        ("http://10.0.0.1:9000/", "10.0.0.1:8440"),
        ("http://[fd00:0::7]:9000/", "[fd00::7]:8440"),
        ("http://[::ffff:10.0.0.1]:9000/", "[::ffff:a00:1]:8440"),
        # Browsers read these as 10.0.0.1 too.
        ("http://10.1:9000/", "10.0.0.1:8440"),
        ("http://0xa.0.0.1:9000/", "10.0.0.1:8440"),
        ("http://167772161:9000/", "10.0.0.1:8440"),
        ("http://10.0.0.%31:9000/", "10.0.0.1:8440"),
    ],
)
def test_url_on_the_host_of_the_page_is_not_a_link(url: str, header: str) -> None:
    assert safe_link(url, {host_in(header)}) is None


@pytest.mark.parametrize("header", ["127.0.0.1:8440", "localhost:8440", "[::1]:8440", "0.0.0.0:8440"])
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.7.7.7", "localhost", "a.localhost", "ip6-localhost", "[::1]", "[::ffff:127.0.0.1]"],
)
def test_page_reached_by_loopback_links_to_no_loopback_host(host: str, header: str) -> None:
    assert safe_link(f"http://{host}:9000/", {host_in(header)}) is None


@pytest.mark.parametrize("header", ["", "[", "a b", "::"])
def test_invalid_host_header_is_accepted(header: str) -> None:
    assert safe_link("https://a.example/", {host_in(header)}) == "https://a.example/"
