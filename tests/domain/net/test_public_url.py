import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.net import public_url
from lifesign.domain.net.public_url import PublicUrl, is_own_host
from lifesign.errors import InvalidValue


@pytest.mark.parametrize(
    ("url", "host", "place"),
    [
        ("https://Registry.example", "registry.example", "registry.example"),
        ("https://registry.example:443/", "registry.example", "registry.example"),
        ("http://registry.example:443", "registry.example", "registry.example:443"),
        ("https://registry.example:8440/", "registry.example", "registry.example:8440"),
        ("http://[2001:db8::1]:8440", "2001:db8::1", "[2001:db8::1]:8440"),
        ("http://registry_1", "registry_1", "registry_1"),
    ],
)
def test_a_public_address_is_host_and_port(url: str, host: str, place: str) -> None:
    address = PublicUrl.read(url)
    assert (address.host, address.place) == (host, place)
    assert address.is_https == url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "http://", "https://", "registry.example", "//registry.example", "ftp://registry.example",
        "https://x.example/path", "https://x.example//", "https://x.example/?",
        "https://x.example/?x=1", "https://x.example?", "https://x.example/#a", "https://x.example#",
        "https://me@x.example", "https://me:secret@x.example", "https://x.example:0", "https://x.example:70000",
        "https://x.example:a", "https://[::1", "https://a b", "https://x.example/a b", "https://-a.example",
        "https://a..b", f"https://x.example/{'a' * 2_048}", "https://x.example/\n",
    ],
)  # fmt: skip
def test_invalid_server_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        PublicUrl.read(url)
    assert refused.value.expected == public_url.EXPECTED


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8440", "[::1]:8440", "10.0.0.7", "localhost:1", "a.localhost", "Registry.Example.:9"]
)
def test_ip_address_localhost_and_configured_name_are_own_hosts(host: str) -> None:
    assert is_own_host(host, {"registry.example"})


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "registry.example.evil.example", "127.0.0.1.evil.example", "[", "localhost.x"],
)
def test_other_names_are_no_own_hosts(host: str) -> None:
    assert not is_own_host(host, {"registry.example"})


@given(st.text())
def test_any_text_is_classified(text: str) -> None:
    is_own_host(text, {"registry.example"})
    try:
        PublicUrl.read(text)
    except InvalidValue:
        return
    assert text.startswith(("http", "HTTP"))
